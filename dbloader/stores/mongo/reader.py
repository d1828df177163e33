"""Read one store on a server: its manifest, records, columns and events."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError
from pymongo.read_preferences import Primary, PrimaryPreferred

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreNotFoundError
from dbloader.records.columns import CHUNK, whole_chunk
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.gridfs import LargeRecords
from dbloader.stores.mongo.schema import (
    MANIFEST,
    STORE,
    column_key,
    event_key,
    index_of,
    is_id,
    prefix_range,
    records_collection,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo.collection import Collection

    from dbloader.stores.mongo.uri import MongoURI

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# How long to look for a primary before the other members are asked.
_PRIMARY_SECONDS = 2.0
# Records in one query: the list of their _ids must fit into a document.
_RECORDS_AT_ONCE = 2**16
# Chunks of a column in one query: 64 of names are about 8 MB.
_CHUNKS_AT_ONCE = 64


class MongoReader:
    """One process's connection to a place, and the store that was there when it connected.

    Records are read from the members that the place's read preference names. The rest is small, and comes from the
    primary if there is one: a secondary may not have all of it yet.

    Attributes:
        newest: The collection ``records``, read from the primary if there is one.
        may_lag: Whether ``records`` may be read from a member that does not have all of them yet.
    """

    def __init__(self, place: MongoURI) -> None:
        self.place = place
        self.connection = Connection(place)
        self.pid = self.connection.pid
        database = self.connection.database
        self.may_lag = database.read_preference != Primary()
        newest = PrimaryPreferred() if self.may_lag else Primary()
        self.meta: Collection[Any] = database.get_collection(place.collection + MANIFEST, read_preference=newest)
        try:
            self.store, self.manifest = self._find_store()
        except BaseException:
            self.connection.close()  # the error's traceback keeps this object alive
            raise
        self.records: Collection[Any] = database[records_collection(place.collection, self.store)]
        self.newest = self.records.with_options(read_preference=newest)
        self.large = LargeRecords(database, place.collection, self.store, newest)

    def _find_store(self) -> tuple[str, Manifest]:
        if self.may_lag:
            # PrimaryPreferred takes any member that is known. So wait until the primary is.
            with suppress(PyMongoError), pymongo.timeout(_PRIMARY_SECONDS):
                self.meta.with_options(read_preference=Primary()).find_one({"_id": STORE}, {"_id": 1})
        document = self.connection.retry(lambda: self.meta.find_one({"_id": STORE}))
        if document is None or "store" not in document:
            raise self._no_store(document or {})
        store, manifest = document["store"], document.get("manifest")
        if not is_id(store) or not isinstance(manifest, dict):
            raise NotAStoreError(
                f"{self.place.redacted} is not a dbloader store: another program made {self.meta.name}, "
                "or it is damaged"
            )
        return store, Manifest.decode(bson.encode(manifest), self.place.redacted)

    def documents_at(self, indices: Sequence[int], *, raw: bool = False) -> dict[int, Any]:
        """Return the documents of some records, without repeats, by their indices, without those that are missing.

        With ``raw``, as RawBSONDocuments. Decoded ones are twice as fast: the driver copies each raw document.
        """
        found: dict[int, Any] = {}

        def find_missing() -> None:
            # Called again after a failure, it asks only for what the attempt before did not bring.
            wanted = [index for index in part if index not in found]
            # Without batch_size the first answer has 101 documents.
            for document in collection.find({"_id": {"$in": wanted}}, batch_size=len(wanted)):
                index = index_of(document.raw) if raw else document["_id"]
                if index is not None:
                    found[index] = document

        for records in (self.records, self.newest) if self.may_lag else (self.records,):
            missing = [index for index in indices if index not in found]
            for start in range(0, len(missing), _RECORDS_AT_ONCE):
                part = missing[start : start + _RECORDS_AT_ONCE]
                collection = records.with_options(codec_options=_RAW) if raw else records
                self.connection.retry(find_missing)
        if len(found) < len(indices):
            self.check_records()
        return found

    def check_records(self) -> None:
        """Check that the server has any records of the store; it has none once the store was replaced."""
        if self.manifest.length and self.connection.retry(lambda: self.newest.find_one({}, {"_id": 1})) is None:
            raise self._lost("its collection of records is gone")

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column."""
        return next(self._chunks(column, range(number, number + 1)))

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Their number is checked before anyone allocates memory for the records."""
        wanted = -(-self.manifest.length // CHUNK)
        keys = {"_id": prefix_range(f"{self.store}/column/{column}/")}
        there = self.connection.retry(lambda: self.meta.count_documents(keys, hint="_id_"))
        if there < wanted:
            raise self._lost(f"its column {column} has {there} of {wanted} chunks; some are missing or damaged")
        return self._chunks(column, range(wanted))

    def _chunks(self, column: str, numbers: range) -> Iterator[memoryview]:
        for first in range(numbers.start, numbers.stop, _CHUNKS_AT_ONCE):
            part = range(first, min(first + _CHUNKS_AT_ONCE, numbers.stop))
            keys = [column_key(self.store, column, number) for number in part]
            found = self.connection.retry(
                lambda: {found["_id"]: found.get("data") for found in self.meta.find({"_id": {"$in": keys}})}  # noqa: B023
            )
            for number, key in zip(part, keys, strict=True):
                stored = found.pop(key, None)
                chunk = whole_chunk(column, number, stored, self.manifest.length, self.manifest.salt)
                if chunk is None:
                    raise self._lost(f"chunk {number} of its column {column} is missing or damaged")
                yield chunk

    def events(self, first: int) -> list[bytes]:
        """Return the documents of some events of the report, from one on; an empty list after the last."""
        keys = {**prefix_range(f"{self.store}/event/"), "$gte": event_key(self.store, first)}
        found = self.connection.retry(lambda: list(self.meta.find({"_id": keys}, sort=[("_id", 1)], limit=CHUNK)))
        events = [document.get("event") for document in found]
        for number, (document, event) in enumerate(zip(found, events, strict=True), first):
            if document["_id"] != event_key(self.store, number) or not isinstance(event, dict):
                raise DamagedStoreError(f"{self.place.redacted}: line {number} of its report is missing or damaged")
        if not events and self.manifest.length and not self._is_published():
            self.chunk("crc32", 0)  # raises if the store has been removed
        return [bson.encode(event) for event in events]

    def _lost(self, what: str) -> Exception:
        """Return the error for a part of the store that is missing."""
        if self._is_published():
            return DamagedStoreError(f"{self.place.redacted}: {what}; convert again")
        return NotAStoreError(
            f"the store at {self.place.redacted} has been replaced or removed since it was opened, "
            "and its records are gone: open it again"
        )

    def _is_published(self) -> bool:
        mine = {"_id": STORE, "store": self.store}
        return self.connection.retry(lambda: self.meta.find_one(mine, {"_id": 1})) is not None

    def _no_store(self, document: Mapping[str, Any]) -> Exception:
        """Return the error for a place without a finished store."""
        database, name = self.connection.database, self.place.redacted
        if "partial" in document:
            return NotAStoreError(
                f"{name} is not a finished store: its conversion is under way or was interrupted "
                "(dbloader convert with --resume goes on with it)"
            )
        if self.connection.retry(lambda: database.list_collection_names(filter={"name": self.place.collection})):
            return NotAStoreError(
                f"{name} is not a dbloader store, or its conversion is not finished: "
                f"there is no manifest in {self.meta.full_name}"
            )
        return StoreNotFoundError(f"{name} does not exist; dbloader convert makes a store")
