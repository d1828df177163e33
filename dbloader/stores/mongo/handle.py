"""What one process opens of a MongoDB store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import bson
from pymongo.read_preferences import Primary, PrimaryPreferred

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreNotFoundError
from dbloader.manifest import Manifest
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.large import Large
from dbloader.stores.mongo.layout import MANIFEST, MARKER, PARTIAL, STORE, own_collection

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.collection import Collection

    from dbloader.stores.mongo.place import MongoPlace

T = TypeVar("T")

# How long records are looked for that are in neither of their two places: a secondary may lag behind its primary.
_LOOKING_SECONDS = 5.0
_LOOKING_PAUSE = 0.1


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
        document = self.connection.run(lambda: self.meta.find_one({"_id": STORE}))
        if document is None:
            raise self._absent()
        if not isinstance(document.get("store"), str) or not isinstance(document.get("manifest"), dict):
            raise NotAStoreError(f"{place.shown} is not a dbloader store: another program made {self.meta.name}")
        self.store: str = document["store"]
        self.manifest = Manifest.decode(bson.encode(document["manifest"]), place.shown)
        own = own_collection(place.collection, self.store)
        # It is in the first while it is the one at the place; before, for a moment, and after that in the second.
        self._collections: list[Collection[Any]] = [database[place.collection], database[own]]
        self.large = Large(database, place.collection, self.store, self._newest)

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
                raise self._gone()
            time.sleep(_LOOKING_PAUSE)

    def check_here(self, collection: Collection[Any]) -> None:
        """Checks that the records in a collection are the store's.

        What takes more than one question is sure only between two checks: the collection may be renamed.

        Raises:
            ElsewhereError: They are not.
        """
        if collection.find_one({"_id": MARKER, "store": self.store}, {"_id": 1}) is None:
            raise ElsewhereError

    def _gone(self) -> Exception:
        now = self.connection.run(lambda: self.meta.find_one({"_id": STORE}, {"store": 1}))
        if now is not None and now.get("store") == self.store:
            return DamagedStoreError(f"{self.place.shown}: its collection of records is gone; convert again")
        return NotAStoreError(
            f"the store at {self.place.shown} has been replaced or removed since it was opened, "
            "and its records are gone: open it again",
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
