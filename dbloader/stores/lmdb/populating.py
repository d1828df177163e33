"""Pages of a file that is written through a map, brought into memory before they are written to.

A page that is written through a map for the first time is a fault, and the kernel finds memory for it then. That took
longer than all the rest of storing. So while one step of the map is filled, a thread has the kernel bring the pages of
the next into memory, with ``MADV_POPULATE_WRITE`` (madvise(2), Linux 5.14). It changes no byte, so that it does not
matter whether LMDB is there already; pages that are not used after all may be written to the disk as they are. Where
commits do not wait for the disk, the thread also has the kernel begin to write the step before, with
sync_file_range(2), so that the disk is not idle until the end.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from contextlib import suppress

from typing_extensions import override

# linux/mman.h and linux/fs.h. Python's mmap does not know the first, and its madvise keeps Python's lock.
_MADV_POPULATE_WRITE = 23
_SYNC_FILE_RANGE_WRITE = 2
_PIECE = 2**22  # bytes that are brought into memory at a time


class Populating(threading.Thread):
    """Begins to write one part of a file to the disk, and brings another into memory, as far as the kernel can.

    Args:
        fd: The file, open to be written to until the thread has ended.
        written: Bytes to write.
        following: Bytes to bring into memory, beginning at a page; nothing happens where the file has become shorter.
    """

    def __init__(self, fd: int, written: range, following: range) -> None:
        super().__init__(name="dbloader: memory for the next records")
        self._fd = fd
        self._written = written
        self._following = following
        self._stopped = False

    def stop(self) -> None:
        """Let it end after the piece that it is at."""
        self._stopped = True

    @override
    def run(self) -> None:
        if self._written:
            _libc().sync_file_range(self._fd, self._written.start, len(self._written), _SYNC_FILE_RANGE_WRITE)
        length = len(self._following)
        with suppress(OSError, ValueError), mmap.mmap(self._fd, length, offset=self._following.start) as pages:
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
