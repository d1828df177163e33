"""Writing a store to a MongoDB database: aside, in a collection of its own, and published when it is whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from bson.raw_bson import RawBSONDocument
from gridfs import GridFSBucket
from gridfs.errors import NoFile
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, DuplicateKeyError
from pymongo.write_concern import WriteConcern
from typing_extensions import override

from dbloader.columns import CHUNK, COLUMNS, DTYPES, ColumnChunk, is_whole
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    OptionError,
    StoreExistsError,
    StoreLockedError,
    StoreVersionError,
)
from dbloader.manifest import Manifest
from dbloader.stores.mongo.claim import Claim
from dbloader.stores.mongo.connection import Connection, without_duplicates
from dbloader.stores.mongo.layout import (
    COLUMNS_INDEX,
    ID_CRC_DTYPE,
    INDEXES,
    LARGE,
    MANIFEST,
    MARKER,
    PARTIAL,
    STORE,
    beginning_with,
    column_key,
    event_key,
    is_own_collection,
    own_collection,
    stub_of,
)
from dbloader.stores.mongo.place import parse
from dbloader.stores.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo.collection import Collection


# Of one insert, and how many of them are under way at once: the server works on one while the next is sent.
BATCH_BYTES = 4 * 2**20
IN_FLIGHT = 3
# A document may have 16 MiB (https://www.mongodb.com/docs/manual/reference/limits/).
MAX_DOCUMENT = 16 * 2**20
_CONCERN = ("w", "journal", "j", "fsync", "wtimeoutms")


class MongoWriter(Writer):
    """A store that is being written to a MongoDB database; see Writer.

    Until it is finished its records are in ``collection.<id>``. All writes wait for a majority of the members, and a
    commit for its journal, unless the place's options (``w``, ``journal``) say otherwise. They are tried again for up
    to a minute after network errors, a restart or an election.

    A store that is replaced stays beside the new one, in ``collection.<its id>``, for those who still read it; the next
    writer at the place removes it.

    Args:
        place: See MongoStore.
        overwrite: See Writer; a collection that is no dbloader store is not replaced.
        resume: See Writer.
        resumable: See Writer.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        resumable: bool = False,
    ) -> None:
        if overwrite and resume:
            raise OptionError("overwrite begins anew and resume goes on: choose one of them")
        self._place = parse(place)
        super().__init__(self._place.shown, overwrite=overwrite, resume=resume, resumable=resumable)
        self.report_path = Path(f"{self._place.database}.{self._place.collection}.report.jsonl")
        self._committed = False
        self._published = False

    @override
    def _open(self) -> None:
        settings = {} if self._place.options & {*_CONCERN} else {"w": "majority"}
        self._connection = Connection(self._place, **settings)
        try:
            self._database = self._connection.database
            self._at_place: Collection[Any] = self._database[self._place.collection]
            self._meta: Collection[Any] = self._database[self._place.collection + MANIFEST]
            partial = self._connection.run(lambda: self._meta.find_one({"_id": PARTIAL}))
            if not (self.resume and partial):
                self._check_replaceable()
            self._claim = Claim(self._connection, self._meta)
            self._claim.take()
            try:
                self._prepare()
            except BaseException:
                self._claim.release()
                raise
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        """Goes on with what is to be resumed, or begins."""
        run = self._connection.run
        run(self._rename)  # if a writer was killed before it could
        partial = run(lambda: self._meta.find_one({"_id": PARTIAL}))
        self._remove_others({self._store_at_place(), partial and partial["store"]})
        if partial and not self.resume:
            if not self.overwrite and "progress" in partial:
                raise StoreExistsError(
                    f"an unfinished conversion is at {self.place}: resume (--resume) goes on with it, "
                    "overwrite (--overwrite) begins anew",
                )
            self._remove(partial["store"])
            run(lambda: self._meta.delete_one({"_id": PARTIAL}))
            partial = None
        self._id = partial["store"] if partial else str(bson.ObjectId())
        self._records: Collection[Any] = self._database[own_collection(self._place.collection, self._id)]
        self._large = GridFSBucket(self._database, self._records.name + LARGE)
        if partial and "progress" in partial:
            self._committed = True
            self._restore(partial["progress"])
        self._check_replaceable()  # again: now it is known whether the conversion that is resumed may overwrite
        try:
            run(self._begin)
        except BaseException:
            if not self._committed:
                self._remove_partial()
            raise

    def _begin(self) -> None:
        """Makes the collections ready; removes what was stored after the last commit of what is resumed."""
        self._records.update_one({"_id": MARKER}, {"$set": {"store": self._id}}, upsert=True)
        for name, keys in INDEXES.items():
            self._records.create_index(keys, name=name)
        self._records.delete_many({"_id": {"$gte": self.length}})
        for file in self._large.find({"_id": {"$gte": self.length}}):
            self._large.delete(file._id)
        events = beginning_with(f"{self._id}/event/")
        self._meta.delete_many({"_id": {"$gte": event_key(self._id, self._events_stored), "$lt": events["$lt"]}})
        self._durable().update_one(
            {"_id": PARTIAL}, {"$set": {"store": self._id, "writer": self._claim.token}}, upsert=True
        )

    @override
    def _close(self) -> None:
        try:
            if not (self._published or (self.resumable and self._committed)):
                self._remove_partial()
        finally:
            self._claim.release()
            self._connection.close()

    @override
    def _store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        events: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        beside: list[dict[str, Any]] = [
            {"_id": column_key(self._id, name, number), "data": packed}
            for number, chunk in chunks.items()
            for name, packed in chunk.items()
        ]
        first_event = progress["events"] - len(events)
        beside += [
            {"_id": event_key(self._id, first_event + number), "event": dict(event)}
            for number, event in enumerate(events)
        ]
        self._claim.check()
        # All of it anew after a failure: a server that was killed may have lost what it had confirmed since the last
        # journal, which only the last step below waits for.
        self._connection.run(lambda: self._store_all(first, documents, beside, progress))
        self._committed = True

    def _store_all(
        self,
        first: int,
        documents: Sequence[bytes],
        beside: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="dbloader-insert") as executor:
            inserts = [executor.submit(self._insert, batch) for batch in self._batches(first, documents)]
            for insert in inserts:
                insert.result()
        if beside:
            self._meta.bulk_write([ReplaceOne({"_id": document["_id"]}, document, upsert=True) for document in beside])
        result = self._durable().update_one(
            {"_id": PARTIAL, "writer": self._claim.token}, {"$set": {"progress": progress}}
        )
        if result.acknowledged and not result.matched_count:
            raise StoreLockedError(f"another process has taken over the conversion at {self.place}")

    def _durable(self) -> Collection[Any]:
        """Gives the manifest collection, to be written with a wait for the journal: of this write and all before it."""
        concern = self._meta.write_concern
        if not concern.acknowledged or "j" in concern.document:
            return self._meta  # as the place's options ask
        return self._meta.with_options(write_concern=WriteConcern(**concern.document, j=True))

    def _batches(self, first: int, documents: Sequence[bytes]) -> Iterator[list[tuple[int, bytes]]]:
        batch: list[tuple[int, bytes]] = []
        nbytes = 0
        for index, document in enumerate(documents, first):
            batch.append((index, document))
            nbytes += len(document)
            if nbytes >= BATCH_BYTES:
                yield batch
                batch, nbytes = [], 0
        if batch:
            yield batch

    def _insert(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Inserts records, of which some may be there already from an attempt before."""
        documents = []
        for index, document in batch:
            if len(document) > MAX_DOCUMENT:
                with suppress(NoFile):
                    self._large.delete(index)
                self._large.upload_from_stream_with_id(index, str(index), document)
                documents.append(RawBSONDocument(stub_of(document)))
            else:
                documents.append(RawBSONDocument(document))
        try:
            self._records.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            if not without_duplicates(error):
                raise

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        keys = {column_key(self._id, name, number): name for name in COLUMNS}
        found = self._connection.run(lambda: list(self._meta.find({"_id": {"$in": list(keys)}})))
        packed = {keys[document["_id"]]: document["data"] for document in found}
        count = min(CHUNK, self.length - number * CHUNK)
        if len(packed) < len(COLUMNS):
            raise self._damaged()
        if number == self.length // CHUNK:  # a commit that was cut off may have made it longer
            chunk = ColumnChunk.unpack(packed)
            chunk.names = chunk.names[:count]
            chunk.values = {name: values[:count] for name, values in chunk.values.items()}
            packed = chunk.pack()
        if not all(is_whole(name, value, count) for name, value in packed.items()):
            raise self._damaged()
        return packed

    def _damaged(self) -> DamagedStoreError:
        return DamagedStoreError(
            f"the unfinished conversion at {self.place} is damaged: begin anew with overwrite (--overwrite)"
        )

    @override
    def _publish(self, manifest: Manifest) -> None:
        self._claim.check()
        self._connection.run(self._check_stored)
        self._check_replaceable()
        document = {"_id": STORE, "store": self._id, "manifest": bson.decode(manifest.encode())}
        self._connection.run(lambda: self._put_at_place(document))
        self._published = True
        # From here on the store is at the place, wherever its records are; what fails below, the next writer does.
        self._connection.run(lambda: self._meta.delete_one({"_id": PARTIAL}))
        self._connection.run(self._rename)

    def _check_stored(self) -> None:
        """Compares the CRC-32 of each record that the server has with what was written.

        Raises:
            DamagedStoreError: Records are missing, doubled or others.
        """
        index = 0
        chunk_of, crcs = -1, np.empty(0, DTYPES["crc32"])
        batches = self._records.find_raw_batches(
            {"_id": {"$gte": 0}}, {"_id": 1, "crc32": 1}, hint=COLUMNS_INDEX, sort=[("_id", 1)]
        )
        for batch in batches:
            if len(batch) % ID_CRC_DTYPE.itemsize:
                raise self._damaged()
            stored = np.frombuffer(batch, ID_CRC_DTYPE)
            while len(stored):
                number, within = divmod(index, CHUNK)
                if index >= self.length:
                    raise self._damaged()
                if number != chunk_of:
                    chunk_of, crcs = number, np.frombuffer(self._stored_chunk(number)["crc32"], DTYPES["crc32"])
                part, stored = stored[: CHUNK - within], stored[CHUNK - within :]
                expected = crcs[within : within + len(part)]
                if not np.array_equal(part["_id"], np.arange(index, index + len(part))) or not np.array_equal(
                    part["crc32"], expected
                ):
                    raise self._damaged()
                index += len(part)
        if index != self.length:
            raise self._damaged()

    def _put_at_place(self, document: Mapping[str, Any]) -> None:
        durable = self._durable()
        now = durable.find_one({"_id": STORE}, {"store": 1})
        if now is not None and now["store"] == self._id:
            return  # done before; the answer was lost
        if now is None:
            try:
                durable.insert_one(document)
            except DuplicateKeyError as error:
                raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it") from error
        else:
            durable.replace_one({"_id": STORE, "store": now["store"]}, document)

    def _check_replaceable(self) -> None:
        """Refuses to replace what is at the place, unless it is to be overwritten and is a store."""
        run = self._connection.run
        store = run(lambda: self._meta.find_one({"_id": STORE}))
        if store is None and not run(
            lambda: self._database.list_collection_names(filter={"name": self._place.collection})
        ):
            return
        if not self.overwrite and self.resumed:
            raise StoreExistsError(f"{self.place} has been made by somebody else meanwhile; move it away and resume")
        if not self.overwrite and self.resume:
            raise StoreExistsError(f"{self.place} is finished already: there is nothing to resume")
        if not self.overwrite:
            raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")
        manifest = store and store.get("manifest")
        with suppress(DamagedStoreError, StoreVersionError):  # it may be replaced
            try:
                Manifest.decode(bson.encode(manifest if isinstance(manifest, dict) else {}), self.place)
            except NotAStoreError as error:
                raise StoreExistsError(f"{self.place} is not a dbloader store and will not be overwritten") from error

    def _store_at_place(self) -> str | None:
        document = self._connection.run(lambda: self._meta.find_one({"_id": STORE}, {"store": 1}))
        return document and document["store"]

    def _rename(self) -> None:
        """Gives the collection of the store at the place the place's name; the one before it gets its own."""
        store = self._store_at_place()
        names = self._database.list_collection_names()
        if store is None or own_collection(self._place.collection, store) not in names:
            return
        if self._at_place.name in names:
            marker = self._at_place.find_one({"_id": MARKER})
            if marker is None:
                return  # something else was put there; the store is read where it is
            self._at_place.rename(own_collection(self._place.collection, marker["store"]))
        self._database[own_collection(self._place.collection, store)].rename(self._at_place.name)

    def _remove_partial(self) -> None:
        self._remove(self._id)
        self._connection.run(lambda: self._meta.delete_one({"_id": PARTIAL, "store": self._id}))

    def _remove_others(self, kept: set[str | None]) -> None:
        """Removes what was replaced by the writer before, and what was left by one that was killed at its beginning."""
        names = self._connection.run(self._database.list_collection_names)
        stores = {
            name.removeprefix(f"{self._place.collection}.").split(".")[0]
            for name in names
            if is_own_collection(name, self._place.collection)
        }
        for store in stores - kept:
            self._remove(store)

    def _remove(self, store: str) -> None:
        own = own_collection(self._place.collection, store)

        def remove() -> None:
            for name in self._database.list_collection_names():
                if name == own or name.startswith(f"{own}."):
                    self._database.drop_collection(name)
            self._meta.delete_many({"_id": beginning_with(f"{store}/")})

        self._connection.run(remove)
