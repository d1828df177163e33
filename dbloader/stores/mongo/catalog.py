"""Record which stores a place has: the published store, the partial store that is being written, and old stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreExistsError, StoreLockedError, StoreVersionError
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.connection import retried
from dbloader.stores.mongo.errors import UNAUTHORIZED
from dbloader.stores.mongo.schema import (
    LARGE,
    MANIFEST,
    STORE,
    is_id,
    is_records_collection,
    prefix_range,
    records_collection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dbloader.stores.mongo.connection import Connection
    from dbloader.stores.mongo.uri import MongoURI

_NAMESPACE_EXISTS = 48


class Catalog:
    """The document that describes a place, and the data of its stores.

    Every method can be called again after an interruption. The server changes the document only if it still contains
    the token of this writer's lease. So a writer changes nothing after another writer has taken over the place.
    """

    def __init__(self, connection: Connection, place: MongoURI, token: str) -> None:
        self.connection = connection
        self._database = connection.database
        self._meta = self._database[place.collection + MANIFEST]
        # Writes through `_durable` wait until the server's journal contains them and all earlier writes.
        concern = WriteConcern(**{"j": True, **self._meta.write_concern.document})
        self._durable = self._meta.with_options(write_concern=concern)
        self._place = place
        self._token = token

    @retried
    def check(self) -> None:
        """Raise StoreExistsError if another program wrote the document that describes the place."""
        document = self._meta.find_one({"_id": STORE})
        if document is not None and not _is_valid(document):
            raise StoreExistsError(
                f"{self._meta.full_name} has a document {STORE!r} that dbloader did not write: "
                "name another collection, or remove that collection"
            )

    @retried
    def partial(self) -> dict[str, Any] | None:
        """Return the document's field ``partial``, which describes the partial store; None if there is none."""
        return self._get("partial").get("partial")

    @retried
    def published(self) -> str | None:
        """Return the id of the published store, even if damaged; None if the place is free.

        Raises:
            StoreExistsError: The place has something other than a dbloader store.
        """
        document = self._get("store", "manifest")
        store, manifest = document.get("store"), document.get("manifest")
        info = None if store else self._info()
        if store is None and (info is None or self._is_view(info)):
            return None
        try:
            Manifest.decode(bson.encode(manifest if isinstance(manifest, dict) else {}), self._place.redacted)
        except (DamagedStoreError, StoreVersionError):
            pass  # a damaged or newer store may be replaced
        except NotAStoreError as error:
            message = f"{self._place.redacted} is not a dbloader store and will not be overwritten"
            raise StoreExistsError(message) from error
        return store

    def _get(self, *fields: str) -> dict[str, Any]:
        return self._meta.find_one({"_id": STORE}, dict.fromkeys(fields, 1)) or {}

    def _info(self) -> Mapping[str, Any] | None:
        """Return the server's description of the place's collection or view; None if neither exists."""
        return next(iter(self._database.list_collections(filter={"name": self._place.collection})), None)

    def _is_view(self, info: Mapping[str, Any]) -> bool:
        return info["type"] == "view" and is_records_collection(info["options"]["viewOn"], self._place.collection)

    @retried
    def begin(self, store: str, run: int) -> None:
        """Make this writer the only writer that can commit to a partial store."""
        values = {"partial.store": store, "partial.writer": self._token, "partial.run": run}
        self._update({"_id": STORE, "writer.token": self._token}, {"$set": values})

    def commit(self, store: str, progress: Mapping[str, Any]) -> None:
        """Store the progress of a partial store, and wait until this and all earlier writes are durable."""
        self._update(self._mine(store), {"$set": {"partial.progress": progress}})

    def _update(self, mine: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        if not self._durable.update_one(mine, change).matched_count:
            raise self.overtaken()

    def check_writer(self, store: str) -> None:
        """Raise StoreLockedError if another writer has taken over a partial store."""
        if self._meta.find_one({"_id": STORE, "partial.store": store, "partial.writer": self._token}) is None:
            raise self.overtaken()

    def _mine(self, store: str) -> dict[str, Any]:
        return {"_id": STORE, "writer.token": self._token, "partial.store": store, "partial.writer": self._token}

    def overtaken(self) -> StoreLockedError:
        """Return the error to raise when another writer has taken over the place."""
        return StoreLockedError(f"another process has taken over the conversion at {self._place.redacted}")

    @retried
    def publish(self, store: str, manifest: Mapping[str, Any], replaces: str | None) -> None:
        """Publish a partial store by one write, in place of the store ``replaces``; None if no store is published.

        Raises:
            StoreLockedError: Another writer has taken over the place.
            StoreExistsError: The published store is not ``replaces``.
        """
        change: dict[str, Any] = {"$set": {"store": store, "manifest": manifest}, "$unset": {"partial": ""}}
        if replaces is not None:
            change["$addToSet"] = {"replaced": replaces}
        if self._durable.update_one({**self._mine(store), "store": replaces}, change).matched_count:
            return
        # An earlier attempt may have succeeded although its answer was lost. Another writer's manifest would differ.
        if self._meta.find_one({"_id": STORE, "store": store, "manifest": {"$eq": manifest}}, {"_id": 1}) is not None:
            return
        found = self._get("store", "writer")
        if (found.get("writer") or {}).get("token") == self._token and found.get("store") != replaces:
            raise StoreExistsError(f"{self._place.redacted} exists already; overwrite (--overwrite) replaces it")
        raise self.overtaken()

    @retried
    def update_view(self) -> None:
        """Make the place's collection a view of the published records, unless another program made the collection."""
        store = self._get("store").get("store")
        if store is None:
            return
        records, info = records_collection(self._place.collection, store), self._info()
        if info is None:
            self._create_view(records)
        elif self._is_view(info) and info["options"]["viewOn"] != records:
            try:
                self._database.command("collMod", self._place.collection, viewOn=records, pipeline=[])
            except OperationFailure as error:
                if error.code != UNAUTHORIZED:
                    raise
                # A user with the role readWrite may not change a view, but may drop it and create it again.
                self._database.drop_collection(self._place.collection)
                self._create_view(records)

    def _create_view(self, records: str) -> None:
        try:
            self._database.create_collection(self._place.collection, check_exists=False, viewOn=records, pipeline=[])
        except OperationFailure as error:
            if error.code != _NAMESPACE_EXISTS:  # otherwise another writer has just created the view
                raise

    @retried
    def abandon(self, store: str, *, forget: bool = False) -> None:
        """Give up a partial store and remove its data, if this writer still holds the lease.

        With ``forget``, ``collect_garbage`` never looks for data of the store again. Use ``forget`` only if no other
        writer has ever written to the store, because a former writer could write more data later.
        """
        mine = {"_id": STORE, "writer.token": self._token, "partial.store": store}
        self._durable.update_one(mine, {"$unset": {"partial": ""}, "$addToSet": {"replaced": store}})
        if store in self._get("replaced").get("replaced", ()):
            self._drop(store)
            if forget:
                self._forget(store)

    @retried
    def collect_garbage(self) -> None:
        """Remove the data of stores that were replaced or given up.

        A store stays in the field ``replaced`` until a later call finds no data of the store, because a writer that has
        lost its lease may still write data.
        """
        document = self._get("replaced", "store", "partial")
        used = {document.get("store"), document.get("partial", {}).get("store")}  # never removed, even if listed
        replaced = [store for store in document.get("replaced", ()) if store not in used]
        names = set(self._database.list_collection_names()) if replaced else set()
        for store in replaced:
            if names.intersection(self._collections(store)):
                self._drop(store)
            else:
                self._forget(store)

    def _drop(self, store: str) -> None:
        for name in self._collections(store):
            self._database.drop_collection(name)
        self._meta.delete_many({"_id": prefix_range(f"{store}/")})

    def _forget(self, store: str) -> None:
        self._meta.delete_many({"_id": prefix_range(f"{store}/")})
        self._meta.update_one({"_id": STORE}, {"$pull": {"replaced": store}})

    def _collections(self, store: str) -> tuple[str, ...]:
        records = records_collection(self._place.collection, store)
        return f"{records}{LARGE}.files", f"{records}{LARGE}.chunks", records


def _is_valid(document: Mapping[str, Any]) -> bool:
    """Return whether the fields of a place's document have the types that dbloader writes."""
    kinds = {"store": str, "manifest": dict, "partial": dict, "writer": dict, "replaced": list}
    present = {name: kind for name, kind in kinds.items() if name in document}
    if not present or not all(isinstance(document[name], kind) for name, kind in present.items()):
        return False
    partial = document.get("partial", {"store": "0" * 24, "run": 0})
    return (
        ("store" in document) == ("manifest" in document)
        and all(map(is_id, (document.get("store", "0" * 24), partial.get("store"), *document.get("replaced", ()))))
        and isinstance(partial.get("run"), int)
    )
