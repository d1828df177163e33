"""Ask the kernel to read records of an LMDB file before they are needed.

LMDB reads through a memory map. By itself, the kernel reads missing pages one by one and waits for each, or it reads
many pages that nobody needs. LMDB has no function that finds the position of a record without reading the record. So
this module follows LMDB's pages in Python. Positions are only hints to the kernel, so a wrong position cannot give a
wrong record.

This module reads the page layout of LMDB 0.9, data version 1, 64 bits (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from dbloader.stores.lmdb.keys import MAGIC, RECORDS, record_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VERSION = 1
_PAGE_HEAD = 16
_META_HEAD = struct.Struct("<4sI")  # magic number and version at the beginning of a meta page
# Offsets in a meta page: page size (md_pad of the first database), root page of the second database, transaction id.
_PAGE_SIZE_AT, _ROOT_AT, _TXN_AT, _META_END = 40, 128, 144, 152
_LOWER_AT = 12  # offset of mp_lower in any page: the end of the list of node offsets
# The four numbers at the head of a node. In a leaf, they are the value's size (low, high), the flags, and the key's
# length. In a branch, the first three are the child's page number.
_NODE = struct.Struct("<HHHH")
_OVERFLOW = 1  # flag of a node whose value has its own pages; the node contains the number of the first page
_DEPTH_AT, _DB_ROOT_AT = 6, 40  # offsets in MDB_db
_MOST_LEVELS, _LARGEST_PAGE = 32, 2**16

# `prefetch` checks only every 32nd record. A check takes 8 us, or 0.25 us per record. If the checked record is not in
# memory, the next 512 records get hints without a check. Useless hints cost less than missing hints.
_CHECK_AFTER, _HINT_FOR = 32, 512


_u16, _u32, _u64 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<Q"))
# Damaged pages can cause these errors. preadv also raises OSError if it would have to wait for the disk.
_WRONG = (struct.error, IndexError, OverflowError, OSError)


class ReadAhead:
    """Asks the kernel to load records of an LMDB file that never changes. Threads may share this object.

    Args:
        path: Path of the file. The file is opened a second time, because LMDB does not share its descriptor.
        key: Device and inode of the file. If another file is now at the path, this object does nothing.
    """

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self._file = -1
        self._page_size = self._root = self._depth = 0
        self._unhinted = self._hinted = 0  # number of records before the next check: without hints, with hints
        if not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")):
            return  # the system is not Linux
        with suppress(*_WRONG):  # LMDB itself reports a damaged file
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            # By default, the kernel reads much more than one page for a check, up to 8 MiB on a virtual disk.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
            status = os.fstat(self._file)
            if (status.st_dev, status.st_ino) == key:
                self._find_root()

    def size_and_mtime(self) -> tuple[int, int]:
        """Return the file's size in bytes and mtime in ns, even after its removal; (0, 0) if no file is open."""
        if self._file < 0:
            return 0, 0
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the kernel to load records, unless they are probably in memory.

        This method reads LMDB's inner pages to find the records, but does not wait for the records.
        """
        if not self._root or not len(indices):
            return
        if not self._hinted:
            self._unhinted -= len(indices)
            if self._unhinted >= 0:
                return
            if self.is_in_memory(indices[-1]):
                self._unhinted = _CHECK_AFTER
                return
            self._hinted = _HINT_FOR
        self._hinted = max(self._hinted - len(indices), 0)
        for index in indices:
            self.hint(index)

    def hint(self, index: int) -> None:
        """Ask the kernel to load one record."""
        with suppress(*_WRONG):  # reading the record will raise the error for a wrong index or a damaged page
            if place := self.locate(index):
                os.posix_fadvise(self._file, *place, os.POSIX_FADV_WILLNEED)

    def is_in_memory(self, index: int) -> bool:
        """Return whether the first byte of a record is in memory; False if unknown."""
        try:
            place = self.locate(index)
            if place is None:
                return True  # `locate` has just read the page that contains the record
            os.preadv(self._file, [bytearray(1)], place[0], os.RWF_NOWAIT)
        except _WRONG:
            return False
        return True

    def close(self) -> None:
        """Close the file. Afterwards, the other methods do nothing."""
        self._root = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def locate(self, index: int) -> tuple[int, int] | None:
        """Return where a record's own pages are in the file: offset and size in bytes; None if it has no own pages."""
        key = record_key(index)
        page = self._page(self._root)
        for _ in range(self._depth - 1):
            nodes = (_u16(page, _LOWER_AT)[0] - _PAGE_HEAD) // 2
            # LMDB does not store the first key of a branch page, because it is less than all other keys.
            child = bisect_right(range(1, nodes), key, key=lambda node: _key(page, node))
            low, high, more, _ = _NODE.unpack_from(page, _node_at(page, child))
            page = self._page(low | high << 16 | more << 32)
        # Keys are consecutive, so the first key of the page determines the position of every key.
        node = index - int.from_bytes(_key(page, 0), "big")
        if node < 0 or _key(page, node) != key:
            return None
        at = _node_at(page, node)
        low, high, flags, length = _NODE.unpack_from(page, at)
        if flags != _OVERFLOW:
            return None
        number = _u64(page, at + _NODE.size + length)[0]
        return number * self._page_size, (low | high << 16) + _PAGE_HEAD

    def _find_root(self) -> None:
        first = self._read(0, _META_END)
        if _META_HEAD.unpack_from(first, _PAGE_HEAD) != (MAGIC, _VERSION):
            return
        self._page_size = _u32(first, _PAGE_SIZE_AT)[0]
        if self._page_size > _LARGEST_PAGE:
            return
        metas = first, self._read(self._page_size, _META_END)
        newest = max(metas, key=lambda meta: _u64(meta, _TXN_AT)[0])
        page = self._page(_u64(newest, _ROOT_AT)[0])
        for node in range((_u16(page, _LOWER_AT)[0] - _PAGE_HEAD) // 2):
            if _key(page, node) == RECORDS:
                database = _node_at(page, node) + _NODE.size + len(RECORDS)
                self._depth = min(_u16(page, database + _DEPTH_AT)[0], _MOST_LEVELS)
                self._root = _u64(page, database + _DB_ROOT_AT)[0]

    def _page(self, number: int) -> bytes:
        return self._read(number * self._page_size, self._page_size)

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self._file, size, start)


def _node_at(page: bytes, node: int) -> int:
    at: int = _u16(page, _PAGE_HEAD + 2 * node)[0]
    return at


def _key(page: bytes, node: int) -> bytes:
    at = _node_at(page, node)
    return page[at + _NODE.size : at + _NODE.size + _u16(page, at + 6)[0]]
