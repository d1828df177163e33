"""The open handle of a sharded store: its manifest, its index, and the shards that were read last."""

from __future__ import annotations

import os
import resource
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING

import lmdb

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreAccessError, StoreError
from dbloader.records.document import move_document
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.handle import LMDBHandle, OtherStoreError
from dbloader.stores.lmdb.shard_table import COPY_AGAIN, MANIFEST_FILE, SHARD_FOLDER, ShardTable, kept_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.stores.lmdb.shard_table import Shard

# Descriptors of an open shard: LMDB's and that of ReadAhead.
_DESCRIPTORS = 2
# Records copied at a time. One transaction reads those of a shard; large images must not fill the memory.
_COPIED = 16
_REMEDY = f"if the store was replaced, open it again, else {COPY_AGAIN}"


class ShardedHandle:
    """An open sharded store, of the process that made it; threads may share it.

    A shard is opened when a record of it is read. The ones read least recently are closed when a quarter of the
    descriptors that the process may have are in use for shards.
    """

    def __init__(self, path: str, place: str, manifest_file: str = MANIFEST_FILE) -> None:
        self.pid = os.getpid()
        self.place = place
        self._path = path
        try:
            with open(os.path.join(path, manifest_file), "rb") as file:  # noqa: PTH118, PTH123 - the path may be any str
                self._table = ShardTable.decode(file.read(), place)
        except FileNotFoundError as error:
            raise NotAStoreError(
                f"{place} is a folder, and not one of a store's shards: it has no {MANIFEST_FILE} "
                "(dbloader convert makes a store of a folder of images)"
            ) from error
        self.manifest = self._table.manifest
        self._starts = [0, *accumulate(shard.length for shard in self._table.shards)]
        self._opened: OrderedDict[int, LMDBHandle] = OrderedDict()
        self._index_handle: LMDBHandle | None = None
        self._lock = threading.Lock()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_opened = max(8, (2**20 if soft == resource.RLIM_INFINITY else soft) // 4 // _DESCRIPTORS)

    def before(self, digest: str) -> ShardedHandle | None:
        """Return the store as it was before it grew, if that had this digest; None if it is not kept."""
        with suppress(OSError, StoreError):
            older = ShardedHandle(self._path, self.place, kept_manifest(self._table.previous))
            if older.manifest.digest == digest:
                return older
        return None

    @property
    def files(self) -> list[str]:
        """The paths of the store's files: the index and the shards."""
        names = (self._table.index_file, *(f"{SHARD_FOLDER}/{shard.name}" for shard in self._table.shards))
        return [os.path.join(self.place, name) for name in names]  # noqa: PTH118 - the place may be any str

    @property
    def shard_lengths(self) -> list[int]:
        """The number of records in each shard."""
        return [shard.length for shard in self._table.shards]

    def _index(self) -> LMDBHandle:
        with env.gate, self._lock:  # in this order, so that no fork finds the lock held
            if self._index_handle is None:
                self._index_handle = self._open(self._table.index_file, index_of=self.manifest)
            return self._index_handle

    def _open(self, *names: str, digest: str | None = None, index_of: Manifest | None = None) -> LMDBHandle:
        path, place = os.path.join(self._path, *names), os.path.join(self.place, *names)  # noqa: PTH118
        try:
            return LMDBHandle(path, place, digest=digest, index_of=index_of)
        except FileNotFoundError as error:
            raise DamagedStoreError(f"{place} is missing: {_REMEDY}") from error
        except OtherStoreError as error:
            raise DamagedStoreError(f"{place} is not the part of {self.place} that was published: {_REMEDY}") from error
        except OSError as error:
            raise StoreAccessError(f"{place} cannot be read: {error.strerror}") from error
        except lmdb.Error as error:
            raise translate(error, place, remedy=COPY_AGAIN) from error

    def check_files(self) -> None:
        """Raise DamagedStoreError unless every shard is there and has its size, also those without a record."""
        for shard in self._table.shards:
            self._check_size(shard)

    def _check_size(self, shard: Shard) -> None:
        try:
            size = os.stat(os.path.join(self._path, SHARD_FOLDER, shard.name)).st_size  # noqa: PTH116, PTH118
        except OSError:
            size = None
        if size != shard.nbytes:
            place = os.path.join(self.place, SHARD_FOLDER, shard.name)  # noqa: PTH118
            found = "is missing" if size is None else f"has {size:,} bytes, not {shard.nbytes:,}"
            raise DamagedStoreError(f"{place} {found}: {_REMEDY}")

    def _shard(self, number: int) -> LMDBHandle:
        with self._lock:  # and the gate, which the store holds
            handle = self._opened.get(number)
            if handle is None:
                handle = self._opened[number] = self._open_shard(number)
                if len(self._opened) > self._most_opened:
                    self._opened.popitem(last=False)  # closed once nobody reads from it
            self._opened.move_to_end(number)
            return handle

    def _open_shard(self, number: int) -> LMDBHandle:
        shard = self._table.shards[number]
        handle = self._open(SHARD_FOLDER, shard.name, digest=shard.digest)
        self._check_size(shard)
        return handle

    def get(self, key: bytes) -> bytes | None:
        """Return a value of the sub-database ``meta``."""
        return self._index().get(key)

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column."""
        return self._index().chunk(column, number)

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Their number is checked before anyone allocates memory for the records."""
        return self._index().chunks(column)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the kernel to read the records at some indices, without waiting, in as many shards as may be open."""
        for number, positions in islice(self._by_shard(indices).items(), self._most_opened):
            start = self._starts[number]
            self._shard(number).prefetch([indices[position] - start for position in positions])

    def release_pages(self) -> None:
        """Take what was read through the maps out of this process's memory; it stays in the page cache."""
        with env.gate, self._lock:
            for handle in self._opened.values():
                handle.release_pages()

    def look_up(self, indices: Sequence[int]) -> Iterator[bytes | None]:
        """Yield the documents of records, each a copy with the whole store's index and salt; None if missing."""
        for begin in range(0, len(indices), _COPIED):
            part = indices[begin : begin + _COPIED]
            found: list[bytes | None] = [None] * len(part)
            for position, at, salt, document in self.each(part):
                if document is not None:
                    to, to_salt = part[position], self.manifest.salt
                    found[position] = move_document(document, at, salt, to=to, to_salt=to_salt)
            yield from found

    def each(self, indices: Sequence[int]) -> Iterator[tuple[int, int, int, memoryview | None]]:
        """Yield records shard by shard: position in ``indices``, index in the shard, its salt, and document, or None.

        A document is a view into the map that is valid until the next one is taken.
        """
        for number, positions in self._by_shard(indices).items():
            inside = [indices[position] - self._starts[number] for position in positions]
            handle = self._shard(number)
            yield from zip(positions, inside, repeat(handle.manifest.salt), handle.look_up(inside))

    def _by_shard(self, indices: Sequence[int]) -> dict[int, list[int]]:
        """Return the shards that have these records: positions in ``indices`` by the number of the shard."""
        parts: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            if not 0 <= index < self.manifest.length:
                break  # the store raises an error before it comes to it
            parts.setdefault(self._number_of(index), []).append(position)
        return parts

    def _number_of(self, index: int) -> int:
        """Return the number of the shard that has a record."""
        return bisect_right(self._starts, index) - 1
