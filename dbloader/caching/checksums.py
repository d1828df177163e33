"""Store checksums of the files of a cache. They show the fetcher whether a file changed after it was fetched.

The file ``checksums`` has a line of JSON for each fetched file: its name, a Stamp, and the CRC-32 of its bytes. If a
name has several lines, the last line counts. Unreadable lines are ignored. A file without a line is fetched again.
"""

from __future__ import annotations

import json
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dbloader.caching.folder import CHECKSUMS, write_whole

_READ_BYTES = 2**22
# After two writes within this time, a file may still have the time of change of the first write.
_TICK_NS = 10**8
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Stamp(NamedTuple):
    """Facts of a file, which change if the file is written or replaced.

    They also change when the machine restarts, because a power failure can leave zeros in a file without changing its
    size and time of change.
    """

    boot: str
    inode: int
    nbytes: int
    changed_ns: int


class Checksums:
    """The stamps and checksums of a cache's files. Threads may share this object if each thread checks other files.

    Args:
        cache: The folder of the cache.
        compact: Rewrite the file ``checksums`` if it has many outdated lines. Only the fetcher may do this.
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
        if compact and len(lines) > 2 * len(self._known):
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
        if noted != stamp and stamp.changed_ns < time.time_ns() - _TICK_NS:
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
