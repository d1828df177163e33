"""Reading a store from one LMDB file."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import DamagedStoreError, NotAStoreError, RecordNotFoundError, StoreAccessError, StoreNotFoundError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, join_values, name_hash, whole_chunk
from dbloader.records.names import join_names, name_at
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.handle import LMDBHandle
from dbloader.stores.lmdb.keys import PARTIAL, checked_path, column_key, event_key, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.records.names import Names
    from dbloader.records.record import Record

# Records prefetched at a time: as many as a large batch has, and little memory.
_PREFETCHED = 128


class LMDBStore(Store):
    """A store in one LMDB file. Its ``handle`` may be a parent process's; it is None if the store is not open."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = checked_path(place)
        self._path = os.path.abspath(self.place)  # noqa: PTH100 - the path may be any str
        self.handle: LMDBHandle | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._open().manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        with self._reading() as (txn, handle):
            # Each document is decoded in the map. Only the values of the record are copied.
            return [self._decode(document, index) for document, index in self._documents(txn, handle, indices)]

    @override
    def prefetch(self, indices: Sequence[int]) -> None:
        handle = self._open()
        with env.gate:
            handle.shared.prefetch(indices)

    has_views = True

    @override
    @contextmanager
    def borrow(self, indices: Sequence[int]) -> Iterator[Iterator[Record]]:
        handle = self._open()
        with env.gate, self._begin(handle) as txn:
            documents = self._documents(txn, handle, indices)
            yield (self._decode(document, index, view=True) for document, index in documents)

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        with self._reading() as (txn, handle):
            return [bytes(document) for document, _ in self._documents(txn, handle, indices)]

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in DTYPES:
            raise ValueError(f"a column is one of {', '.join(DTYPES)}, got {name!r}")
        with self._reading() as (txn, handle):
            return join_values(self._chunks(txn, handle, name), name, handle.manifest.length)

    @override
    def names(self) -> Names:
        with self._reading() as (txn, handle):
            return join_names(self._chunks(txn, handle, "name"), handle.manifest.length)

    @override
    def name(self, index: int) -> str | None:
        self._check_index(index)
        with self._reading() as (txn, handle):
            return self._name(txn, handle, index) or None

    @override
    def find(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"find takes the name of a record, a str, got {short_repr(name)}")
        hashed = np.uint32(name_hash(name.encode(errors="replace")))  # no stored name has what UTF-8 cannot hold
        with self._reading() as (txn, handle):
            # 4 bytes a record: a million are searched in 3 ms.
            for number, chunk in enumerate(self._chunks(txn, handle, "name_hash") if name else ()):
                for position in np.flatnonzero(np.frombuffer(chunk, DTYPES["name_hash"]) == hashed).tolist():
                    index = number * CHUNK + position
                    if self._name(txn, handle, index) == name:
                        return index
        raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        for number in range(self.manifest.events):
            with self._reading() as (txn, handle):
                event = self._event(txn.get(event_key(number), db=handle.meta), number)
            yield event

    @override
    def close(self) -> None:
        self.handle = None

    def _documents(
        self, txn: lmdb.Transaction, handle: LMDBHandle, indices: Sequence[int]
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the documents of records and their indices, as views into the map, valid until the transaction ends."""
        get, length, records = txn.get, handle.manifest.length, handle.records
        try:
            for position, index in enumerate(indices):
                if not position % _PREFETCHED:
                    handle.shared.prefetch(indices[position : position + _PREFETCHED])
                if not 0 <= index < length:
                    self._check_index(index)
                document: Any = get(record_key(index), None, records)
                if document is None:
                    raise self._damaged(index, "it is missing")
                yield document, index
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        with self._reading() as (txn, handle):
            return {name: bytes(self._chunk(txn, handle, name, number)) for name in COLUMNS}

    def _chunks(self, txn: lmdb.Transaction, handle: LMDBHandle, column: str) -> Iterator[memoryview]:
        chunks = -(-handle.manifest.length // CHUNK)
        if chunks > txn.stat(handle.meta)["entries"]:  # checked before a wrong manifest makes anyone allocate memory
            raise DamagedStoreError(
                f"{self.place}: its manifest says {handle.manifest.length:,} records, but the chunks of its column "
                f"{column} are missing; copy it again from the original"
            )
        return (self._chunk(txn, handle, column, number) for number in range(chunks))

    def _chunk(self, txn: lmdb.Transaction, handle: LMDBHandle, column: str, number: int) -> memoryview:
        stored = txn.get(column_key(column, number), db=handle.meta)
        chunk = whole_chunk(column, number, stored, handle.manifest.length)
        if chunk is None:
            raise DamagedStoreError(
                f"{self.place}: chunk {number} of its column {column} is missing or damaged; "
                "copy it again from the original"
            )
        return chunk

    def _name(self, txn: lmdb.Transaction, handle: LMDBHandle, index: int) -> str:
        return name_at(self._chunk(txn, handle, "name", index // CHUNK), index % CHUNK)

    @contextmanager
    def _reading(self) -> Iterator[tuple[lmdb.Transaction, LMDBHandle]]:
        """Begin a transaction and translate LMDB's errors inside it, which must all be about this file."""
        handle = self._open()
        with env.gate, self._begin(handle) as txn:
            try:
                yield txn, handle
            except lmdb.Error as error:
                raise translate(error, self.place) from error

    def _begin(self, handle: LMDBHandle) -> lmdb.Transaction:
        """Begin a transaction whose values are views into the map, valid until it ends."""
        try:
            return handle.env.begin(buffers=True)
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    def _open(self) -> LMDBHandle:
        handle = self.handle
        if handle is None or handle.shared.pid != os.getpid():
            try:
                with env.gate:
                    handle = self.handle = LMDBHandle(self._path, self.place)
            except OSError as error:
                raise self._absent(error) from error
            except lmdb.Error as error:
                raise translate(error, self.place) from error
        return handle

    def _absent(self, error: OSError) -> Exception:
        if isinstance(error, PermissionError):
            return StoreAccessError(f"{self.place} may not be read: {error.strerror}")
        if os.path.exists(os.path.realpath(self._path) + PARTIAL):  # noqa: PTH110 - the path may be any str
            return NotAStoreError(
                f"{self.place} is not there, but its unfinished conversion is: "
                "dbloader convert with --resume goes on with it"
            )
        return StoreNotFoundError(f"{self.place} does not exist; dbloader convert makes a store")

    def __getstate__(self) -> dict[str, Any]:
        # With the absolute path: a spawned worker may start in another working directory.
        return {"place": self.place, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, handle=None)
