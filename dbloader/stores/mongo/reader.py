"""What one process opens of a MongoDB store."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import bson
import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_preferences import Primary, PrimaryPreferred

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreNotFoundError
from dbloader.records.columns import CHUNK, whole_chunk
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.gridfs import LargeRecords, LostError
from dbloader.stores.mongo.schema import MANIFEST, STORE, beginning_with, column_key, event_key, is_id, own_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pymongo.collection import Collection

    from dbloader.stores.mongo.uri import MongoURI

T = TypeVar("T")
# Gives the documents in a collection that have some _ids, each with its _id.
Ask: TypeAlias = "Callable[[Collection[Any], list[int]], Iterable[tuple[int, Any]]]"

# How long a primary is looked for before the other members are asked for what should come from it.
_PRIMARY_SECONDS = 2.0
# Chunks of columns asked for at a time: 64 of names are about 8 MB.
_CHUNKS = 64


class MongoReader:
    """A client of one process, and the store that is at the place as it was opened.

    Records are read where the place's options say; all else, which is small, from the primary if there is one: a
    secondary may not have all of it yet.

    Attributes:
        pid: The process that opened it; no other may use it.
        connection: The client.
        meta: The manifest collection.
        records: The collection of its records.
        store: The store's id.
        manifest: The store's manifest.
        large: What is over the limit of a document.
        may_lag: Whether records may be read from a member that does not have all of them yet.
    """

    def __init__(self, place: MongoURI) -> None:
        self.place = place
        self.connection = Connection(place)
        self.pid = self.connection.pid
        database = self.connection.database
        self.may_lag = database.read_preference != Primary()
        self._newest = PrimaryPreferred() if self.may_lag else Primary()
        self.meta: Collection[Any] = database.get_collection(place.collection + MANIFEST, read_preference=self._newest)
        try:
            self.store, self.manifest = self._found()
        except BaseException:
            self.connection.close()  # whoever keeps the error keeps this handle
            raise
        self.records: Collection[Any] = database[own_collection(place.collection, self.store)]
        self.large = LargeRecords(database, place.collection, self.store, self._newest)

    def _found(self) -> tuple[str, Manifest]:
        """Return the id and the manifest of the store at the place."""
        if self.may_lag:
            # Members are asked as soon as they are known: until the primary is, "preferred" means nothing.
            with suppress(PyMongoError), pymongo.timeout(_PRIMARY_SECONDS):
                self.meta.with_options(read_preference=Primary()).find_one({"_id": STORE}, {"_id": 1})
        document = self.connection.run(lambda: self.meta.find_one({"_id": STORE}))
        if document is None or "store" not in document:
            raise self._absent(document or {})
        store, manifest = document["store"], document.get("manifest")
        if not is_id(store) or not isinstance(manifest, dict):
            raise NotAStoreError(
                f"{self.place.shown} is not a dbloader store: another program made {self.meta.name}, or it is damaged"
            )
        return store, Manifest.decode(bson.encode(manifest), self.place.shown)

    def of_records(self, function: Callable[[Collection[Any]], T], *, newest: bool = False, scan: bool = False) -> T:
        """Call a function with the collection of the records, until it succeeds.

        Args:
            function: What it asks.
            newest: Ask no member that may lag, if another is there.
            scan: Whether the server may have to look through all records.
        """
        asked = self.records.with_options(read_preference=self._newest) if newest else self.records
        return self.connection.run(lambda: function(asked), scan=asked if scan else None)

    def documents(self, wanted: Sequence[int], ask: Ask) -> dict[int, Any]:
        """Return the documents at some indices by their indices; one that is missing is not among them.

        Raises:
            NotAStoreError: The store has been replaced, and its records are gone.
            DamagedStoreError: All of its records are gone.
        """
        found: dict[int, Any] = {}

        def ask_for_the_rest(collection: Collection[Any]) -> None:
            # What an attempt before has found is not asked for again.
            found.update(ask(collection, [index for index in wanted if index not in found]))

        self.of_records(ask_for_the_rest)
        if len(found) < len(wanted) and self.may_lag:
            self.of_records(ask_for_the_rest, newest=True)
        if len(found) < len(wanted):
            self.check_here()
        return found

    def check_here(self) -> None:
        """Look whether there are any records.

        Raises:
            NotAStoreError: The store has been replaced, and its records are gone.
            DamagedStoreError: All of its records are gone.
        """
        if self.manifest.length and self.of_records(lambda it: it.find_one({}, {"_id": 1}), newest=True) is None:
            raise self._gone("its collection of records is gone")

    def chunks(self, column: str, numbers: range | None = None) -> Iterator[memoryview]:
        """Yield chunks of a column, in order; by default all.

        Raises:
            DamagedStoreError: One is not there, or not whole.
        """
        length = self.manifest.length
        if numbers is None:
            numbers = range(-(-length // CHUNK))
        for first in range(numbers.start, numbers.stop, _CHUNKS):
            asked = range(first, min(first + _CHUNKS, numbers.stop))
            keys = [column_key(self.store, column, number) for number in asked]
            found = self.connection.run(
                lambda: {document["_id"]: document for document in self.meta.find({"_id": {"$in": keys}})}  # noqa: B023
            )
            for number, key in zip(asked, keys, strict=True):
                chunk = whole_chunk(column, number, self._chunk_in(found.pop(key, None)), length)
                if chunk is None:
                    raise self._gone(f"chunk {number} of its column {column} is missing or damaged")
                yield chunk

    def check_chunks(self, column: str) -> None:
        """Look whether there are as many chunks of a column as the manifest says there are records.

        Raises:
            DamagedStoreError: There are not.
        """
        wanted = -(-self.manifest.length // CHUNK)
        keys = {"_id": beginning_with(f"{self.store}/column/{column}/")}
        there = self.connection.run(lambda: self.meta.count_documents(keys, hint="_id_"))
        if there < wanted:
            raise self._gone(f"its column {column} has {there} of {wanted} chunks; some are missing or damaged")

    def _chunk_in(self, document: dict[str, Any] | None) -> bytes | None:
        if document is None:
            return None
        try:
            return self.connection.run(lambda: self.large.data_of(document))
        except LostError:
            return None

    def events(self, first: int) -> list[bytes]:
        """Return the documents of some events of the report, from one on."""
        keys = {**beginning_with(f"{self.store}/event/"), "$gte": event_key(self.store, first)}
        found = self.connection.run(lambda: list(self.meta.find({"_id": keys}, sort=[("_id", 1)], limit=CHUNK)))
        events = [document.get("event") for document in found]
        for number, (document, event) in enumerate(zip(found, events, strict=True), first):
            if document["_id"] != event_key(self.store, number) or not isinstance(event, dict):
                raise DamagedStoreError(f"{self.place.shown}: line {number} of its report is missing or damaged")
        if not events and self.manifest.length and not self._is_at_place():
            next(self.chunks("crc32", range(1)))  # raises if all of it has been removed
        return [bson.encode(event) for event in events]

    def _gone(self, what: str) -> Exception:
        """Return the error for a part of the store that is not there."""
        if self._is_at_place():
            return DamagedStoreError(f"{self.place.shown}: {what}; convert again")
        return NotAStoreError(
            f"the store at {self.place.shown} has been replaced or removed since it was opened, "
            "and its records are gone: open it again",
        )

    def _is_at_place(self) -> bool:
        return (
            self.connection.run(lambda: self.meta.find_one({"_id": STORE, "store": self.store}, {"_id": 1})) is not None
        )

    def _absent(self, document: Mapping[str, Any]) -> Exception:
        run, database, shown = self.connection.run, self.connection.database, self.place.shown
        if "partial" in document:
            return NotAStoreError(
                f"{shown} is not a finished store: its conversion is under way or was interrupted "
                "(dbloader convert with --resume goes on with it)",
            )
        if run(lambda: database.list_collection_names(filter={"name": self.place.collection})):
            return NotAStoreError(
                f"{shown} is not a dbloader store, or its conversion is not finished: "
                f"there is no manifest in {self.meta.full_name}",
            )
        return StoreNotFoundError(f"{shown} does not exist; dbloader convert makes a store")
