"""What is over the limit of a document: kept in GridFS, in collections of the store's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
from gridfs import GridFSBucket

from dbloader.records.document import MAX_DOCUMENT
from dbloader.stores.mongo.schema import LARGE, STUB, beginning_with, own_collection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo.database import Database
    from pymongo.read_preferences import _ServerMode


class LostError(Exception):
    """A file is not there, or not whole."""


class LargeRecords:
    """The files of one store.

    Args:
        database: Of the store.
        collection: Name of the place's collection.
        store: The store's id.
        read_preference: Default the database's.
    """

    def __init__(
        self, database: Database[Any], collection: str, store: str, read_preference: _ServerMode | None = None
    ) -> None:
        name = own_collection(collection, store) + LARGE
        self._bucket = GridFSBucket(database, name)
        self._files = database.get_collection(f"{name}.files", read_preference=read_preference)
        self._chunks = database.get_collection(f"{name}.chunks", read_preference=read_preference)

    def put(self, prefix: str, data: bytes) -> str:
        """Store a file and return its id, which no other has: what is left of an attempt before cannot mix with it."""
        file = f"{prefix}{bson.ObjectId()}"
        self._bucket.upload_from_stream_with_id(file, file, data)
        return file

    def of_records(self) -> set[str]:
        """Return the ids of all files of records of which the server has anything."""
        of_records = beginning_with("record/")
        files = self._files.find({"_id": of_records}, {"_id": 1})
        first = self._chunks.find({"files_id": of_records, "n": 0}, {"_id": 0, "files_id": 1})
        return {found["_id"] for found in files} | {found["files_id"] for found in first}

    def get(self, file: object) -> bytes:
        """Return a file.

        The driver's own reader takes what a damaged entry says for granted: sizes of no chunk, a length of any type.

        Raises:
            LostError: It is not there, or not whole.
        """
        found = self._files.find_one({"_id": file}, {"length": 1}) if isinstance(file, str) else None
        if found is None:
            raise LostError("it is missing in GridFS")
        length = found.get("length")
        parts: list[bytes] = []
        there = 0
        chunks = self._chunks.find({"files_id": file}, {"_id": 0, "n": 1, "data": 1}, sort=[("n", 1)])
        for number, chunk in enumerate(chunks):
            part = chunk.get("data")
            if chunk.get("n") != number or not isinstance(part, bytes):
                raise LostError(f"it is not whole in GridFS: chunk {number} is missing")
            parts.append(part)
            there += len(part)
            if there > MAX_DOCUMENT:
                break
        if there != length:
            raise LostError(f"it is not whole in GridFS: it has {there} bytes of {length!r:.20}")
        return b"".join(parts)

    def data_of(self, document: Mapping[str, Any]) -> bytes:
        """Return the data of a chunk of a column, which are in its document or in a file.

        Raises:
            LostError: They are not there, or not whole.
        """
        data = self.get(document[STUB]) if STUB in document else document.get("data")
        if not isinstance(data, bytes):
            raise LostError("it is missing")
        return data
