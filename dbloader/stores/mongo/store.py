"""Read a store in a MongoDB database."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from bson.errors import BSONError
from typing_extensions import override

from dbloader._places import is_mongo
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    NotAStoreError,
    RecordNotFoundError,
    StoreNotFoundError,
    StoreVersionError,
)
from dbloader.records.decode import decode, decode_encoded, decode_values
from dbloader.stores.base import Store
from dbloader.stores.mongo.gridfs import STUB, file_of, stub_matches
from dbloader.stores.mongo.reader import MongoReader
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from bson.raw_bson import RawBSONDocument

    from dbloader.records.record import EncodedRecord, Record

Decoded = TypeVar("Decoded")


class MongoStore(Store):
    """A store in a MongoDB database.

    Each process makes its own client at its first read, and its threads share the client. When a server restarts, steps
    down or drops a connection, reads are repeated for up to a minute.

    Args:
        place: ``mongodb://host/database.collection`` or ``mongodb+srv://...``, with any options of MongoDB's connection
            strings. Messages never contain the credentials. A pickle contains the credentials only if multiprocessing
            sends the pickle to a new process.
    """

    handle: MongoReader | None = None

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = parse(place)
        self.place = self._place.redacted

    @property
    def uri(self) -> str:
        """The given URI, with its credentials."""
        return self._place.uri

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        reader = self.open_handle()
        try:
            found = self._find(reader, indices)
        except DamagedStoreError:
            # The driver cannot decode one of the documents. To find it, decode each document separately.
            return self._decode_raw(reader, indices, decode)
        return [self._to_record(reader, int(index), found.get(index)) for index in indices]

    @override
    def encoded(self, indices: Sequence[int], *, elements: bool = True) -> list[EncodedRecord]:
        return self._decode_raw(self.open_handle(), indices, decode_encoded)

    @override
    def find(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(
                f"find takes the name of a record, a str, got {name!r:.100}; "
                "MongoDataset(place, query=...) finds records by a query"
            )
        found = None
        with suppress(UnicodeEncodeError):  # no record has a name that is not valid UTF-8
            found = self.open_handle().find_name(name) if name else None
        if found is None:
            raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")
        return found

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        number = 0
        while number < self.manifest.events:
            for event in self.open_handle().events(number):
                yield self._event(event, number)
                number += 1

    def matching(self, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the indices of the records that a query of MongoDB finds: int64, shape (records,), ascending.

        If a query compares only name, label, width and height, the server reads only an index. But for ``$or``,
        ``$exists`` and ``$not``, it also reads documents.

        Raises:
            DamagedStoreError: The server has lost records, so the answer could be incomplete.
        """
        reader = self.open_handle()
        reader.check_counts(query)
        return reader.find_indices(query)

    def _find(self, reader: MongoReader, indices: Sequence[int], *, raw: bool = False) -> dict[int, Any]:
        self._check_indices(indices, reader.manifest.length)
        return reader.documents_at(list(dict.fromkeys(map(int, indices))), raw=raw)

    def _to_record(self, reader: MongoReader, index: int, values: dict[str, Any] | None) -> Record:
        if values is None:
            raise self._damaged(index, "it is missing")
        salt = reader.manifest.salt
        try:
            if STUB in values:
                return decode(reader.large_document(values[STUB]), index, salt)
            return decode_values(values, index, salt)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    def _decode_raw(
        self, reader: MongoReader, indices: Sequence[int], decode_one: Callable[[bytes, int, int], Decoded]
    ) -> list[Decoded]:
        found, decoded = self._find(reader, indices, raw=True), []
        for index in map(int, indices):
            document = self._to_bytes(reader, index, found.get(index))
            try:
                decoded.append(decode_one(document, index, reader.manifest.salt))
            except DamagedRecordError as error:
                raise self._damaged(index, str(error)) from error
        return decoded

    def _to_bytes(self, reader: MongoReader, index: int, found: RawBSONDocument | None) -> bytes:
        if found is None:
            raise self._damaged(index, "it is missing")
        document = bytes(found.raw)
        try:
            file = file_of(document)
        except (BSONError, ValueError, RecursionError) as error:
            raise self._damaged(index, f"its BSON cannot be decoded: {error}") from error
        if file is None:
            return document
        try:
            large = reader.large_document(file)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error
        if not stub_matches(document, large, file):
            raise self._damaged(index, "its document disagrees with its file in GridFS")
        return large

    @override
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        if not is_mongo(place):
            return False
        own = self.open_handle().store
        with (
            suppress(StoreNotFoundError, NotAStoreError, StoreVersionError, DamagedStoreError),
            MongoStore(place) as other,
        ):
            return other.place == self.place or other.open_handle().store == own
        return False

    @override
    def open_handle(self) -> MongoReader:
        reader = self.handle
        if reader is None or reader.pid != os.getpid():
            reader = self.handle = MongoReader(self._place)
        return reader
