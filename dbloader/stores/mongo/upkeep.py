"""Whole stores at a place: which one is there, putting another in its place, and removing those that are not needed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import bson
from pymongo.errors import DuplicateKeyError
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreExistsError, StoreVersionError
from dbloader.manifest import Manifest
from dbloader.stores.mongo.layout import (
    CLAIM,
    LARGE,
    MANIFEST,
    MARKER,
    PARTIAL,
    STORE,
    beginning_with,
    is_own_collection,
    own_collection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.place import MongoPlace


class Upkeep:
    """What a writer does with whole stores. Every method can be called again after it was cut off anywhere.

    Attributes:
        meta: The manifest collection.
        durable: The same; what is written to it waits for the journal, of this write and all before it.
    """

    def __init__(self, database: Database[Any], place: MongoPlace) -> None:
        self.meta: Collection[Any] = database[place.collection + MANIFEST]
        concern = self.meta.write_concern.document
        self.durable = self.meta.with_options(write_concern=WriteConcern(**{"j": True, **concern}))
        self._database = database
        self._place = place
        self._at_place: Collection[Any] = database[place.collection]

    def partial(self) -> dict[str, Any] | None:
        """Gives what is known of the unfinished store."""
        return self.meta.find_one({"_id": PARTIAL})

    def store_at_place(self) -> str | None:
        """Gives the id of the finished store."""
        document = self.meta.find_one({"_id": STORE}, {"store": 1})
        return document and document.get("store")

    def exists(self) -> bool:
        """Tells whether anything is at the place."""
        return self.meta.find_one({"_id": STORE}, {"_id": 1}) is not None or bool(
            self._database.list_collection_names(filter={"name": self._place.collection})
        )

    def check_is_store(self) -> None:
        """Looks at what is at the place.

        Raises:
            StoreExistsError: It is no store.
        """
        manifest = (self.meta.find_one({"_id": STORE}) or {}).get("manifest")
        with suppress(DamagedStoreError, StoreVersionError):  # a store that cannot be read is one
            try:
                Manifest.decode(bson.encode(manifest if isinstance(manifest, dict) else {}), self._place.shown)
            except NotAStoreError as error:
                message = f"{self._place.shown} is not a dbloader store and will not be overwritten"
                raise StoreExistsError(message) from error

    def check_is_ours(self) -> None:
        """Looks at the manifest collection, in which whoever is not ours might have documents of our names.

        Raises:
            StoreExistsError: Some other program has.
        """
        kinds = {STORE: ("store", "manifest"), PARTIAL: ("store",), CLAIM: ("token", "expires")}
        for document in self.meta.find({"_id": {"$in": list(kinds)}}):
            if not all(name in document for name in kinds[document["_id"]]):
                raise StoreExistsError(
                    f"{self.meta.full_name} has documents of some other program's: choose another collection's name",
                )

    def settle(self) -> None:
        """Ends what a writer was doing with whole stores when it was killed, or this one has only begun."""
        partial = self.partial()
        if partial and "manifest" in partial:
            self.publish(partial)
            self.tidy()
        self.rename()

    def publish(self, partial: Mapping[str, Any]) -> None:
        """Makes the store at the place of one that is finished.

        Args:
            partial: What is known of it, with its ``manifest`` and the id of the store that it ``replaces``.

        Raises:
            StoreExistsError: There is another store at the place by now; this one is as if it had never been finished.
        """
        document = {"_id": STORE, "store": partial["store"], "manifest": partial["manifest"]}
        while (now := self.durable.find_one({"_id": STORE}, {"store": 1})) is None or now["store"] != partial["store"]:
            if now is None:
                try:
                    self.durable.insert_one(document)
                except DuplicateKeyError:
                    continue
            elif now["store"] == partial["replaces"]:
                self.durable.replace_one({"_id": STORE, "store": now["store"]}, document)
            else:
                self.meta.update_one({"_id": PARTIAL, "store": partial["store"]}, {"$unset": {"manifest": ""}})
                raise StoreExistsError(f"{self._place.shown} exists already; overwrite (--overwrite) replaces it")

    def tidy(self) -> None:
        """Forgets that the store at the place was unfinished, and gives its collection the place's name."""
        self.meta.delete_one({"_id": PARTIAL, "store": self.store_at_place()})
        self.rename()

    def rename(self) -> None:
        """Gives the collection of the store at the place the place's name; the one before it gets its own."""
        store = self.store_at_place()
        if store is None:
            return
        own = self._database[own_collection(self._place.collection, store)]
        if self._store_in(own) != store:
            return  # it is there already
        if self._database.list_collection_names(filter={"name": self._at_place.name}):
            before = self._store_in(self._at_place)
            if before is None:
                return  # something else was put there; the store is read where it is
            self._at_place.rename(own_collection(self._place.collection, before), dropTarget=True)
        own.rename(self._at_place.name)

    def remove_others(self, kept: str | None) -> None:
        """Removes the stores that are neither at the place nor ``kept``: replaced ones, and what was left of others."""
        at_place = self.store_at_place()
        names = self._database.list_collection_names()
        # A collection of some other program's may have such a name: one of ours has had its marker from the beginning.
        stores = {
            name.removeprefix(f"{self._place.collection}.")
            for name in names
            if is_own_collection(name, self._place.collection)
            and f"{self._place.collection}.{self._store_in(self._database[name])}" == name
        }
        firsts = {"_id": {"$regex": "/(column/label|event)/0{16}$"}}
        stores |= {key.split("/")[0] for key in self.meta.distinct("_id", firsts)}
        for store in stores - {at_place, kept}:
            self.remove(store)
        if at_place is not None and self._store_in(self._at_place) == at_place:
            # A writer that was overtaken may have gone on inserting where its records were before.
            self._database.drop_collection(own_collection(self._place.collection, at_place))

    def remove(self, store: str) -> None:
        """Removes a store that is not the one at the place."""
        own = own_collection(self._place.collection, store)
        for name in (f"{own}{LARGE}.files", f"{own}{LARGE}.chunks", own):  # in the last is the marker
            self._database.drop_collection(name)
        self.meta.delete_many({"_id": beginning_with(f"{store}/")})

    def _store_in(self, collection: Collection[Any]) -> str | None:
        """Gives the id of the store whose records are in a collection."""
        marker = collection.find_one({"_id": MARKER}, {"store": 1})
        return marker and marker.get("store")
