"""Tells the kernel which records of an LMDB file are about to be read, all at once, before the first is waited for.

LMDB reads through a memory map: what is not in memory is read page by page, each waited for, or with much around it
that nobody asked for. Where a record lies is known to LMDB alone, which gives it only by reading it; so its pages are
followed here. A wrong hint would cost time, never a wrong record: nothing that is found here is used for anything else.

The layout of pages is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db), data version 1, 64 bits.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE_HEAD = 16
# Of the meta page: magic, version; page size (md_pad of the first database); root of the second; transaction.
_META_HEAD = struct.Struct("<II")
_PAGE_SIZE_AT, _ROOT_AT, _TXN_AT, _META_END = 40, 128, 144, 152
# Of a page: where its free space begins, counted from its start, which is where the offsets of its nodes end.
_LOWER_AT = 12
_NODE = struct.Struct("<HHHH")  # two of size or child page, flags or more of the child page, length of the key
_OVERFLOW = 1  # flag: the value is on pages of its own, and here is the number of the first
_DEPTH_AT, _DB_ROOT_AT = 6, 40  # of MDB_db
_MOST_LEVELS, _LARGEST_PAGE = 32, 2**16

# Records after which it is looked again whether hints are of use. While the file is in memory, a look costs 8 us, so
# 0.25 us a record; a batch read from the disk without hints costs more than many with hints that were not needed.
_LOOK_AFTER, _HINT_FOR = 32, 512

_pack_key = struct.Struct(">Q").pack
_u16, _u32, _u64 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<Q"))
# What following pages can meet that are not what they should be; OSError is also "it would have to wait".
_WRONG = (struct.error, IndexError, OverflowError, OSError)


class ReadAhead:
    """Hints about one LMDB file that does not change; threads may share it.

    Args:
        path: The file, which is opened once more: LMDB does not lend its descriptor.
        key: Its device and inode. If another file has come to the path meanwhile, nothing is hinted.
        name: The sub-database, whose keys are the 8-byte big-endian integers from 0 on.
    """

    def __init__(self, path: str, key: tuple[int, int], name: bytes) -> None:
        self._file = -1
        self._page_size = self._root = self._depth = 0
        self._unhinted = self._hinted = 0  # records before the next look
        if not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")):
            return  # not Linux
        with suppress(*_WRONG):  # of a file that is not as it should be, LMDB will tell
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            # A look would have the kernel read more than that page, of a virtual disk here 8 MiB.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
            status = os.fstat(self._file)
            if (status.st_dev, status.st_ino) == key:
                self._find_root(name)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask for records that are about to be read, unless they are likely to be in memory already.

        The kernel is asked for all; nothing is waited for but the pages that tell where they are.
        """
        if not self._root or not len(indices):
            return
        if not self._hinted:
            self._unhinted -= len(indices)
            if self._unhinted >= 0:
                return
            if self._is_in_memory(indices[-1]):
                self._unhinted = _LOOK_AFTER
                return
            self._hinted = _HINT_FOR
        self._hinted = max(self._hinted - len(indices), 0)
        for index in indices:
            self._hint(index)

    def close(self) -> None:
        """Close the file; nothing is hinted any more."""
        self._root = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def locate(self, index: int) -> tuple[int, int] | None:
        """Return where in the file a record is that has pages of its own: first byte and number of bytes."""
        key = _pack_key(index)
        page = self._page(self._root)
        for _ in range(self._depth - 1):
            nodes = (_u16(page, _LOWER_AT)[0] - _PAGE_HEAD) // 2
            # The first key of a branch is not written; it is less than all others.
            child = bisect_right(range(1, nodes), key, key=lambda node: _key(page, node))
            low, high, more, _ = _NODE.unpack_from(page, _node_at(page, child))
            page = self._page(low | high << 16 | more << 32)
        # Keys are consecutive, so the first tells the place of all.
        node = index - int.from_bytes(_key(page, 0), "big")
        if node < 0 or _key(page, node) != key:
            return None
        at = _node_at(page, node)
        low, high, flags, length = _NODE.unpack_from(page, at)
        if flags != _OVERFLOW:
            return None
        number = _u64(page, at + _NODE.size + length)[0]
        return number * self._page_size, (low | high << 16) + _PAGE_HEAD

    def _find_root(self, name: bytes) -> None:
        first = self._read(0, _META_END)
        if _META_HEAD.unpack_from(first, _PAGE_HEAD) != (_MAGIC, _VERSION):
            return
        self._page_size = _u32(first, _PAGE_SIZE_AT)[0]
        if self._page_size > _LARGEST_PAGE:
            return
        metas = first, self._read(self._page_size, _META_END)
        newest = max(metas, key=lambda meta: _u64(meta, _TXN_AT)[0])
        page = self._page(_u64(newest, _ROOT_AT)[0])
        for node in range((_u16(page, _LOWER_AT)[0] - _PAGE_HEAD) // 2):
            if _key(page, node) == name:
                database = _node_at(page, node) + _NODE.size + len(name)
                self._depth = min(_u16(page, database + _DEPTH_AT)[0], _MOST_LEVELS)
                self._root = _u64(page, database + _DB_ROOT_AT)[0]

    def _hint(self, index: int) -> None:
        with suppress(*_WRONG):  # an index that is none, a page that is damaged: reading it says so
            if place := self.locate(index):
                os.posix_fadvise(self._file, *place, os.POSIX_FADV_WILLNEED)

    def _is_in_memory(self, index: int) -> bool:
        """Look whether reading the first byte of a record would not have to wait; false where that cannot be told."""
        try:
            place = self.locate(index)
            if place is None:
                return True  # it is in the page that was just read
            os.preadv(self._file, [bytearray(1)], place[0], os.RWF_NOWAIT)
        except _WRONG:
            return False
        return True

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
