"""Write and check the records, columns and report lines (events) of a store that is not published yet."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from dbloader._describe import size
from dbloader.errors import DamagedRecordError, StoreFullError
from dbloader.records.columns import CHUNK, DTYPES, ColumnChunk, is_whole, unseal_chunk
from dbloader.records.decode import verify
from dbloader.records.document import bound_crc32, seal
from dbloader.stores.mongo.connection import retried
from dbloader.stores.mongo.errors import has_only_duplicates, is_transient, reason
from dbloader.stores.mongo.gridfs import STUB, LargeRecords, make_stub
from dbloader.stores.mongo.schema import (
    COLUMNS_INDEX,
    INDEXES,
    MANIFEST,
    MAX_ON_SERVER,
    column_key,
    event_key,
    prefix_range,
    records_collection,
    stored_crc32,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dbloader.stores.mongo.catalog import Catalog
    from dbloader.stores.mongo.connection import Connection
    from dbloader.stores.mongo.lease import Lease
    from dbloader.stores.writer import Commit

# Limits of one insert. The answer must arrive within SILENCE_SECONDS (10 s), but a busy server took longer to index
# 30,000 records. So the number of records is limited, too.
_BATCH_BYTES, _BATCH_RECORDS = 8 * 2**20, CHUNK
# Number of inserts under way at a time. So the server processes one insert while the next inserts are being sent.
_IN_FLIGHT = 3
# The server's disk must have this room, plus twice the size of a commit: once for the data, once for the journal.
_ROOM = 16 * 2**20

# Layout of the BSON document {_id: int64, crc32: int64}, which the server returns for each record.
_ID_CRC_DTYPE = np.dtype(
    [("length", "<i4"), ("key", "V5"), ("_id", "<i8"), ("crc_key", "V7"), ("crc32", "<i8"), ("end", "u1")]
)


class PartialStore:
    """A store that is being written. Every method can be called again after an interruption.

    Late writes do no harm. A writer may write late, after another writer has taken over. Or the server may run a
    command late, after the writer has repeated it. Therefore an existing record is replaced only if the record still
    has the CRC-32 that this writer has just read. Each column chunk and event contains the numbers of its ``run`` and
    commit. Only a later run or commit replaces this chunk or event. No file in GridFS is ever replaced.

    ``run`` is the number of this writer among all writers of the store: 1 for the first writer.
    """

    def __init__(self, connection: Connection, catalog: Catalog, lease: Lease, store: str, run: int) -> None:
        self.connection = connection
        self._catalog = catalog
        self._lease = lease
        self._id = store
        self._run, self._commits = run, 0
        database, collection = connection.database, connection.place.collection
        self._meta = database[collection + MANIFEST]
        self._records = database[records_collection(collection, store)]
        self.large = LargeRecords(database, collection, store)

    @retried
    def begin(self, *, new: bool) -> None:
        """Create the indexes. On a sharded cluster, spread the records of a new store over all shards.

        Records that were stored after the last commit are not deleted here. The server could run the deletion late, and
        delete newer records.
        """
        self._lease.check()
        self._check_room(0)
        if new:
            self._shard_records()
        for name, keys in INDEXES.items():
            self._records.create_index(keys, name=name)

    def _shard_records(self) -> None:
        """If the server is a router of a sharded cluster, spread the records over its shards by a hashed ``_id``.

        Call this before the first insert, because MongoDB moves existing records only slowly. If the server refuses,
        warn that all records will be on one shard.
        """
        client, place = self.connection.client, self.connection.place
        if not client.is_mongos:
            return
        try:
            client.admin.command({"shardCollection": self._records.full_name, "key": {"_id": "hashed"}})
        except OperationFailure as error:
            if is_transient(error):
                raise
            warnings.warn(
                f"{place.redacted}: all new records go to one shard of the cluster ({reason(error)}); to spread them "
                "over all shards, begin again as a user with the role enableSharding or clusterManager",
                UserWarning,
                stacklevel=2,
            )

    @retried
    def trim(self, length: int, events: int) -> None:
        """After publishing, remove records and events that interrupted commits have stored beyond the store's end."""
        self._records.delete_many({"_id": {"$gte": length}})
        later = {**prefix_range(f"{self._id}/event/"), "$gte": event_key(self._id, events)}
        self._meta.delete_many({"_id": later})

    def commit(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        """Store records, chunks of columns, events, and the progress.

        Only the last step waits for the journal, so a killed server may have lost the earlier steps. Therefore every
        step is repeated after a failure.
        """
        self._commits += 1
        meta: list[dict[str, Any]] = [
            {"_id": column_key(self._id, name, number), "data": packed}
            for number, chunk in commit.chunks.items()
            for name, packed in chunk.items()
        ]
        meta += [
            {"_id": event_key(self._id, number), "event": bson.decode(seal(event, number, progress["salt"]))}
            for number, event in enumerate(commit.events, progress["events"] - len(commit.events))
        ]

        def write() -> None:
            self._lease.check()
            self._check_room(sum(map(len, commit.documents)))
            self._insert(commit)
            self._write_meta(meta)
            self._catalog.commit(self._id, bson.decode(seal(progress)))

        self.connection.retry(write)

    def _check_room(self, nbytes: int) -> None:
        """Raise StoreFullError if the server's disk lacks room for a commit. A full disk would stop the server."""
        with suppress(OperationFailure):  # the user may lack the permission for this command
            found = self.connection.database.command("dbStats")
            left = found.get("fsTotalSize", math.inf) - found.get("fsUsedSize", 0)  # a router returns neither value
            if left < 2 * nbytes + _ROOM:
                where = self.connection.place.redacted
                raise StoreFullError(f"no room is left for {where}: the disk of the server has {size(left)} left")

    def _insert(self, commit: Commit) -> None:
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="dbloader-insert") as executor:
            # Run each thread in a copy of the context: pymongo.timeout has stored its time limit there.
            batches = _split(commit.first, commit.documents)
            inserts = [executor.submit(copy_context().run, self._insert_batch, batch) for batch in batches]
            for insert in inserts:
                insert.result()

    def _insert_batch(self, batch: Mapping[int, bytes]) -> None:
        """Insert records, even if an earlier attempt has stored some of these records."""
        documents = {index: RawBSONDocument(self._fit(index, document)) for index, document in batch.items()}
        self._lease.check()
        try:
            self._records.insert_many(documents.values(), ordered=False)
        except BulkWriteError as error:
            if not has_only_duplicates(error):
                raise
            self._replace_others(batch, documents)

    def _fit(self, index: int, document: bytes) -> bytes:
        """Return a record's document. If the document is too large, store it in GridFS and return a stub."""
        if len(document) <= MAX_ON_SERVER:
            return document
        mine = {"_id": index, "crc32": stored_crc32(document), STUB: {"$exists": True}}
        found = self._records.find_one(mine, {STUB: 1})  # an earlier attempt may have stored the file
        return make_stub(document, found[STUB] if found else self.large.put(index, document))

    def _replace_others(self, batch: Mapping[int, bytes], documents: Mapping[int, RawBSONDocument]) -> None:
        """Replace documents on the server that differ from this batch: another writer has inserted them."""
        query = {"_id": {"$in": list(batch)}}
        found = self._records.find(query, {"_id": 1, "crc32": 1}, hint=COLUMNS_INDEX, batch_size=len(batch))
        stored = {other["_id"]: other.get("crc32") for other in found}
        others = [index for index, document in batch.items() if stored.get(index) != stored_crc32(document)]
        if others:
            self._catalog.check_writer(self._id)
        for index in others:
            # If the server runs this command late, the condition on crc32 protects a later writer's record.
            seen = {"_id": index, "crc32": stored.get(index)}
            with suppress(DuplicateKeyError):
                self._records.replace_one(seen, documents[index], upsert=True)

    def _write_meta(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Write chunks of columns and events. Raise StoreLockedError if a later run or commit has written them."""
        if not documents:
            return
        # The filter does not match a document of a later run or commit. For such a document, the server tries an
        # insert, which fails because the _id exists.
        run = self._run << 32 | self._commits
        earlier = {"run": {"$lte": run}}
        writes = [ReplaceOne({"_id": one["_id"], **earlier}, {**one, "run": run}, upsert=True) for one in documents]
        try:
            self._meta.bulk_write(writes)
        except BulkWriteError as error:
            if has_only_duplicates(error):
                raise self._catalog.overtaken() from None
            raise

    @retried
    def chunk(self, number: int, length: int, salt: int, columns: Sequence[str]) -> dict[str, bytes] | None:
        """Return packed ``columns`` of one chunk, or None if a column is damaged. ``length`` is the store's length."""
        keys = {column_key(self._id, name, number): name for name in columns}
        stored = {keys[found["_id"]]: found.get("data") for found in self._meta.find({"_id": {"$in": list(keys)}})}
        chunks = {name: unseal_chunk(name, number, sealed, salt) for name, sealed in stored.items()}
        packed = {name: bytes(chunk) for name, chunk in chunks.items() if chunk is not None}
        count = min(CHUNK, length - number * CHUNK)
        if len(packed) < len(columns):
            return None
        if number == length // CHUNK:  # an interrupted commit may have added records to the last chunk
            chunk = ColumnChunk.unpack(packed)
            chunk.split(count)
            packed = chunk.pack()
        return packed if all(is_whole(name, value, count) for name, value in packed.items()) else None

    @retried
    def has_records(self, number: int, crcs: bytes, salt: int) -> bool:
        """Return whether the server has all records of one chunk. ``crcs`` is the chunk of the column ``crc32``."""
        expected = np.frombuffer(crcs, DTYPES["crc32"])
        indices = number * CHUNK + np.arange(len(expected))
        query = {"_id": {"$gte": int(indices[0]), "$lte": int(indices[-1])}}
        options: dict[str, Any] = {"hint": COLUMNS_INDEX, "sort": [("_id", 1)], "batch_size": len(expected)}
        answer = b"".join(self._records.find_raw_batches(query, {"_id": 1, "crc32": 1}, **options))
        if len(answer) != len(expected) * _ID_CRC_DTYPE.itemsize:
            return False
        stored = np.frombuffer(answer, _ID_CRC_DTYPE)
        crc32 = bound_crc32(expected.astype(np.int64), indices, salt)
        return np.array_equal(stored["_id"], indices) and np.array_equal(stored["crc32"], crc32)

    @retried
    def has_events(self, events: int) -> bool:
        """Return whether the server has all lines of the report."""
        keys = {"$gte": event_key(self._id, 0), "$lt": event_key(self._id, events)}
        return bool(self._meta.count_documents({"_id": keys}, hint="_id_") == events)

    @retried
    def has_file(self, index: int, salt: int) -> bool:
        """Read a record's file in GridFS, and return whether the file is whole."""
        found = self._records.find_one({"_id": index}, {STUB: 1, "crc32": 1}) or {}
        if STUB not in found:
            return True  # the record needs no file: the file that was found is left over from an earlier writer
        try:
            document = self.large.get(found[STUB])
            verify(document, index, salt)
        except DamagedRecordError:
            return False
        return stored_crc32(document) == found.get("crc32")


def _split(first: int, documents: Sequence[bytes]) -> Iterator[dict[int, bytes]]:
    """Yield dicts that map indices to documents. A dict ends after _BATCH_BYTES or _BATCH_RECORDS."""
    batch: dict[int, bytes] = {}
    nbytes = 0
    for index, document in enumerate(documents, first):
        batch[index] = document
        nbytes += len(document)
        if nbytes >= _BATCH_BYTES or len(batch) == _BATCH_RECORDS:
            yield batch
            batch, nbytes = {}, 0
    if batch:
        yield batch
