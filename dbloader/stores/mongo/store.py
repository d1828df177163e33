"""Reading a store in a MongoDB database."""

from __future__ import annotations

import os
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import numpy as np
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from typing_extensions import override

from dbloader.errors import DamagedRecordError, DamagedStoreError, RecordNotFoundError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, join_values
from dbloader.records.decode import decode, decode_values
from dbloader.records.names import join_names, name_at
from dbloader.stores.base import Store
from dbloader.stores.mongo.gridfs import LostError
from dbloader.stores.mongo.query import check_counts, checked_index, found_by, matching
from dbloader.stores.mongo.reader import MongoReader
from dbloader.stores.mongo.schema import STUB, file_of, fits_stub, index_of
from dbloader.stores.mongo.uri import MongoURI, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pymongo.collection import Collection

    from dbloader.records.manifest import Manifest
    from dbloader.records.names import Names
    from dbloader.records.record import Record
    from dbloader.stores.mongo.reader import Ask

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# Records asked for at a time: more _ids would come near the limit of a document.
_ASKED = 2**16


class MongoStore(Store):
    """A store in a MongoDB database.

    Each process has a client of its own, made at its first read, which its threads share. What a server leaves
    unanswered that restarts, steps down or drops a connection is asked for again, for up to a minute.

    Args:
        place: ``mongodb://host/database.collection`` or ``mongodb+srv://...``, with the options of MongoDB's connection
            strings. Credentials come into no message, and into a pickle only on its way to a process that is being
            started by multiprocessing.

    Raises:
        PlaceError: The place is no such URI, or names no database or collection.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = parse(place)
        self.place = self._place.shown
        self._handle: MongoReader | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._open().manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        # The driver decodes large binaries over twice as fast as it hands out raw documents.
        handle = self._open()

        def ask(collection: Collection[Any], wanted: list[Any]) -> Iterable[tuple[Any, Any]]:
            return (
                (document["_id"], document) for document in collection.find({"_id": {"$in": wanted}}, **_one(wanted))
            )

        try:
            found = self._found(handle, indices, ask)
        except DamagedStoreError:  # the driver cannot decode one of them: each by itself says which
            return [self._decode(document, int(index)) for index, document in zip(indices, self.documents(indices))]  # noqa: B905
        return [self._record(handle, int(index), found.get(index)) for index in indices]

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        handle = self._open()

        def ask(collection: Collection[Any], wanted: list[Any]) -> Iterable[tuple[Any, Any]]:
            raw = collection.with_options(codec_options=_RAW)
            return ((index_of(found.raw), found) for found in raw.find({"_id": {"$in": wanted}}, **_one(wanted)))

        found = self._found(handle, indices, ask)
        return [self._document(handle, int(index), found.get(index)) for index in indices]

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in DTYPES:
            raise ValueError(f"a column is one of {', '.join(DTYPES)}, got {name!r}")
        handle = self._open()
        handle.check_chunks(name)  # before there is room made for as many records as the manifest says
        return join_values(handle.chunks(name), name, handle.manifest.length)

    @override
    def names(self) -> Names:
        handle = self._open()
        handle.check_chunks("name")
        return join_names(handle.chunks("name"), handle.manifest.length)

    @override
    def name(self, index: int) -> str | None:
        handle = self._open()
        self._check_index(index)
        (chunk,) = handle.chunks("name", range(index // CHUNK, index // CHUNK + 1))
        return name_at(chunk, index % CHUNK) or None

    @override
    def find(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(
                f"find takes the name of a record, a str, got {name!r:.100}; "
                "MongoDataset(place, query=...) finds records by a query"
            )
        handle = self._open()

        def ask(collection: Collection[Any]) -> Any:
            of_name = {"name": name, "_id": {"$gte": 0, "$lt": handle.manifest.length}}
            return collection.find_one(of_name, {"_id": 1}, sort=[("name", 1), ("_id", 1)])

        found = handle.of_records(ask, scan=True) if _is_text(name) else None
        if found is None and _is_text(name):
            found = handle.of_records(ask, newest=True, scan=True) if handle.may_lag else None
            handle.check_here()
        if found is None:
            raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")
        return checked_index(self.place, found["_id"])

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        number = 0
        while number < self.manifest.events:
            events = self._open().events(number)
            if not events:
                self._event(None, number)
            for event in events:
                yield self._event(event, number)
                number += 1

    def matching(self, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the indices of the records that a query finds: int64, shape (records,), ascending.

        A query that compares nothing but name, label, width and height is answered from an index, without reading a
        document; but not with ``$or``, ``$exists`` or ``$not``.

        Args:
            query: As MongoDB's ``find`` takes it.

        Raises:
            StoreError: The server does not understand the query.
            DamagedStoreError: Records are missing, or have other labels than the manifest says.
        """
        return matching(self._open(), query)

    def named(self, name: str) -> np.ndarray[Any, Any]:
        """Return the indices of the records of a name that the server has: int64, shape (records,), ascending."""
        if not _is_text(name):
            return np.zeros(0, np.int64)
        return found_by(self._open(), {"name": name})

    def check_counts(self) -> None:
        """Compare the number of records that the server has with the manifest.

        Raises:
            DamagedStoreError: Records are missing.
        """
        check_counts(self._open(), by_label=False)

    @override
    def close(self) -> None:
        self._handle = None

    def _found(self, handle: MongoReader, indices: Sequence[int], ask: Ask) -> dict[int, Any]:
        """Return the documents at some indices by their indices; one that is missing is not among them."""
        length = handle.manifest.length
        for index in indices:
            if not 0 <= index < length:
                self._check_index(index)
        wanted = list(dict.fromkeys(map(int, indices)))
        found: dict[int, Any] = {}
        for start in range(0, len(wanted), _ASKED):
            found |= handle.documents(wanted[start : start + _ASKED], ask)
        return found

    def _record(self, handle: MongoReader, index: int, values: dict[str, Any] | None) -> Record:
        if values is None:
            raise self._damaged(index, "it is missing")
        large = self._large(handle, index, values[STUB]) if STUB in values else None
        try:
            return decode_values(values, index) if large is None else decode(large, index)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    def _document(self, handle: MongoReader, index: int, document: RawBSONDocument | None) -> bytes:
        if document is None:
            raise self._damaged(index, "it is missing")
        data = bytes(document.raw)
        try:
            file = file_of(data)
        except (BSONError, ValueError, RecursionError) as error:
            raise self._damaged(index, f"its BSON cannot be decoded: {error}") from error
        if file is None:
            return data
        whole = self._large(handle, index, file)
        if not fits_stub(data, whole, file):
            raise self._damaged(index, "its fields among the records are not those of its file in GridFS")
        return whole

    def _large(self, handle: MongoReader, index: int, file: object) -> bytes:
        try:
            return handle.connection.run(lambda: handle.large.get(file))
        except LostError as error:
            raise self._damaged(index, str(error)) from error

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        handle = self._open()
        return {name: bytes(next(handle.chunks(name, range(number, number + 1)))) for name in COLUMNS}

    def _open(self) -> MongoReader:
        handle = self._handle
        if handle is None or handle.pid != os.getpid():
            handle = self._handle = MongoReader(self._place)
        return handle

    def __copy__(self) -> MongoStore:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> MongoStore:
        # Within this process the credentials come along.
        copied = type(self).__new__(type(self))
        copied.__setstate__({"place": self.place, "_place": tuple(self._place)})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # As multiprocessing does with its own keys: a secret goes through the pipe to a process that is being started,
        # and into no pickle that may be kept.
        place = self._place if get_spawning_popen() is not None else self._place.without_credentials()
        return {"place": self.place, "_place": tuple(place)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _place=MongoURI(*state["_place"]), _handle=None)


def _one(wanted: Sequence[Any]) -> dict[str, int]:
    """Ask for all documents at once, not for 101 of them at first."""
    return {"batch_size": len(wanted)}


def _is_text(name: str) -> bool:
    """Return whether a record can have a name at all."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False
