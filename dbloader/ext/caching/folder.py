"""Make the folder of a cache: a copy of a sharded store's manifest, index and some or all shards.

``cache.json`` marks the folder. dbloader removes files only in a folder with this file. ``partial/`` has the files that
are being fetched. The running fetcher locks ``fetcher.lock``, listens on ``fetcher.sock``, and writes its counters to
``stats.json`` and its errors to ``fetcher.log``.

The file ``checksums`` shows the fetcher whether a file changed after it was fetched. Each fetched file has a
line of JSON with its name, a Stamp, and the CRC-32 of its bytes. If a name has several lines, the last line counts.
Unreadable lines are ignored. A file without a line is fetched again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dbloader.errors import NotAStoreError, OptionError, StoreAccessError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER

MARKER, LOCK, SOCKET, LOG, STATS, CHECKSUMS, PARTIAL = (
    "cache.json", "fetcher.lock", "fetcher.sock", "fetcher.log", "stats.json", "checksums", "partial",
)  # fmt: skip
_FETCHED = re.compile(r"(\d{5,}|index)(-[0-9a-f]+)?\.lmdb")  # names of shards and indices
_READ_BYTES = 2**22
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass
class CacheStats:
    """Counters of a cache's fetcher since it started.

    Attributes:
        nbytes: Bytes of the shards in the cache.
        fetches: Number of fetched shards.
        fetched_bytes: Bytes of the fetched shards.
        removed: Number of shards removed to make room.
        damaged: Number of shards that were fetched again because their files in the cache were damaged.
        readers: Number of connected processes.
        seconds: Seconds spent fetching, summed over all threads.
        last_error: Error of the last failed attempt; "" if a shard has arrived since then.
    """

    nbytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    removed: int = 0
    damaged: int = 0
    readers: int = 0
    seconds: float = 0.0
    last_error: str = ""

    def write(self, cache: Path) -> None:
        """Write the counters into the cache's folder."""
        with suppress(OSError):  # the disk may be full
            write_whole(cache / STATS, json.dumps(dataclasses.asdict(self)))


def read_stats(cache: str | os.PathLike[str]) -> CacheStats:
    """Return the counters of the cache in a folder; zeros if their file is missing or damaged."""
    try:
        return CacheStats(**json.loads((Path(cache) / STATS).read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # the file is missing or damaged
        return CacheStats()


def arriving_bytes(cache: str) -> int:
    """Return the total bytes of the files that are being fetched."""
    found = 0
    for path in Path(cache, PARTIAL).iterdir():
        with suppress(FileNotFoundError):  # the file is complete and has been renamed
            found += path.stat().st_size
    return found


def make_folder(cache: str, origin: str) -> None:
    """Make the folder of a cache if needed. Raise NotAStoreError for a file, or a non-empty folder that is no cache.

    Raise OptionError if the folder contains the store at ``origin``, or is inside the store. Otherwise, the fetcher
    could remove the store's shards.
    """
    if "://" not in origin:
        there, here = os.path.realpath(origin), os.path.realpath(cache)
        if os.path.commonpath((there, here)) in (there, here):
            raise OptionError(f"cache {cache} and its origin {origin} must be separate folders")
    folder = Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not ((folder / MARKER).exists() and (folder / MANIFEST_FILE).exists()):  # the folder is new or was cleared
            # Another process may be making the same cache. So look for the marker again after listing the folder.
            other_files = [path for path in folder.iterdir() if not _is_left(path)]
            if other_files and not (folder / MARKER).exists():
                raise NotAStoreError(
                    f"{cache} is not a cache, and not empty: name an empty folder, or a folder that does not exist"
                )
            write_whole(folder / MARKER, json.dumps({"format": "dbloader cache", "version": 1, "origin": origin}))
        for name in (SHARD_FOLDER, PARTIAL):
            (folder / name).mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(f"{cache} is a file, but a cache is a folder: name another place") from error
    except OSError as error:
        raise refusal(error, cache) from error


def refusal(error: OSError, cache: str) -> Exception:
    """Return dbloader's error for an OSError that was raised while using a cache."""
    with suppress(OSError):  # the folder does not exist
        if isinstance(error, PermissionError) and Path(cache).stat().st_uid != os.geteuid():
            return StoreAccessError(f"{cache} belongs to another user, and a cache has one user: use your own folder")
    return translate_refusal(error, cache)


def _is_left(path: Path) -> bool:
    """Return whether a file or folder may be from a fetcher that was still running when the user deleted the cache."""
    if path.name in (SHARD_FOLDER, PARTIAL):
        return all(map(_FETCHED.fullmatch, os.listdir(path)))  # noqa: PTH208 - names
    return path.name.startswith((MARKER, LOCK, SOCKET, LOG, STATS, CHECKSUMS))


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file under a temporary name, and rename it when it is complete."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        aside.write_bytes(data.encode() if isinstance(data, str) else data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)  # after a failure, such as a full disk


class Stamp(NamedTuple):
    """Values that change when a file is written or replaced, and after a restart of the machine.

    A power failure can leave zeros in a file without changing the file's size and time of change. So after a restart,
    each file is compared with its checksum.
    """

    boot: str
    inode: int
    nbytes: int
    changed_ns: int


class Checksums:
    """The stamps and checksums of a cache's files. Threads may share this object if no two threads check the same file.

    Args:
        cache: The folder of the cache.
        compact: Rewrite the file ``checksums`` without outdated lines. Only the fetcher may do this.
    """

    def __init__(self, cache: Path, *, compact: bool = False) -> None:
        self._file = cache / CHECKSUMS
        self._boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        self._known: dict[str, tuple[Stamp, int]] = {}
        lines = self._file.read_bytes().splitlines() if self._file.exists() else []
        for line in lines:
            with suppress(ValueError, TypeError):  # a line cut off by a failure
                name, stamp, crc32 = json.loads(line)
                self._known[name] = Stamp(*stamp), crc32
        if compact and len(lines) > len(self._known):
            write_whole(self._file, "".join(map(self._line, self._known)))

    def add(self, path: Path, name: str) -> None:
        """Store the checksum of a fetched file under the name that the file will get."""
        self._note(name, self._stamp(path), _crc32(path))

    def agrees(self, path: Path, *, compare: bool = False) -> bool:
        """Return whether a file still has the bytes that were fetched.

        The file is read only if its stamp has changed.

        Args:
            path: The file.
            compare: Read the file even if its stamp is unchanged.

        Raises:
            OSError: The file does not exist or cannot be read.
        """
        stamp, (noted, crc32) = self._stamp(path), self._known.get(path.name, (None, 0))
        if noted is None or noted.nbytes != stamp.nbytes:
            return False
        if noted == stamp and not compare:
            return True
        if _crc32(path) != crc32:
            return False
        if noted != stamp:
            self._note(path.name, stamp, crc32)
        return True

    def _stamp(self, path: Path) -> Stamp:
        status = path.stat()
        return Stamp(self._boot, status.st_ino, status.st_size, status.st_mtime_ns)

    def _note(self, name: str, stamp: Stamp, crc32: int) -> None:
        self._known[name] = stamp, crc32
        with suppress(OSError), self._file.open("ab", buffering=0) as file:  # the disk may be full
            file.write(self._line(name).encode())

    def _line(self, name: str) -> str:
        return json.dumps([name, *self._known[name]]) + "\n"


def _crc32(path: Path) -> int:
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            crc32 = zlib.crc32(data, crc32)
    return crc32
