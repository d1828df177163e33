"""Read a store in one LMDB file, or in a folder of shards."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
import numpy as np
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._places import checked_path, is_mongo
from dbloader.errors import (
    DamagedRecordError,
    NotAStoreError,
    RecordNotFoundError,
    StoreAccessError,
    StoreNotFoundError,
)
from dbloader.records.columns import CHUNK, DTYPES, name_hash
from dbloader.records.decode import decode, decode_encoded
from dbloader.records.names import name_at
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.handle import LMDBHandle, ShardedHandle, ShardFiles
from dbloader.stores.lmdb.keys import PARTIAL, event_key
from dbloader.stores.lmdb.shard_table import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.records.record import EncodedRecord, Record

Decoded = TypeVar("Decoded")

# ``borrow`` copies this many records of a sharded store at a time. Larger groups save transactions, smaller groups save
# memory.
_COPIED = 16


class LMDBStore(Store):
    """A store in one LMDB file, or in a folder of LMDB files, which are called shards."""

    handle: LMDBHandle | ShardedHandle | None = None
    has_views = True

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = checked_path(place)
        self._path = Path(os.path.abspath(self.place))  # noqa: PTH100 - Path.absolute keeps ".."

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        handle = self.open_handle()
        self._check_indices(indices, handle.manifest.length)
        with env.gate:
            handle.prefetch(indices)
            return self._read(handle, indices)

    @override
    def prefetch(self, indices: Sequence[int]) -> None:
        handle = self.open_handle()
        with env.gate:
            handle.prefetch(indices)

    @override
    @contextmanager
    def borrow(self, indices: Sequence[int]) -> Iterator[Iterator[Record]]:
        handle = self.open_handle()
        self._check_indices(indices, handle.manifest.length)
        with env.gate:
            if isinstance(handle, ShardedHandle):  # copy records, because reading the next shard may close this shard
                parts = (indices[start : start + _COPIED] for start in range(0, len(indices), _COPIED))
                yield (record for part in parts for record in self._read(handle, part))
            else:
                yield (record for _, record in self._decode(handle, indices, _decode_view))

    @override
    def encoded(self, indices: Sequence[int], *, elements: bool = True) -> list[EncodedRecord]:
        handle = self.open_handle()
        self._check_indices(indices, handle.manifest.length)
        records: list[Any] = [None] * len(indices)
        with env.gate:
            for position, record in self._decode(handle, indices, _encode_copy if elements else _encode_values):
                records[position] = record
        return records

    def _read(self, handle: LMDBHandle | ShardedHandle, indices: Sequence[int]) -> list[Record]:
        records: list[Any] = [None] * len(indices)
        for position, record in self._decode(handle, indices, decode):
            record.index = int(indices[position])
            records[position] = record
        return records

    def _decode(
        self,
        handle: LMDBHandle | ShardedHandle,
        indices: Sequence[int],
        decode_one: Callable[[memoryview, int, int], Decoded],
    ) -> Iterator[tuple[int, Decoded]]:
        """Yield each record with its position in ``indices``, in the order of the shards."""
        for position, at, salt, document in handle.look_up(indices):
            if document is None:
                raise self._damaged(indices[position], "it is missing")
            try:
                record = decode_one(document, at, salt)
            except DamagedRecordError as error:
                raise self._damaged(indices[position], str(error)) from error
            yield position, record

    @override
    def find(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"find takes the name of a record, a str, got {short_repr(name)}")
        hashed = np.uint32(name_hash(name.encode(errors="replace")))  # names that UTF-8 cannot encode are not stored
        handle = self.open_handle()
        for number, chunk in enumerate(handle.chunks("name_hash") if name else ()):
            for position in np.flatnonzero(np.frombuffer(chunk, DTYPES["name_hash"]) == hashed).tolist():
                if name_at(handle.chunk("name", number), position) == name:
                    return number * CHUNK + int(position)
        raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        handle = self.open_handle()
        for number in range(handle.manifest.events):
            yield self._event(handle.get(event_key(number)), number)

    @property
    @override
    def shard_lengths(self) -> Sequence[int] | None:
        handle = self.open_handle()
        return handle.shard_lengths if isinstance(handle, ShardedHandle) else None

    @override
    def check_files(self) -> None:
        handle = self.open_handle()
        if isinstance(handle, ShardedHandle):
            handle.files.check()

    @override
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        if is_mongo(place):
            return False
        own, other = (Path(os.path.realpath(path)) for path in (self._path, checked_path(place)))
        return _is_in(other, own) or (is_sharded(other) and _is_in(own, other))

    @override
    def open_older(self, digest: str) -> None:
        handle = self.open_handle()
        if isinstance(handle, ShardedHandle):
            with env.gate:
                self.handle = handle.open_previous(digest) or handle

    @override
    def open_handle(self) -> LMDBHandle | ShardedHandle:
        handle = self.handle
        if handle is None or handle.pid != os.getpid():
            try:
                with env.gate:
                    if self._path.is_dir():
                        handle = self.handle = ShardedHandle(ShardFiles(self._path, self.place))
                    else:
                        handle = self.handle = LMDBHandle(self._path, self.place)
            except OSError as error:
                raise self._absent(error) from error
            except lmdb.Error as error:
                raise translate(error, self.place) from error
        return handle

    def _absent(self, error: OSError) -> Exception:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return StoreAccessError(f"{self.place} cannot be read: {error.strerror}")
        partial = Path(os.path.realpath(self._path) + PARTIAL)
        if os.path.exists(partial):  # noqa: PTH110 - Path.exists raises if this longer name is too long
            remedy = "dbloader convert --resume continues it"
            if partial.is_dir():
                remedy = "dbloader parts lists the missing parts, and dbloader publish joins all parts"
            return NotAStoreError(f"{self.place} does not exist, but its unfinished conversion does: {remedy}")
        return StoreNotFoundError(f"{self.place} does not exist; dbloader convert makes a store")

    def release_pages(self) -> None:
        """Remove the store's pages from this process's memory, but not from the system's page cache."""
        self.open_handle().release_pages()


def _decode_view(document: memoryview, index: int, salt: int) -> Record:
    return decode(document, index, salt, view=True)


def _encode_copy(document: memoryview, index: int, salt: int) -> EncodedRecord:
    return decode_encoded(memoryview(bytes(document)), index, salt)  # a view, so slicing does not copy again


def _encode_values(document: memoryview, index: int, salt: int) -> EncodedRecord:
    return decode_encoded(document, index, salt)._replace(elements=())


def _is_in(path: Path, folder: Path) -> bool:
    """Return whether a path is ``folder`` (a folder or file) or below it; False if ``folder`` does not exist."""
    return folder.exists() and any(part.exists() and part.samefile(folder) for part in (path, *path.parents))
