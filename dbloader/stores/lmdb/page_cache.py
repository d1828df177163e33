"""Brings a store's file into memory, so that the first epoch reads it as the later ones do."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dbloader.errors import PlaceError
from dbloader.stores.lmdb.keys import checked_path
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

# Read at a time, and asked for ahead of that: of a cold file of 1.7 GB on a virtual disk, 773 to 1,325 MB/s, where
# reading alone gave 498 to 831 and MADV_POPULATE_READ, which older kernels do not have, 1,107 to 1,465.
_BLOCK = 8 * 2**20
_AHEAD = 8 * _BLOCK
# Looking at a place that is not in memory makes the kernel read around it, so looks keep apart.
_LOOKS, _APART = 4096, 2**17


class Warmed(NamedTuple):
    """What warming did.

    Attributes:
        place: The store.
        nbytes: Of its file.
        seconds: It took.
        available: Bytes of memory that were free or could be made so when it began; None if the system does not tell.
        resident: The part of the file that was in memory when it was done, 0 to 1, by up to 4,096 looks; None if the
            system does not tell.
    """

    place: str
    nbytes: int
    seconds: float
    available: int | None
    resident: float | None

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds


def warm(
    place: str | os.PathLike[str], *, progress: Callable[[int, int, int | None], object] = lambda *_: None
) -> Warmed:
    """Read the file of a store from its beginning to its end, which leaves it in the system's page cache.

    It stays there as long as no program needs the memory. A file larger than the memory available cannot stay as a
    whole: what was read first goes again.

    Args:
        place: A store in an LMDB file.
        progress: Called with the bytes read so far, those of the file, and those of memory available when it began
            (None if unknown): before the first is read, and as it goes on.

    Raises:
        PlaceError: The store is in MongoDB, whose server keeps a cache of its own.
        StoreError: There is no store, or it cannot be read.
    """
    if is_mongo(place):
        raise PlaceError(
            "a store in MongoDB is warmed by its server, in the server's memory, as it is read; "
            "what can be warmed on this machine is a copy in a file (dbloader copy makes one)",
        )
    with open_store(place) as store:
        len(store)  # which says what is wrong, if it is none
        shown = store.place
    path, available = checked_path(place), available_memory()
    started = time.perf_counter()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        nbytes = os.fstat(file).st_size
        _read_all(file, nbytes, lambda done: progress(done, nbytes, available))
        seconds = time.perf_counter() - started
        return Warmed(shown, nbytes, seconds, available, _resident(file, nbytes))
    finally:
        os.close(file)


def available_memory() -> int | None:
    """Return the bytes that programs and the page cache can still get; of a container, no more than it may use.

    None if the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    limit = _container_limit()
    return available if limit is None else min(available, limit)


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(file).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
    return None


def _read_all(file: int, nbytes: int, told: Callable[[int], object]) -> None:
    buffer, done, asked = memoryview(bytearray(_BLOCK)), 0, 0
    told(0)
    while done < nbytes:
        if hasattr(os, "posix_fadvise") and asked < done + _AHEAD:
            os.posix_fadvise(file, asked, done + _AHEAD - asked, os.POSIX_FADV_WILLNEED)
            asked = done + _AHEAD
        count = os.preadv(file, [buffer], done)
        if not count:
            break  # cut short meanwhile
        done += count
        told(done)


def _resident(file: int, nbytes: int) -> float | None:
    """Look at places all over the file whether they can be read without waiting."""
    places = range(0, nbytes, max(_APART, nbytes // _LOOKS))
    byte, found = bytearray(1), 0
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        for place in places:
            with suppress(BlockingIOError):
                found += os.preadv(file, [byte], place, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # a file system, or a system, that cannot tell
        return None
    return found / len(places)
