"""The records, columns and events of a store that is being written."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from dbloader.errors import DamagedRecordError, FieldError, StoreLockedError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, ColumnChunk, is_whole, unseal_chunk
from dbloader.records.document import bound_crc32, seal, verify
from dbloader.stores.mongo.connection import without_duplicates
from dbloader.stores.mongo.gridfs import LargeRecords, LostError
from dbloader.stores.mongo.query import hinted
from dbloader.stores.mongo.schema import (
    COLUMNS_INDEX,
    ID_CRC_DTYPE,
    INDEXES,
    MANIFEST,
    MAX_ON_SERVER,
    STORE,
    STUB,
    beginning_with,
    column_key,
    crc32_in,
    event_key,
    own_collection,
    record_file,
    stub_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.lease import Lease
    from dbloader.stores.mongo.uri import MongoURI

# Of one insert, and how many of them are under way at once: the server works on one while the next is sent.
BATCH_BYTES = 8 * 2**20
IN_FLIGHT = 3
# A chunk's document has little beside its data.
_MAX_CHUNK = MAX_ON_SERVER - 2**10


class PartialStore:
    """What is written of one store before it is finished. Every method can be called again after it was cut off.

    A writer that was overtaken while it was silent may still write. It changes nothing that its successor writes:
    records are only ever inserted, and those that are there already are compared; columns and events carry the numbers
    of the run and the commit that wrote them and give way to later ones only; no file in GridFS is written twice. The
    same holds for a command of this writer that the server runs long after it was asked again.

    Attributes:
        run: How many writers there have been, with this one.
        commits: How many commits this one has begun.
    """

    def __init__(self, database: Database[Any], place: MongoURI, store: str, lease: Lease) -> None:
        self.run = self.commits = 0
        self._place = place
        self._id = store
        self._lease = lease
        self._meta: Collection[Any] = database[place.collection + MANIFEST]
        self._records: Collection[Any] = database[own_collection(place.collection, store)]
        self._large = LargeRecords(database, place.collection, store)

    def begin(self) -> None:
        """Make the collection of records ready.

        What was stored there after the last commit stays: a server may run a command long after it was asked again, and
        one that deletes would then find the records that were written since.
        """
        self._lease.check()
        for name, keys in INDEXES.items():
            self._records.create_index(keys, name=name)

    def trim(self, length: int, events: int) -> None:
        """Remove what earlier writers left behind the last record and event of a store that is published by now."""
        self._records.delete_many({"_id": {"$gte": length}})
        later = {**beginning_with(f"{self._id}/event/"), "$gte": event_key(self._id, events)}
        self._meta.delete_many({"_id": later})

    def store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        first_event: int,
        events: Sequence[Mapping[str, Any]],
    ) -> None:
        """Store records from an index on, chunks of columns by their numbers, and events.

        Raises:
            StoreLockedError: A later writer has been here.
            FieldError: A record's name is too long for a document.
        """
        with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="dbloader-insert") as executor:
            # The time that they have is in the context.
            inserts = [
                executor.submit(contextvars.copy_context().run, self._insert, batch)
                for batch in _batches(first, documents)
            ]
            for insert in inserts:
                insert.result()
        beside = [
            self._chunk_document(number, name, packed)
            for number, chunk in chunks.items()
            for name, packed in chunk.items()
        ]
        beside += [
            {"_id": event_key(self._id, number), "event": bson.decode(seal(event, number))}
            for number, event in enumerate(events, first_event)
        ]
        if not beside:
            return
        # One of a later run or commit is not found by this filter, and inserting its _id again is refused.
        run = self.run << 32 | self.commits
        ours = {"run": {"$lte": run}}
        try:
            self._meta.bulk_write(
                [
                    ReplaceOne({"_id": document["_id"], **ours}, {**document, "run": run}, upsert=True)
                    for document in beside
                ]
            )
        except BulkWriteError as error:
            if without_duplicates(error):
                raise self._overtaken() from None
            raise

    def _insert(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Insert records, of which some may be there already from an attempt before."""
        documents = [RawBSONDocument(self._document(index, document)) for index, document in batch]
        self._lease.check()
        try:
            self._records.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            if not without_duplicates(error):
                raise
            self._replace_others({index: crc32_in(document) for index, document in batch}, documents)

    def _document(self, index: int, document: bytes) -> bytes:
        if len(document) <= MAX_ON_SERVER:
            return document
        there = {"_id": index, "crc32": crc32_in(document), STUB: {"$exists": True}}
        found = self._records.find_one(there, {STUB: 1})  # of an attempt before
        file = None if found is None else found[STUB]
        if file is None:
            if len(stub_of(document, record_file(index))) > MAX_ON_SERVER - 2**5:
                raise FieldError(f"the name of record {index} is too long for {self._place.shown}: it has over 16 MiB")
            file = self._large.put(record_file(index), document)
        return stub_of(document, file)

    def _replace_others(self, crcs: Mapping[int, int], documents: Sequence[RawBSONDocument]) -> None:
        """Put in their place records where a writer that was overtaken has inserted others."""

        def ask(hint: str | None) -> dict[Any, Any]:
            asked = {"_id": {"$in": list(crcs)}}
            found = self._records.find(asked, {"_id": 1, "crc32": 1}, hint=hint, batch_size=len(crcs))
            return {other["_id"]: other.get("crc32") for other in found}

        stored = hinted(ask, COLUMNS_INDEX)
        differing = {
            index: document
            for (index, crc), document in zip(crcs.items(), documents, strict=True)
            if stored.get(index) != crc
        }
        if differing and self._meta.find_one({"_id": STORE, "partial.writer": self._lease.token}, {"_id": 1}) is None:
            raise self._overtaken()
        for index, document in differing.items():
            # Only what was seen is replaced: run late, this changes nothing of what a successor has put there since.
            with suppress(DuplicateKeyError):
                self._records.replace_one({"_id": index, "crc32": stored.get(index)}, document, upsert=True)

    def _chunk_document(self, number: int, name: str, packed: bytes) -> dict[str, Any]:
        key = column_key(self._id, name, number)
        if len(packed) <= _MAX_CHUNK:
            return {"_id": key, "data": packed}
        # Names of 4 kB and more. The file of the commit before is needed until this commit is durable.
        return {"_id": key, STUB: self._large.put(f"{key}/", packed)}

    def chunks(self, length: int) -> int:
        """Return the number of chunks of a column of so many records."""
        return -(-length // CHUNK)

    def chunk(self, number: int, length: int) -> dict[str, bytes] | None:
        """Return the packed columns of one chunk of a store of so many records; None if they are not whole."""
        keys = {column_key(self._id, name, number): name for name in COLUMNS}
        found = list(self._meta.find({"_id": {"$in": list(keys)}}))
        try:
            stored = {keys[document["_id"]]: self._large.data_of(document) for document in found}
        except LostError:
            return None
        count = min(CHUNK, length - number * CHUNK)
        chunks = {name: unseal_chunk(name, number, sealed) for name, sealed in stored.items()}
        packed = {name: bytes(chunk) for name, chunk in chunks.items() if chunk is not None}
        if len(packed) < len(COLUMNS):
            return None
        if number == length // CHUNK:  # a commit that was cut off may have made it longer
            chunk = ColumnChunk.unpack(packed)
            chunk.cut(count)
            packed = chunk.pack()
        return packed if all(is_whole(name, value, count) for name, value in packed.items()) else None

    def is_stored(self, number: int, crcs: bytes) -> bool:
        """Return whether the server has the records of one chunk, by their CRC-32."""
        expected = np.frombuffer(crcs, DTYPES["crc32"])
        indices = np.arange(number * CHUNK, number * CHUNK + len(expected))

        def ask(hint: str | None) -> bytes:
            batches = self._records.find_raw_batches(
                {"_id": {"$gte": int(indices[0]), "$lte": int(indices[-1])}},
                {"_id": 1, "crc32": 1},
                hint=hint,
                sort=[("_id", 1)],
                batch_size=len(expected),
            )
            return b"".join(batches)

        answer = hinted(ask, COLUMNS_INDEX)
        if len(answer) != len(expected) * ID_CRC_DTYPE.itemsize:
            return False
        stored = np.frombuffer(answer, ID_CRC_DTYPE)
        return np.array_equal(stored["_id"], indices) and np.array_equal(
            stored["crc32"], bound_crc32(expected.astype(np.int64), indices)
        )

    def in_gridfs(self) -> list[int]:
        """Return the indices of all records of which GridFS has anything, ascending."""
        return sorted({int(file.split("/")[1], 16) for file in self._large.of_records()})

    def is_file_stored(self, index: int) -> bool:
        """Tell whether the server has the file in GridFS of a record as it was sent, if the record has one.

        It is read again as a whole: the record's CRC-32 among the records says nothing of what its file holds.
        """
        found = self._records.find_one({"_id": index}, {STUB: 1, "crc32": 1}) or {}
        if STUB not in found:
            return True  # what GridFS has is from a writer that was overtaken
        try:
            file = self._large.get(found[STUB])
            verify(file, index)
        except (LostError, DamagedRecordError):
            return False
        return crc32_in(file) == found.get("crc32")

    def _overtaken(self) -> StoreLockedError:
        return StoreLockedError(f"another process has taken over the conversion at {self._place.shown}")


def _batches(first: int, documents: Sequence[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield records with their indices, some megabytes at a time."""
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
