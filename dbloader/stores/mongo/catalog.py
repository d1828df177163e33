"""Keep the list of stores of a MongoDB collection: the published store, an unfinished store and old stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from dbloader.errors import StoreExistsError, StoreLockedError
from dbloader.records.manifest import FORMAT
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

_NO_ID = "0" * 24
_NO_PARTIAL = {"store": _NO_ID, "run": 1}


class Catalog:
    """Changes the document that describes a collection's stores, and removes the data of old stores.

    Every method can be called again after an interruption. The server changes the document only if the document still
    contains the token of this writer's lease (lease.py). So a writer can change nothing after another has taken over.
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
    def partial(self) -> dict[str, Any] | None:
        """Return the document's field ``partial``, which describes the unfinished store; None if there is none."""
        return self._read().get("partial")

    @retried
    def published(self) -> str | None:
        """Return the id of the published store, even of a damaged store; None if there is none.

        Raises:
            StoreExistsError: The collection contains something other than a dbloader store.
        """
        store = self._read().get("store")
        if store is None and self._viewed() == "":
            raise StoreExistsError(f"{self._place.redacted} is not a dbloader store and will not be overwritten")
        return store

    def _read(self) -> dict[str, Any]:
        """Return the document, or raise StoreExistsError if another program wrote it."""
        document = self._meta.find_one({"_id": STORE}) or {}
        if not _is_own(document):
            raise StoreExistsError(
                f"{self._meta.full_name} has a document {STORE!r} that dbloader did not write: "
                "name another collection, or remove that collection"
            )
        return document

    def _viewed(self) -> str | None:
        """Return the collection of records that the view shows; None without a view; "" for another program's view."""
        for info in self._database.list_collections(filter={"name": self._place.collection}):
            viewed = str(info["options"].get("viewOn"))
            return viewed if is_records_collection(viewed, self._place.collection) else ""
        return None

    @retried
    def begin(self, store: str, run: int) -> None:
        """Make this writer the only writer that can commit to a partial store."""
        values = {"partial.store": store, "partial.writer": self._token, "partial.run": run}
        self._update({"_id": STORE, "writer.token": self._token}, {"$set": values})

    def commit(self, store: str, progress: Mapping[str, Any]) -> None:
        """Write ``progress`` to a partial store, and wait until this write and all earlier writes are durable."""
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
        """Return the error to raise when another writer has taken over."""
        return StoreLockedError(f"another process has taken over the conversion at {self._place.redacted}")

    @retried
    def publish(self, store: str, manifest: Mapping[str, Any], replaces: str | None) -> None:
        """Publish a partial store with a single write. ``replaces`` is the id of the store published before, or None.

        Raises:
            StoreLockedError: Another writer has taken over, or the published store is not ``replaces``.
        """
        change: dict[str, Any] = {"$set": {"store": store, "manifest": manifest}, "$unset": {"partial": ""}}
        if replaces is not None:
            change["$addToSet"] = {"replaced": replaces}
        if self._durable.update_one({**self._mine(store), "store": replaces}, change).matched_count:
            return
        # An earlier attempt may have succeeded although its answer was lost. Then the document has this manifest.
        if self._meta.find_one({"_id": STORE, "store": store, "manifest": {"$eq": manifest}}, {"_id": 1}) is not None:
            return
        raise self.overtaken()

    @retried
    def update_view(self) -> None:
        """Make the collection a view of the published records, unless another program made the collection."""
        store, viewed = self._read().get("store"), self._viewed()
        name, records = self._place.collection, records_collection(self._place.collection, str(store))
        if store is None or viewed in (records, ""):
            return
        if viewed is not None:
            try:
                self._database.command("collMod", name, viewOn=records, pipeline=[])
            except OperationFailure as error:
                if error.code != UNAUTHORIZED:
                    raise
                # A user with the role readWrite may not change a view, but may drop it and create it again.
                self._database.drop_collection(name)
            else:
                return
        self._database.create_collection(name, check_exists=False, viewOn=records, pipeline=[])

    @retried
    def abandon(self, store: str, *, forget: bool = False) -> None:
        """Give up a partial store and remove its data, if this writer still holds the lease.

        If ``forget`` is true, ``collect_garbage`` never looks for data of the store again. Use ``forget`` only if the
        store never had another writer, because that writer could still write data later.
        """
        mine = {"_id": STORE, "writer.token": self._token, "partial.store": store}
        self._durable.update_one(mine, {"$unset": {"partial": ""}, "$addToSet": {"replaced": store}})
        if store in self._read().get("replaced", ()):
            self._drop(store, forget=forget)

    @retried
    def collect_garbage(self) -> None:
        """Remove the data of stores that were replaced or given up.

        A writer that has lost its lease may still write data. So a store stays in the field ``replaced`` until a later
        call finds no data of the store.
        """
        document = self._read()
        used = {document.get("store"), document.get("partial", {}).get("store")}  # never remove these stores
        replaced = [store for store in document.get("replaced", ()) if store not in used]
        names = set(self._database.list_collection_names()) if replaced else set()
        for store in replaced:
            self._drop(store, forget=names.isdisjoint(self._collections(store)))

    def _drop(self, store: str, *, forget: bool) -> None:
        for name in self._collections(store):
            self._database.drop_collection(name)
        self._meta.delete_many({"_id": prefix_range(f"{store}/")})
        if forget:
            self._meta.update_one({"_id": STORE}, {"$pull": {"replaced": store}})

    def _collections(self, store: str) -> tuple[str, ...]:
        records = records_collection(self._place.collection, store)
        return f"{records}{LARGE}.files", f"{records}{LARGE}.chunks", records


def _is_own(document: Mapping[str, Any]) -> bool:
    """Return whether dbloader can have written a document with the _id STORE."""
    manifest, partial = document.get("manifest", {"format": FORMAT}), document.get("partial", _NO_PARTIAL)
    writer, replaced = document.get("writer", {}), document.get("replaced", [])
    return (
        document.keys() <= {"_id", "store", "manifest", "partial", "writer", "replaced"}
        and ("store" in document) == ("manifest" in document)
        and all(isinstance(part, dict) for part in (manifest, partial, writer))
        and isinstance(replaced, list)
        and manifest.get("format") == FORMAT
        and isinstance(partial.get("run"), int)
        and all(map(is_id, (document.get("store", _NO_ID), partial.get("store"), *replaced)))
    )
