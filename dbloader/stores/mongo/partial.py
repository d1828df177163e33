"""Write and check the records, columns and events of a store that is not published yet."""

from __future__ import annotations

import math
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
from dbloader.errors import DamagedRecordError, FieldError, StoreFullError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, ColumnChunk, is_whole, unseal_chunk
from dbloader.records.decode import verify
from dbloader.records.document import bound_crc32, seal
from dbloader.stores.mongo.connection import retried
from dbloader.stores.mongo.errors import has_only_duplicates
from dbloader.stores.mongo.gridfs import LargeRecords, LostError
from dbloader.stores.mongo.query import with_hint
from dbloader.stores.mongo.schema import (
    COLUMNS_INDEX,
    ID_CRC_DTYPE,
    INDEXES,
    MANIFEST,
    MAX_ON_SERVER,
    STUB,
    column_key,
    event_key,
    make_stub,
    prefix_range,
    records_collection,
    stored_crc32,
)
from dbloader.stores.mongo.sharding import shard_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dbloader.stores.mongo.catalog import Catalog
    from dbloader.stores.mongo.connection import Connection
    from dbloader.stores.mongo.lease import Lease
    from dbloader.stores.write_buffer import Commit

# The size of one insert, and how many are sent at once: the server works on one while the next is on its way. An
# answer must come in time also where records are tiny: indexing 30,000 took a busy server over 10 s.
BATCH_BYTES, BATCH_RECORDS = 8 * 2**20, CHUNK
IN_FLIGHT = 3
# Bytes that a server needs besides those of a commit, which it writes into its journal too.
_ROOM = 16 * 2**20
_MAX_CHUNK = MAX_ON_SERVER - 2**10  # its document has a few more fields


class PartialStore:
    """A store that is being written. Every method can be repeated after it was cut off anywhere.

    A writer that was overtaken while it was silent may still write, and the server may run a command of this writer
    long after it was repeated. Neither changes what was written since: records are only inserted, and existing ones are
    compared; columns and events carry the number of the run and commit that wrote them, and only later ones replace
    them; no file in GridFS is written twice. ``run`` is the number of this writer among the store's, from 1 on.
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
        """Create the indexes, and spread the records of a new store over a cluster's shards.

        What was stored after the last commit stays: a late delete could remove newer records.
        """
        self._lease.check()
        self._check_room(0)
        if new:
            shard_records(self.connection, self._records)
        for name, keys in INDEXES.items():
            self._records.create_index(keys, name=name)

    @retried
    def trim(self, length: int, events: int) -> None:
        """Remove what earlier writers left after the last record and event of this store, which is published now."""
        self._records.delete_many({"_id": {"$gte": length}})
        later = {**prefix_range(f"{self._id}/event/"), "$gte": event_key(self._id, events)}
        self._meta.delete_many({"_id": later})

    def commit(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        """Store records, chunks of columns, events, and the progress.

        After a failure all of it is repeated: only the last step waits for the journal, so a server that was killed may
        have lost the others.
        """
        self._commits += 1
        beside: list[dict[str, Any]] = [
            {"_id": column_key(self._id, name, number), "data": self._check_size(packed, number)}
            for number, chunk in commit.chunks.items()
            for name, packed in chunk.items()
        ]
        beside += [
            {"_id": event_key(self._id, number), "event": bson.decode(seal(event, number, progress["salt"]))}
            for number, event in enumerate(commit.events, progress["events"] - len(commit.events))
        ]

        def write() -> None:
            self._lease.check()
            self._check_room(sum(map(len, commit.documents)))
            self._insert(commit)
            self._write_beside(beside)
            self._catalog.commit(self._id, bson.decode(seal(progress)))

        self.connection.retry(write)

    def _check_room(self, nbytes: int) -> None:
        """Raise StoreFullError if the server's disk has no room for some bytes: when it is full, the server ends."""
        with suppress(OperationFailure):  # the user may write, and not ask this
            found = self.connection.database.command("dbStats")
            left = found.get("fsTotalSize", math.inf) - found.get("fsUsedSize", 0)  # a router does not say
            if left < 2 * nbytes + _ROOM:
                where = self.connection.place.redacted
                raise StoreFullError(f"no room is left for {where}: the disk of the server has {size(left)} left")

    def _check_size(self, chunk: bytes, number: int) -> bytes:
        if len(chunk) > _MAX_CHUNK:
            which = f"records {number * CHUNK} to {(number + 1) * CHUNK - 1}"
            where = self.connection.place.redacted
            raise FieldError(f"the names of {which} are too long for {where}: together they have over 16 MiB")
        return chunk

    def _insert(self, commit: Commit) -> None:
        with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="dbloader-insert") as executor:
            # pymongo.timeout is in the context.
            batches = _split(commit.first, commit.documents)
            inserts = [executor.submit(copy_context().run, self._insert_batch, batch) for batch in batches]
            for insert in inserts:
                insert.result()

    def _insert_batch(self, batch: Mapping[int, bytes]) -> None:
        """Insert records, some of which may be there already from an earlier attempt."""
        documents = {index: RawBSONDocument(self._fit(index, document)) for index, document in batch.items()}
        self._lease.check()
        try:
            self._records.insert_many(documents.values(), ordered=False)
        except BulkWriteError as error:
            if not has_only_duplicates(error):
                raise
            self._replace_others(batch, documents)

    def _fit(self, index: int, document: bytes) -> bytes:
        """Return a record's document, or the stub of one that is too large, which goes to GridFS."""
        if len(document) <= MAX_ON_SERVER:
            return document
        mine = {"_id": index, "crc32": stored_crc32(document), STUB: {"$exists": True}}
        found = self._records.find_one(mine, {STUB: 1})  # from an earlier attempt
        return make_stub(document, found[STUB] if found else self.large.put(index, document))

    def _replace_others(self, batch: Mapping[int, bytes], documents: Mapping[int, RawBSONDocument]) -> None:
        """Replace different records that a writer which was overtaken has inserted."""

        def find(hint: str | None) -> dict[Any, Any]:
            query = {"_id": {"$in": list(batch)}}
            found = self._records.find(query, {"_id": 1, "crc32": 1}, hint=hint, batch_size=len(batch))
            return {other["_id"]: other.get("crc32") for other in found}

        stored = with_hint(find, COLUMNS_INDEX)
        others = [index for index, document in batch.items() if stored.get(index) != stored_crc32(document)]
        if others:
            self._catalog.check_writer(self._id)
        for index in others:
            # Run late, this does not change what a successor has put there since.
            seen = {"_id": index, "crc32": stored.get(index)}
            with suppress(DuplicateKeyError):
                self._records.replace_one(seen, documents[index], upsert=True)

    def _write_beside(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Write chunks of columns and events, unless a later run or commit has written them."""
        if not documents:
            return
        # This filter does not find a later one, and the server refuses to insert its _id again.
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
    def chunk(self, number: int, length: int, salt: int) -> dict[str, bytes] | None:
        """Return the packed columns of one chunk of a store of so many records; None if any is missing or damaged."""
        keys = {column_key(self._id, name, number): name for name in COLUMNS}
        stored = {keys[found["_id"]]: found.get("data") for found in self._meta.find({"_id": {"$in": list(keys)}})}
        chunks = {name: unseal_chunk(name, number, sealed, salt) for name, sealed in stored.items()}
        packed = {name: bytes(chunk) for name, chunk in chunks.items() if chunk is not None}
        count = min(CHUNK, length - number * CHUNK)
        if len(packed) < len(COLUMNS):
            return None
        if number == length // CHUNK:  # a commit that was cut off may have made it longer
            chunk = ColumnChunk.unpack(packed)
            chunk.cut(count)
            packed = chunk.pack()
        return packed if all(is_whole(name, value, count) for name, value in packed.items()) else None

    @retried
    def has_records(self, number: int, crcs: bytes, salt: int) -> bool:
        """Tell whether the server has the records of one chunk, by their packed CRC-32."""
        expected = np.frombuffer(crcs, DTYPES["crc32"])
        indices = number * CHUNK + np.arange(len(expected))
        query = {"_id": {"$gte": int(indices[0]), "$lte": int(indices[-1])}}

        def find(hint: str | None) -> bytes:
            options: dict[str, Any] = {"hint": hint, "sort": [("_id", 1)], "batch_size": len(expected)}
            return b"".join(self._records.find_raw_batches(query, {"_id": 1, "crc32": 1}, **options))

        answer = with_hint(find, COLUMNS_INDEX)
        if len(answer) != len(expected) * ID_CRC_DTYPE.itemsize:
            return False
        stored = np.frombuffer(answer, ID_CRC_DTYPE)
        crc32 = bound_crc32(expected.astype(np.int64), indices, salt)
        return np.array_equal(stored["_id"], indices) and np.array_equal(stored["crc32"], crc32)

    @retried
    def has_file(self, index: int, salt: int) -> bool:
        """Tell whether a record in GridFS is whole. Its stub's CRC-32 does not prove that, so the file is read."""
        found = self._records.find_one({"_id": index}, {STUB: 1, "crc32": 1}) or {}
        if STUB not in found:
            return True  # a writer that was overtaken left the file
        try:
            document = self.large.get(found[STUB])
            verify(document, index, salt)
        except (LostError, DamagedRecordError):
            return False
        return stored_crc32(document) == found.get("crc32")


def _split(first: int, documents: Sequence[bytes]) -> Iterator[dict[int, bytes]]:
    """Yield batches of about BATCH_BYTES, or of BATCH_RECORDS: records by their indices."""
    batch: dict[int, bytes] = {}
    nbytes = 0
    for index, document in enumerate(documents, first):
        batch[index] = document
        nbytes += len(document)
        if nbytes >= BATCH_BYTES or len(batch) == BATCH_RECORDS:
            yield batch
            batch, nbytes = {}, 0
    if batch:
        yield batch
