"""What one process opens of a MongoDB store."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import bson
import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_preferences import Primary, PrimaryPreferred

from dbloader.columns import CHUNK, whole_chunk
from dbloader.errors import DamagedStoreError, NotAStoreError, StoreNotFoundError
from dbloader.manifest import Manifest
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.large import Large, LostError
from dbloader.stores.mongo.layout import (
    MANIFEST,
    MARKER,
    PARTIAL,
    STORE,
    beginning_with,
    column_key,
    event_key,
    own_collection,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pymongo.collection import Collection

    from dbloader.stores.mongo.place import MongoPlace

T = TypeVar("T")
# Gives the documents in a collection that have some _ids, each with its _id.
Ask: TypeAlias = "Callable[[Collection[Any], list[int]], Iterable[tuple[int, Any]]]"

# How long records are looked for that are in neither of their two places: a secondary may lag behind its primary.
_LOOKING_SECONDS = 5.0
_LOOKING_PAUSE = 0.1
# How long a primary is looked for before the other members are asked for what should come from it.
_PRIMARY_SECONDS = 2.0
# Chunks of columns asked for at a time: 64 of names are about 8 MB.
_CHUNKS = 64


class ElsewhereError(Exception):
    """The records in a collection are those of another store."""


class Handle:
    """A client of one process, and the store that is at the place as it was opened.

    Records are read where the place's options say; all else, which is small, from the primary if there is one: a
    secondary may not have all of it yet.

    Attributes:
        pid: The process that opened it; no other may use it.
        connection: The client.
        meta: The manifest collection.
        store: The store's id.
        manifest: The store's manifest.
        large: What is over the limit of a document.
        may_lag: Whether records may be read from a member that does not have all of them yet.
    """

    def __init__(self, place: MongoPlace) -> None:
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
        own = own_collection(place.collection, self.store)
        # It is in the first while it is the one at the place; before, for a moment, and after that in the second.
        self._collections: list[Collection[Any]] = [database[place.collection], database[own]]
        self.large = Large(database, place.collection, self.store, self._newest)

    def _found(self) -> tuple[str, Manifest]:
        """Gives the id and the manifest of the store at the place."""
        if self.may_lag:
            # Members are asked as soon as they are known: until the primary is, "preferred" means nothing.
            with suppress(PyMongoError), pymongo.timeout(_PRIMARY_SECONDS):
                self.meta.with_options(read_preference=Primary()).find_one({"_id": STORE}, {"_id": 1})
        document = self.connection.run(lambda: self.meta.find_one({"_id": STORE}))
        if document is None:
            raise self._absent()
        if not isinstance(document.get("store"), str) or not isinstance(document.get("manifest"), dict):
            raise NotAStoreError(f"{self.place.shown} is not a dbloader store: another program made {self.meta.name}")
        return document["store"], Manifest.decode(bson.encode(document["manifest"]), self.place.shown)

    def of_records(self, function: Callable[[Collection[Any]], T], *, newest: bool = False) -> T:
        """Calls a function with the collection where the store's records are, until it succeeds.

        Args:
            function: Raises ElsewhereError when it finds that the records in the collection are another store's.
            newest: Ask no member that may lag, if another is there.

        Raises:
            NotAStoreError: The store has been replaced, and its records are gone.
        """
        deadline = time.monotonic() + _LOOKING_SECONDS
        while True:
            for collection in tuple(self._collections):
                asked = collection.with_options(read_preference=self._newest) if newest else collection
                try:
                    result = self.connection.run(lambda: function(asked))  # noqa: B023 - called here and now
                except ElsewhereError:
                    continue
                if collection is not self._collections[0]:
                    self._collections.reverse()  # where to look first the next time
                return result
            if time.monotonic() > deadline:
                raise self._gone("its collection of records is gone")
            time.sleep(_LOOKING_PAUSE)

    def documents(self, wanted: Sequence[int], ask: Ask) -> dict[int, Any]:
        """Gives the documents at some indices by their indices; one that is missing is not among them."""
        found: dict[int, Any] = {}

        def ask_here(collection: Collection[Any]) -> None:
            """Asks for what was not found by an attempt before that was cut off."""
            is_here = False
            early: dict[int, Any] = {}
            for index, document in ask(collection, [MARKER, *(index for index in wanted if index not in found)]):
                if index != MARKER:
                    (found if is_here else early)[index] = document
                elif document.get("store") == self.store:
                    is_here = True
                else:
                    raise ElsewhereError
            if not is_here:
                raise ElsewhereError
            found.update(early)  # the marker comes first, but not from a sharded cluster

        self.of_records(ask_here)
        if len(found) < len(wanted) and self.may_lag:
            self.of_records(ask_here, newest=True)
        return found

    def chunks(self, column: str, numbers: range | None = None) -> Iterator[memoryview]:
        """Yields chunks of a column, in order; by default all.

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
        events = self.connection.run(
            lambda: [
                bson.encode(found["event"]) for found in self.meta.find({"_id": keys}, sort=[("_id", 1)], limit=CHUNK)
            ]
        )
        if not events and self.manifest.length and not self._is_at_place():
            next(self.chunks("crc32", range(1)))  # raises if all of it has been removed
        return events

    def check_here(self, collection: Collection[Any]) -> None:
        """Checks that the records in a collection are the store's.

        What takes more than one question is sure only between two checks: the collection may be renamed.

        Raises:
            ElsewhereError: They are not.
        """
        if collection.find_one({"_id": MARKER, "store": self.store}, {"_id": 1}) is None:
            raise ElsewhereError

    def _gone(self, what: str) -> Exception:
        """Gives the error for a part of the store that is not there."""
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

    def _absent(self) -> Exception:
        run, database, shown = self.connection.run, self.connection.database, self.place.shown
        if run(lambda: self.meta.find_one({"_id": PARTIAL}, {"_id": 1})) is not None:
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
