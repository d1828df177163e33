"""An LMDB file that is written to, and grows.

LMDB writes either with system calls or through its memory map (``MDB_WRITEMAP``). Through the map is faster: what is
stored is copied once, not twice, and a page at a time, where the kernel may search long for the large pieces of its
cache that large writes take. But a disk without room for a page that is written through a map ends the process, with
SIGBUS. So that is done only where room can be reserved: the file systems of ``_KEEPS_ROOM`` keep the blocks that
posix_fallocate(3) has given a file, whatever else is written to the disk. (But for an unfinished store that was copied
within XFS and shares its blocks with the copy.)
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dbloader.stores.lmdb.keys import NO_ROOM
from dbloader.stores.lmdb.populating import Populating

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not those that copy what they write (btrfs, ZFS), nor those of which a server or a program decides.
_KEEPS_ROOM = ("ext4", "xfs", "tmpfs")

# Bytes of a map without reserved room, where it begins; it is doubled whenever it is full. A map is address space, not
# memory or disk.
_FIRST_MAP_SIZE = 2**30

# Bytes that are reserved at a time: enough that growing costs nothing, and not more, since what was written through a
# map counts as memory of the process until the map grows.
_STEP = 2**26
# And at the least: for the pages of LMDB's trees that a transaction replaces.
_SPARE = 2**18
_HEAD = 16  # bytes of a page of LMDB's that it needs itself


class GrowingFile:
    """An LMDB file that this process alone writes to.

    Args:
        path: The file, which exists, and may be empty.
        fd: The file, open to be written to. It is the caller's.
        sync: Whether a commit waits for the disk.

    Attributes:
        env: LMDB's environment.

    Raises:
        OSError: There is no room on the disk. The file is as long as it was then.
        lmdb.Error: It is no LMDB file, is cut short or cannot be written to.
    """

    def __init__(self, path: str, fd: int, *, sync: bool) -> None:
        self._fd = fd
        self._sync = sync
        self._preparation: Populating | None = None
        self._closed = False
        self._reserves = _keeps_room(fd)
        size = os.fstat(fd).st_size
        self._map_size = mmap.PAGESIZE if self._reserves else max(_FIRST_MAP_SIZE, size)
        self.env = lmdb.open(
            path,
            subdir=False,
            lock=False,  # the caller's is on the file itself, and ends with the process
            map_size=self._map_size,  # or what is used, if that is more
            max_dbs=2,
            metasync=False,  # a crash of the machine may undo the last commit, no more
            sync=sync,
            writemap=self._reserves,
        )
        try:
            self._begin(size)
        except BaseException:
            self.env.close()
            os.ftruncate(fd, size)
            raise

    def _begin(self, size: int) -> None:
        used = self._look()
        if 0 < size < used:
            raise lmdb.CorruptedError(f"it is cut short: it has {size} bytes of {used}")
        if self._reserves:  # before anything is written; also where it has holes, as one that was copied may have
            self._map_reserved(_whole_pages(used + 2 * _SPARE), 0)  # so that a small transaction needs no step

    def make_room(self, values: Iterable[bytes]) -> None:
        """Reserve what a transaction that stores some values takes, where the map is written to.

        Raises:
            OSError: The disk has no room for that.
        """
        used = self._look()
        if not self._reserves:
            return
        page = int(self.env.stat()["psize"])
        # Pages of its own for each, and of the trees' one for 32 at the most: they have short keys.
        pages = sum(-(-(len(value) + _HEAD) // page) + 1 / 32 for value in values)
        least = used + int(pages + 1) * page + _SPARE
        if least > self._map_size:
            self._reserve(least)
            self._prepare_next()

    def grow(self) -> None:
        """Make the map larger, because a transaction found it full.

        Raises:
            OSError: The disk has no room for that.
        """
        if self._reserves:
            self._reserve(self._map_size + _SPARE)
        else:
            self._map_size *= 2
            self.env.set_mapsize(self._map_size)

    def close(self) -> None:
        """Close the environment, and return back what room was reserved and is not used; once."""
        if self._closed:
            return
        self._end_preparation()
        with suppress(lmdb.Error):  # closed by LMDB, which found no address space for a larger map
            self._look()
        self.env.close()
        if self._reserves:
            os.ftruncate(self._fd, self._used)
        self._closed = True

    def _look(self) -> int:
        """Return the bytes that are used, up to the last commit."""
        self._used = (int(self.env.info()["last_pgno"]) + 1) * int(self.env.stat()["psize"])
        return self._used

    def _reserve(self, least: int) -> None:
        """Make the map a step larger, or as large as is needed at the least: if that is more, or the disk is full."""
        self._end_preparation()  # LMDB is there by now
        try:
            self._map_reserved(_whole_pages(max(self._map_size + _STEP, least)), self._map_size)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._map_reserved(_whole_pages(least), self._map_size)

    def _map_reserved(self, size: int, begin: int) -> None:
        """Make the map so large, after reserving what is behind the beginning."""
        try:
            os.posix_fallocate(self._fd, begin, size - begin)
        except OSError:
            os.ftruncate(self._fd, max(self._map_size, self._used))  # what was added nevertheless
            raise
        self.env.set_mapsize(size)  # which also makes the file as long as the map
        self._map_size = size

    def _prepare_next(self) -> None:
        """Begin to bring the pages of the next step into memory, if there is room for it."""
        try:
            os.posix_fallocate(self._fd, self._map_size, _STEP)
        except OSError:
            os.ftruncate(self._fd, self._map_size)
            return
        begun = self._map_size - _STEP  # of the step that is filled now
        written = range(0) if self._sync else range(max(begun - _STEP, 0), begun)
        preparation = Populating(self._fd, written, range(self._map_size, self._map_size + _STEP))
        with suppress(RuntimeError):  # no thread can be started: then it goes without
            preparation.start()
            self._preparation = preparation

    def _end_preparation(self) -> None:
        if self._preparation is not None:
            self._preparation.stop()
            self._preparation.join()
            self._preparation = None


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _keeps_room(fd: int) -> bool:
    """Return whether the room that is reserved for a file is kept for it."""
    if _file_system(fd) not in _KEEPS_ROOM:
        return False
    size = os.fstat(fd).st_size
    try:
        os.posix_fallocate(fd, size, _SPARE)
    except OSError as error:
        return error.errno in NO_ROOM  # else it cannot be reserved: by musl, where the system itself cannot
    finally:
        os.ftruncate(fd, size)
    return True


def _file_system(fd: int) -> str:
    """Return the type of the file system that a file is on; empty where the system does not say (only Linux does)."""
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for mount in mounts:
        # man proc_pid_mountinfo: the third field is the device; the type follows a hyphen, after optional fields.
        before, _, after = mount.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0]
    return ""
