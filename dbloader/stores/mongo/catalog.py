"""Whole stores at a place: which one is there, putting another in its place, and removing those that are not needed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import bson
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreExistsError, StoreLockedError, StoreVersionError
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.schema import (
    LARGE,
    MANIFEST,
    STORE,
    beginning_with,
    is_id,
    is_own_collection,
    own_collection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.uri import MongoURI

_EXISTS = 48  # NamespaceExists
_UNAUTHORIZED = 13


class Catalog:
    """What a writer does with whole stores. Every method can be called again after it was cut off anywhere.

    All that is known of the place is in one document of the manifest collection. Every change of it names the writer's
    token, so that the server refuses a writer which was silent while another took the place.

    Attributes:
        meta: The manifest collection.
        durable: The same; what is written to it waits for the journal, of this write and all before it.
    """

    def __init__(self, database: Database[Any], place: MongoURI) -> None:
        self.meta: Collection[Any] = database[place.collection + MANIFEST]
        concern = self.meta.write_concern.document
        self.durable = self.meta.with_options(write_concern=WriteConcern(**{"j": True, **concern}))
        self._database = database
        self._place = place

    def partial(self) -> dict[str, Any] | None:
        """Return what is known of the unfinished store."""
        return self._document("partial").get("partial")

    def store_at_place(self) -> str | None:
        """Return the id of the finished store."""
        return self._document("store").get("store")

    def _document(self, *fields: str) -> dict[str, Any]:
        return self.meta.find_one({"_id": STORE}, dict.fromkeys(fields, 1)) or {}

    def exists(self) -> bool:
        """Tell whether anything is at the place."""
        return self.store_at_place() is not None or self._is_taken()

    def _is_taken(self) -> bool:
        """Tell whether the place's name is that of a collection, or of a view of something else than a store."""
        found = self._at_place()
        return found is not None and not self._is_view_of_ours(found)

    def _at_place(self) -> Mapping[str, Any] | None:
        return next(iter(self._database.list_collections(filter={"name": self._place.collection})), None)

    def _is_view_of_ours(self, found: Mapping[str, Any]) -> bool:
        return found["type"] == "view" and is_own_collection(found["options"]["viewOn"], self._place.collection)

    def check_is_store(self) -> None:
        """Look at what is at the place.

        Raises:
            StoreExistsError: It is no store.
        """
        manifest = self._document("manifest").get("manifest")
        with suppress(DamagedStoreError, StoreVersionError):  # a store that cannot be read is one
            try:
                Manifest.decode(bson.encode(manifest if isinstance(manifest, dict) else {}), self._place.shown)
            except NotAStoreError as error:
                message = f"{self._place.shown} is not a dbloader store and will not be overwritten"
                raise StoreExistsError(message) from error

    def check_is_ours(self) -> None:
        """Look at the place's document, of whose name some other program might have one.

        Raises:
            StoreExistsError: It has.
        """
        document = self.meta.find_one({"_id": STORE})
        if document is not None and not _is_ours(document):
            raise StoreExistsError(
                f"{self.meta.full_name} has a document {STORE!r} that dbloader did not write, or that is damaged: "
                "choose another collection's name, or remove that collection",
            )

    def publish(self, store: str, token: str, manifest: Mapping[str, Any], replaces: str | None) -> None:
        """Make an unfinished store the one at the place, by one write, if its writer still has the place.

        Args:
            store: Its id.
            token: Of its writer.
            manifest: Its manifest.
            replaces: The id of the store that is at the place now.

        Raises:
            StoreLockedError: Another writer has taken the place.
            StoreExistsError: Another store is at the place than the one to be replaced.
        """
        mine = {"_id": STORE, "writer.token": token, "partial.store": store, "partial.writer": token, "store": replaces}
        change: dict[str, Any] = {"$set": {"store": store, "manifest": manifest}, "$unset": {"partial": ""}}
        if replaces is not None:
            change["$addToSet"] = {"replaced": replaces}
        if self.durable.update_one(mine, change).matched_count:
            return
        # Of a writer that resumed this store and published it, the manifest is another.
        ours = {"_id": STORE, "store": store, "manifest": {"$eq": manifest}}
        if self.meta.find_one(ours, {"_id": 1}) is not None:
            return  # only the answer was lost
        found = self._document("store", "writer")
        if (found.get("writer") or {}).get("token") == token and found.get("store") != replaces:
            raise StoreExistsError(f"{self._place.shown} exists already; overwrite (--overwrite) replaces it")
        raise StoreLockedError(f"another process has taken over the conversion at {self._place.shown}")

    def show(self) -> None:
        """Make the place's name a view of the records of the store that is there, unless it is something else."""
        store = self.store_at_place()
        if store is None:
            return
        own, found = own_collection(self._place.collection, store), self._at_place()
        if found is None:
            self._make_view(own)
        elif self._is_view_of_ours(found) and found["options"]["viewOn"] != own:
            try:
                self._database.command("collMod", self._place.collection, viewOn=own, pipeline=[])
            except OperationFailure as error:
                if error.code != _UNAUTHORIZED:
                    raise
                # The role readWrite may not change a view, but drop it and make another.
                self._database.drop_collection(self._place.collection)
                self._make_view(own)

    def _make_view(self, own: str) -> None:
        try:
            self._database.create_collection(self._place.collection, check_exists=False, viewOn=own, pipeline=[])
        except OperationFailure as error:
            if error.code != _EXISTS:  # another writer was first
                raise

    def abandon(self, store: str, token: str) -> bool:
        """Give up an unfinished store, if its writer still has the place; its data are to be removed then.

        Returns:
            Whether it is given up.
        """
        change = {"$unset": {"partial": ""}, "$addToSet": {"replaced": store}}
        self.durable.update_one({"_id": STORE, "writer.token": token, "partial.store": store}, change)
        return store in self._document("replaced").get("replaced", ())

    def remove_replaced(self) -> None:
        """Remove the data of stores that were replaced or given up.

        One of which there was nothing is forgotten; others stay noted until the next writer, since whoever was silent
        while it was overtaken may still write to them.
        """
        document = self._document("replaced", "store", "partial")
        used = {document.get("store"), document.get("partial", {}).get("store")}  # whatever a copied or edited one says
        replaced = [store for store in document.get("replaced", ()) if store not in used]
        names = set(self._database.list_collection_names()) if replaced else set()
        for store in replaced:
            if any(name in names for name in self._collections(store)):
                self.remove(store)
            else:
                self.forget(store)

    def remove(self, store: str) -> None:
        """Remove the data of a store that is neither at the place nor unfinished."""
        for name in self._collections(store):
            self._database.drop_collection(name)
        self.meta.delete_many({"_id": beginning_with(f"{store}/")})

    def forget(self, store: str) -> None:
        """Forget a store whose data are removed."""
        self.meta.delete_many({"_id": beginning_with(f"{store}/")})
        self.meta.update_one({"_id": STORE}, {"$pull": {"replaced": store}})

    def _collections(self, store: str) -> tuple[str, ...]:
        own = own_collection(self._place.collection, store)
        return f"{own}{LARGE}.files", f"{own}{LARGE}.chunks", own


def _is_ours(document: Mapping[str, Any]) -> bool:
    """Tell whether the document of a place is one that a writer may go on with."""
    kinds = {"manifest": dict, "partial": dict, "writer": dict, "replaced": list}
    if not any(name in document for name in ("store", *kinds)):
        return False
    if not all(isinstance(document[name], kind) for name, kind in kinds.items() if name in document):
        return False
    partial = document.get("partial", {"store": "0" * 24, "run": 0})
    return (
        ("store" in document) == ("manifest" in document)
        and is_id(document.get("store", "0" * 24))
        and is_id(partial.get("store"))
        and isinstance(partial.get("run"), int)
        and all(map(is_id, document.get("replaced", ())))
    )
