"""A store in one LMDB file: sub-database ``records`` (8-byte big-endian index -> document) and ``meta``."""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import bson
import lmdb
from typing_extensions import override

from dbloader.columns import CHUNK, DTYPES, join_names, join_values, name_at, name_hash
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    RecordNotFoundError,
    StoreAccessError,
    StoreNotFoundError,
)
from dbloader.manifest import Manifest
from dbloader.stores import environments
from dbloader.stores.base import Store
from dbloader.stores.name_index import bucket_bits, bucket_of, candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from dbloader.columns import Names
    from dbloader.records import Record

RECORDS, META = b"records", b"meta"
MANIFEST, PROGRESS, EVENT = b"manifest", b"progress", b"event/"
PARTIAL = ".partial"

record_key = struct.Struct(">Q").pack


def column_key(name: str, chunk: int) -> bytes:
    """Gives the key in ``meta`` of one chunk of a column."""
    return b"column/%s/%s" % (name.encode(), record_key(chunk))


def bucket_key(number: int) -> bytes:
    """Gives the key in ``meta`` of one bucket of the name index."""
    return b"name_index/" + struct.pack(">I", number)


def event_key(number: int) -> bytes:
    """Gives the key in ``meta`` of one event of the report."""
    return EVENT + record_key(number)


class _Handle:
    """What one process opens: the environment it shares with other stores, the sub-databases, the manifest."""

    def __init__(self, place: str) -> None:
        self.shared = environments.acquire(place)
        env = self.env = self.shared.env
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        size = os.stat(place).st_size  # noqa: PTH116 - a number is all that is wanted of it
        if size < used:
            raise DamagedStoreError(
                f"{place} is cut short: it has {size} bytes of {used}; copy it again from where it is whole",
            )
        try:
            self.records = env.open_db(RECORDS, create=False)
            self.meta = env.open_db(META, create=False)
        except lmdb.NotFoundError as error:
            raise NotAStoreError(f"{place} is an LMDB file, but not a dbloader store") from error
        with env.begin() as txn:
            data = txn.get(MANIFEST, db=self.meta)
        if data is None:
            raise NotAStoreError(
                f"{place} is not a finished store: its conversion was interrupted "
                "(dbloader convert with --resume goes on with it)",
            )
        self.manifest = Manifest.decode(data, place)


class LMDBStore(Store):
    """A store in one LMDB file.

    Args:
        place: Path of the file.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = os.fspath(place)
        self._handle: _Handle | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._open().manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        # The document is decoded where it lies in the map; only what the record holds is copied.
        return self._each(indices, self._decode)

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        return self._each(indices, lambda document, _: bytes(document))

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in DTYPES:
            raise ValueError(f"a column is one of {', '.join(DTYPES)}, got {name!r}")
        length = len(self)
        with self._reading(self._open()) as txn:
            return join_values(self._chunks(txn, name, length), name, length)

    @override
    def names(self) -> Names:
        length = len(self)
        with self._reading(self._open()) as txn:
            return join_names(self._chunks(txn, "name", length), length)

    @override
    def name(self, index: int) -> str | None:
        self._check_index(index)
        with self._reading(self._open()) as txn:
            return name_at(self._get(txn, column_key("name", index // CHUNK)), index % CHUNK) or None

    @override
    def find(self, name: str) -> int:
        handle = self._open()
        try:
            wanted = name.encode()
        except UnicodeEncodeError:
            wanted = b""
        bits = bucket_bits(handle.manifest.named)
        with self._reading(handle) as txn:
            bucket = txn.get(bucket_key(bucket_of(name_hash(wanted), bits)), db=handle.meta)
            for index in candidates(bucket, name_hash(wanted)) if wanted and bucket is not None else ():
                if name_at(self._get(txn, column_key("name", index // CHUNK)), index % CHUNK) == name:
                    return index
        raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            handle = self._open()
            with self._reading(handle) as txn:
                data = txn.get(event_key(number), db=handle.meta)
                if data is None:
                    return
                event = bson.decode(data)
            yield event
            number += 1

    @override
    def close(self) -> None:
        self._handle = None

    def _each(self, indices: Sequence[int], function: Callable[[Any, int], Any]) -> list[Any]:
        handle = self._open()
        length, records = handle.manifest.length, handle.records
        results = []
        with self._reading(handle) as txn:
            get = txn.get
            for index in indices:
                if not 0 <= index < length:
                    self._check_index(index)
                document = get(record_key(index), None, records)
                if document is None:
                    raise self._damaged(index, "it is missing")
                results.append(function(document, index))
        return results

    def _chunks(self, txn: lmdb.Transaction, column: str, length: int) -> Iterator[memoryview]:
        return (self._get(txn, column_key(column, number)) for number in range(-(-length // CHUNK)))

    def _get(self, txn: lmdb.Transaction, key: bytes) -> memoryview:
        value = txn.get(key, db=self._open().meta)
        if value is None:
            raise DamagedStoreError(f"{self.place} lacks {key!r}; copy it again from where it is whole")
        return value  # type: ignore[return-value]  # with buffers=True it is one

    @contextmanager
    def _reading(self, handle: _Handle) -> Iterator[lmdb.Transaction]:
        """A transaction whose values are views into the map, valid until it ends."""
        try:
            with handle.env.begin(buffers=True) as txn:
                yield txn
        except lmdb.Error as error:
            raise explained(error, self.place) from error

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None or handle.shared.pid != os.getpid():
            try:
                handle = self._handle = _Handle(self.place)
            except OSError as error:
                raise self._absent(error) from error
            except lmdb.Error as error:
                raise explained(error, self.place) from error
        return handle

    def _absent(self, error: OSError) -> Exception:
        if isinstance(error, PermissionError):
            return StoreAccessError(f"{self.place} may not be read: {error.strerror}")
        if os.path.exists(self.place + PARTIAL):  # noqa: PTH110 - the path may be any str
            return NotAStoreError(
                f"{self.place} is not there, but its unfinished conversion is: "
                "dbloader convert with --resume goes on with it",
            )
        return StoreNotFoundError(f"{self.place} does not exist; dbloader convert makes a store")

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["place"])  # type: ignore[misc]


def explained(error: lmdb.Error, place: str) -> Exception:
    """Gives the error of ours that says what an error of LMDB means for a reader."""
    if isinstance(error, lmdb.InvalidError):
        return NotAStoreError(f"{place} is not an LMDB file, so not a dbloader store")
    if isinstance(error, lmdb.VersionMismatchError):
        return NotAStoreError(f"{place} is an LMDB file of another version of LMDB: {error}")
    text = str(error)
    if os.path.isdir(place):  # noqa: PTH112 - the path may be any str
        return NotAStoreError(f"{place} is a folder; a store is one file (dbloader convert makes one of a folder)")
    if "Permission denied" in text:
        return StoreAccessError(f"{place} may not be read: {text}")
    if os.path.isfile(place) and not os.path.getsize(place):  # noqa: PTH113, PTH202 - the path may be any str
        return NotAStoreError(f"{place} is empty, so not a dbloader store")
    return DamagedStoreError(f"{place} cannot be read: {text}")
