"""An LMDB file that is written to, and grows.

LMDB writes either with system calls or through its memory map (``MDB_WRITEMAP``). Through the map is faster: what is
stored is copied once, not twice, and a page at a time, where the kernel may search long for the large pieces of its
cache that large writes take. But a disk without room for a page that is written through a map ends the process, with
SIGBUS. So that is done only where room can be reserved: the file systems of ``_KEEPS_ROOM`` keep the blocks that
posix_fallocate(3) has given a file, whatever else is written to the disk. (But for an unfinished store that was copied
within XFS and shares its blocks with the copy.)

A page that is written through a map for the first time is a fault, and the kernel finds memory for it then. That took
longer than all the rest of storing. So while one step of the map is filled, a thread has the kernel bring the pages of
the next into memory, with ``MADV_POPULATE_WRITE`` (madvise(2), Linux 5.14), which changes no byte, so that it does not
matter whether LMDB is there already. Where commits do not wait for the disk, the thread also has the kernel begin to
write the step before, with sync_file_range(2), so that the disk is not idle until the end.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
from typing_extensions import override

from dbloader.stores.lmdb.layout import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not those that copy what they write (btrfs, ZFS), nor those of which a server or a program decides.
_KEEPS_ROOM = ("ext4", "xfs", "tmpfs")

# Bytes of a map without reserved room, where it begins; it is doubled whenever it is full. A map is address space, not
# memory or disk.
_FIRST_MAP_SIZE = 2**30

# Bytes that are reserved at a time. What was written through a map counts as memory of the process until the map grows.
_STEP = 2**26
# And at the least: for the pages of LMDB's trees that a transaction replaces.
_SPARE = 2**18
_PIECE = 2**22  # bytes that are brought into memory at a time
_HEAD = 16  # bytes of a page of LMDB's that it needs itself
# linux/mman.h and linux/fs.h. Python's mmap does not know the first, and its madvise keeps Python's lock.
_MADV_POPULATE_WRITE = 23
_SYNC_FILE_RANGE_WRITE = 2


class GrowingFile:
    """An LMDB file that this process alone writes to.

    Args:
        path: The file, which exists, and may be empty.
        fd: The file, open to be written to. It is the caller's.
        sync: Whether a commit waits for the disk.

    Attributes:
        env: LMDB's environment.

    Raises:
        OSError: There is no room on the disk. The file is as it was then.
        lmdb.Error: It is no LMDB file, or cannot be written to.
    """

    def __init__(self, path: str, fd: int, *, sync: bool) -> None:
        self._fd = fd
        self._reserves = _keeps_room(fd)
        size = os.fstat(fd).st_size
        self._map_size = _whole_pages(size + _SPARE) if self._reserves else max(_FIRST_MAP_SIZE, size)
        self._writes_at_once = sync
        self._preparation: _Preparation | None = None
        self._closed = False
        self.env = lmdb.open(
            path,
            subdir=False,
            lock=False,  # the caller's is on the file itself, and ends with the process
            map_size=self._map_size,
            max_dbs=2,
            metasync=False,  # a crash of the machine may undo the last commit, no more
            sync=sync,
            writemap=self._reserves,
        )
        if self._reserves:  # before anything is written; LMDB takes a file that has room only for a broken one
            try:
                self._reserve(self._map_size)
            except BaseException:
                self.env.close()
                os.ftruncate(fd, size)
                raise

    def make_room(self, values: Iterable[bytes]) -> None:
        """Reserves what a transaction that stores some values takes, where the map is written to.

        Raises:
            OSError: The disk has no room for that.
        """
        if not self._reserves:
            return
        page = int(self.env.stat()["psize"])
        # Pages of its own for each, and of the trees' one for 32 at the most: they have short keys.
        pages = sum(-(-(len(value) + _HEAD) // page) + 1 / 32 for value in values)
        least = self._used() + int(pages + 1) * page + _SPARE
        if least > self._map_size:
            self._reserve(least)
            self._prepare_next()

    def grow(self) -> None:
        """Makes the map larger, because a transaction found it full.

        Raises:
            OSError: The disk has no room for that.
        """
        if self._reserves:
            self._reserve(self._map_size + _SPARE)
        else:
            self._map_size *= 2
            self.env.set_mapsize(self._map_size)

    def close(self) -> None:
        """Closes the environment, and gives back what room was reserved and is not used; once."""
        if self._closed:
            return
        self._closed = True
        used = self._used()
        self._end_preparation()
        self.env.close()
        if self._reserves:
            os.ftruncate(self._fd, used)

    def _used(self) -> int:
        return (int(self.env.info()["last_pgno"]) + 1) * int(self.env.stat()["psize"])

    def _reserve(self, least: int) -> None:
        """Makes the map a step larger, or as large as is needed at the least: if that is more, or the disk is full."""
        try:
            self._map_reserved(_whole_pages(max(self._map_size + _STEP, least)))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._map_reserved(_whole_pages(least))

    def _map_reserved(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)  # all of it: a file that was written otherwise may have holes
        except OSError:
            os.ftruncate(self._fd, self._map_size)  # what was added nevertheless
            raise
        self.env.set_mapsize(size)  # which also makes the file as long as the map
        self._map_size = size

    def _prepare_next(self) -> None:
        """Begins to bring the pages of the next step into memory, if there is room for it."""
        self._end_preparation()  # LMDB is there by now
        try:
            os.posix_fallocate(self._fd, self._map_size, _STEP)
        except OSError:
            os.ftruncate(self._fd, self._map_size)
            return
        begun = self._map_size - _STEP  # of the step that is filled now
        written = range(0) if self._writes_at_once else range(max(begun - _STEP, 0), begun)
        self._preparation = _Preparation(self._fd, written, range(self._map_size, self._map_size + _STEP))
        self._preparation.start()

    def _end_preparation(self) -> None:
        if self._preparation is not None:
            self._preparation.stop()
            self._preparation.join()
            self._preparation = None


class _Preparation(threading.Thread):
    """Begins to write one part of a file to the disk, and brings another into memory, as far as the kernel can.

    Args:
        fd: The file, open to be written to until the thread has ended.
        written: Bytes to write.
        following: Bytes to bring into memory. Where the file becomes shorter meanwhile, nothing happens.
    """

    def __init__(self, fd: int, written: range, following: range) -> None:
        super().__init__(name="dbloader: memory for the next records")
        self._fd = fd
        self._written = written
        self._following = following
        self._stopped = False

    def stop(self) -> None:
        """Lets it end after the piece that it is at."""
        self._stopped = True

    @override
    def run(self) -> None:
        if self._written:
            _libc().sync_file_range(self._fd, self._written.start, len(self._written), _SYNC_FILE_RANGE_WRITE)
        length = len(self._following)
        with suppress(OSError), mmap.mmap(self._fd, length, offset=self._following.start) as pages:
            first = ctypes.c_char.from_buffer(pages)
            for begin in range(0, length, _PIECE):
                if self._stopped:
                    break
                _libc().madvise(ctypes.byref(first, begin), min(_PIECE, length - begin), _MADV_POPULATE_WRITE)
            del first  # the map cannot be closed before


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)  # whose calls are made without Python's lock
    libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _keeps_room(fd: int) -> bool:
    """Says whether the room that is reserved for a file is kept for it."""
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    for mount in mounts:
        # man proc_pid_mountinfo: the third field is the device; the type follows a hyphen, after optional fields.
        before, _, after = mount.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0] in _KEEPS_ROOM and hasattr(os, "posix_fallocate")
    return False
