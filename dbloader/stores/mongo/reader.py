"""Read one store on a server: its manifest, records, columns and events. Find records by queries."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError
from pymongo.read_preferences import Primary, PrimaryPreferred
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreNotFoundError
from dbloader.records.columns import CHUNK, whole_chunk
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.gridfs import LargeRecords
from dbloader.stores.mongo.schema import (
    COLUMNS_INDEX,
    COVERED,
    LABEL_INDEX,
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
# Look for a primary this long before reading from other members.
_PRIMARY_SECONDS = 2.0
# Number of records in one query. The list of their _ids must fit into a document.
_RECORDS_AT_ONCE = 2**16
# Number of column chunks in one query. 64 chunks of names take about 8 MB.
_CHUNKS_AT_ONCE = 64
# Number of indices in one answer. The driver makes a small dict for each index.
_INDICES_AT_ONCE = 2**14


class MongoReader:
    """One process's connection to the URI ``place``, and the store that was there when the process connected.

    Records are read from members of the replica set according to the URI's read preference. All other data are small,
    and are read from the primary, because a secondary may lag behind. If there is no primary and the read preference
    allows secondaries, all data are read from a secondary.

    Attributes:
        records: The collection of the store's records, read according to the URI's read preference.
        newest: The same collection, read from the primary if there is one.
    """

    def __init__(self, place: MongoURI) -> None:
        self.place = place
        self.connection = Connection(place)
        self.pid = self.connection.pid
        database = self.connection.database
        preference = Primary() if database.read_preference == Primary() else PrimaryPreferred()
        # Override the URI's option w=0, which GridFS refuses even for reading.
        newest = database.with_options(read_preference=preference, write_concern=WriteConcern())
        self.meta: Collection[Any] = newest[place.collection + MANIFEST]
        try:
            self.store, self.manifest = self._find_store()
        except BaseException:
            self.connection.close()  # if a caller kept the error, its traceback would keep the client open
            raise
        self.records: Collection[Any] = database[records_collection(place.collection, self.store)]
        self.newest: Collection[Any] = newest[self.records.name]
        self.large = LargeRecords(newest, place.collection, self.store)

    def _find_store(self) -> tuple[str, Manifest]:
        if self.meta.read_preference != Primary():
            # With PrimaryPreferred, the driver reads from any member until the primary is found. The ping finds it.
            with suppress(PyMongoError), pymongo.timeout(_PRIMARY_SECONDS):
                self.connection.database.command("ping")
        document = self.connection.retry(lambda: self.meta.find_one({"_id": STORE})) or {}
        store, manifest, name = document.get("store"), document.get("manifest"), self.place.redacted
        if is_id(store) and isinstance(manifest, dict):
            return store, Manifest.decode(bson.encode(manifest), name)
        if "partial" in document:
            raise NotAStoreError(
                f"{name} is not a finished store: its conversion is under way or was interrupted "
                "(dbloader convert --resume continues it)"
            )
        if "store" in document or self.connection.retry(
            lambda: self.connection.database.list_collection_names(filter={"name": self.place.collection})
        ):
            raise NotAStoreError(
                f"{name} is not a dbloader store: {self.meta.full_name} has no manifest, or another program's manifest"
            )
        raise StoreNotFoundError(f"{name} does not exist; dbloader convert makes a store")

    # ---- Records

    def documents_at(self, indices: Sequence[int], *, raw: bool = False) -> dict[int, Any]:
        """Return a dict that maps the index of each record to its document. Missing records are not in the dict.

        Args:
            indices: Indices of records, without repeats.
            raw: Return RawBSONDocuments, not dicts. Raw documents take twice as long, because the driver copies them.
        """
        found: dict[int, Any] = {}

        def find_missing() -> None:
            # If `retry` repeats this call, request only the documents that the failed call did not return.
            wanted = [index for index in part if index not in found]
            # Without batch_size, the server's first answer contains at most 101 documents.
            for document in collection.find({"_id": {"$in": wanted}}, batch_size=len(wanted)):
                index = index_of(document.raw) if raw else document["_id"]
                if index is not None:
                    found[index] = document

        for records in (self.records, self.newest):
            missing = [index for index in indices if index not in found]
            for start in range(0, len(missing), _RECORDS_AT_ONCE):
                part = missing[start : start + _RECORDS_AT_ONCE]
                collection = records.with_options(codec_options=_RAW) if raw else records
                self.connection.retry(find_missing)
        if len(found) < len(indices):
            self.check_records()
        return found

    def large_document(self, file: object) -> bytes:
        """Return the document of a record from its GridFS file, or raise DamagedRecordError."""
        return self.connection.retry(lambda: self.large.get(file))

    def check_records(self) -> None:
        """Raise an error if the server has no records of the store, for example because the store was replaced."""
        if self.manifest.length and self.connection.retry(lambda: self.newest.find_one({}, {"_id": 1})) is None:
            raise self._lost("its collection of records is missing")

    def find_name(self, name: str) -> int | None:
        """Return the index of the first record with a name; None if no record has the name."""
        query = {"name": name, **self._in_store}
        for records in (self.records, self.newest):
            found = self.connection.retry(
                lambda: records.find_one(query, {"_id": 1}, sort=[("name", 1), ("_id", 1)]),  # noqa: B023 - called here
                scan=records,
            )
            if found is not None:
                return int(found["_id"])
        self.check_records()
        return None

    # ---- Queries

    def find_indices(self, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the indices of the records that the server finds by a query: int64, shape (records,), ascending.

        Records that the server has lost are silently missing; see ``check_counts``.
        """
        fields = _fields(query)
        # Without this hint, the server would use the index of a single field, and then read whole documents.
        hint = COLUMNS_INDEX if len(fields) > 1 and fields <= set(COVERED) else None
        condition = {"$and": [self._in_store, dict(query)]}

        def find() -> np.ndarray[Any, Any]:
            found = self.newest.find(condition, {"_id": 1}, batch_size=_INDICES_AT_ONCE, hint=hint)
            return np.fromiter((record["_id"] for record in found), np.int64)

        return np.unique(self.connection.retry(find, scan=self.newest))

    def check_counts(self, query: Mapping[str, Any] | None = None) -> None:
        """Raise DamagedStoreError if the number of records on the server differs from the manifest.

        If a query compares labels, check the number of records with each label too. Without this check, the query could
        silently miss records that were lost, or records with edited labels.
        """
        manifest = self.manifest
        expected: dict[Any, int] = {None: manifest.length}
        asks_label = any(field == "label" or field.startswith("$") for field in _fields(query or {}))
        if asks_label and manifest.label_counts is not None:
            expected = {**manifest.label_counts, None: manifest.length - manifest.labelled}
        by_label = len(expected) > 1
        group = {"_id": "$label" if by_label else None, "records": {"$sum": 1}}
        pipeline = [{"$match": self._in_store}, {"$group": group}]
        hint = LABEL_INDEX if by_label else "_id_"

        def count() -> dict[str, int]:
            return {repr(found["_id"]): found["records"] for found in self.newest.aggregate(pipeline, hint=hint)}

        counts = self.connection.retry(count, scan=self.newest)
        for label, wanted in expected.items():
            found = counts.pop(repr(label), 0)
            if found != wanted:
                which = ""
                if by_label:
                    which = " without a label" if label is None else f" of label {label}"
                raise self._incomplete(f"{found} records{which}, but {wanted} were written")
        if counts:
            raise self._incomplete(f"labels that were not written by dbloader: {', '.join([*counts][:3]):.200}")

    def _incomplete(self, what: str) -> Exception:
        self.check_records()
        return DamagedStoreError(
            f"{self.place.redacted} has {what}, so no query can be answered: "
            "convert again, or copy the store again from an undamaged copy"
        )

    @property
    def _in_store(self) -> dict[str, Any]:
        """The query for the store's records. Interrupted commits may have stored records beyond the store's end."""
        return {"_id": {"$gte": 0, "$lt": self.manifest.length}}

    # ---- Columns and events

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column."""
        return next(self._chunks(column, range(number, number + 1)))

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Raise DamagedStoreError at once if the server has too few chunks."""
        wanted = -(-self.manifest.length // CHUNK)
        keys = {"_id": prefix_range(f"{self.store}/column/{column}/")}
        count = self.connection.retry(lambda: self.meta.count_documents(keys, hint="_id_"))
        if count < wanted:
            raise self._lost(f"its column {column} has {count} of {wanted} chunks; some are missing or damaged")
        return self._chunks(column, range(wanted))

    def _chunks(self, column: str, numbers: range) -> Iterator[memoryview]:
        for first in range(numbers.start, numbers.stop, _CHUNKS_AT_ONCE):
            part = range(first, min(first + _CHUNKS_AT_ONCE, numbers.stop))
            keys = [column_key(self.store, column, number) for number in part]
            found = self.connection.retry(
                lambda: {found["_id"]: found.get("data") for found in self.meta.find({"_id": {"$in": keys}})}  # noqa: B023 - called here
            )
            for number, key in zip(part, keys, strict=True):
                stored = found.pop(key, None)
                chunk = whole_chunk(column, number, stored, self.manifest.length, self.manifest.salt)
                if chunk is None:
                    raise self._lost(f"chunk {number} of its column {column} is missing or damaged")
                yield chunk

    def events(self, first: int) -> list[bytes]:
        """Return up to CHUNK lines of the report as BSON, from line ``first`` on. A damaged line is b""."""
        keys = {**prefix_range(f"{self.store}/event/"), "$gte": event_key(self.store, first)}
        found = self.connection.retry(lambda: list(self.meta.find({"_id": keys}, sort=[("_id", 1)], limit=CHUNK)))
        if not found:
            raise self._lost(f"line {first} of its report is missing")
        events = [document.get("event") for document in found]
        return [bson.encode(event) if isinstance(event, dict) else b"" for event in events]

    def _lost(self, what: str) -> Exception:
        """Return the error for a missing part of the store."""
        if self._is_published():
            return DamagedStoreError(f"{self.place.redacted}: {what}; convert again")
        return NotAStoreError(
            f"the store at {self.place.redacted} has been replaced or removed since it was opened, "
            "so its records no longer exist: open the store again"
        )

    def _is_published(self) -> bool:
        mine = {"_id": STORE, "store": self.store}
        return self.connection.retry(lambda: self.meta.find_one(mine, {"_id": 1})) is not None


def _fields(query: Mapping[str, Any]) -> set[str]:
    """Return the fields in a query. Operators count as fields, except ``$and``, ``$or`` and ``$nor``."""
    fields: set[str] = set()
    for key, value in query.items():
        if key in ("$and", "$or", "$nor") and isinstance(value, (list, tuple)):
            for part in value:
                fields |= _fields(part)
        else:
            fields.add(key)
    return fields
