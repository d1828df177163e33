"""Keep records that are too large for one document in GridFS, in a bucket of their store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
from gridfs import GridFSBucket

from dbloader.records.document import MAX_DOCUMENT
from dbloader.stores.mongo.schema import LARGE, prefix_range, records_collection

if TYPE_CHECKING:
    from pymongo.database import Database
    from pymongo.read_preferences import _ServerMode


class LostError(Exception):
    """A file is missing or incomplete."""


class LargeRecords:
    """The large records of one store. The default read preference is the database's."""

    def __init__(
        self, database: Database[Any], collection: str, store: str, read_preference: _ServerMode | None = None
    ) -> None:
        name = records_collection(collection, store) + LARGE
        self._bucket = GridFSBucket(database, name)
        self._files = database.get_collection(f"{name}.files", read_preference=read_preference)
        self._chunks = database.get_collection(f"{name}.chunks", read_preference=read_preference)

    def put(self, index: int, document: bytes) -> str:
        """Store a record and return the file's id, which is new: leftovers of an earlier attempt cannot mix with it."""
        file = f"record/{index:016x}/{bson.ObjectId()}"
        self._bucket.upload_from_stream_with_id(file, file, document)
        return file

    def list_indices(self) -> list[int]:
        """Return the indices of all records that have a file, or leftovers of one, ascending."""
        of_records = prefix_range("record/")
        files = [found["_id"] for found in self._files.find({"_id": of_records}, {"_id": 1})]
        first = self._chunks.find({"files_id": of_records, "n": 0}, {"_id": 0, "files_id": 1})
        return sorted({int(file.split("/")[1], 16) for file in (*files, *(found["files_id"] for found in first))})

    def get(self, file: object) -> bytes:
        """Return the content of a file, or raise LostError.

        The driver's own reader trusts the entry in ``.files``, of which any element may be damaged.
        """
        found = self._files.find_one({"_id": file}, {"length": 1}) if isinstance(file, str) else None
        if found is None:
            raise LostError("it is missing in GridFS")
        length = found.get("length")
        parts: list[bytes] = []
        nbytes = 0
        chunks = self._chunks.find({"files_id": file}, {"_id": 0, "n": 1, "data": 1}, sort=[("n", 1)])
        for number, chunk in enumerate(chunks):
            part = chunk.get("data")
            if chunk.get("n") != number or not isinstance(part, bytes):
                raise LostError(f"it is not whole in GridFS: chunk {number} is missing")
            parts.append(part)
            nbytes += len(part)
            if nbytes > MAX_DOCUMENT:
                break
        if nbytes != length:
            raise LostError(f"it is not whole in GridFS: it has {nbytes} bytes of {length!r:.20}")
        return b"".join(parts)
