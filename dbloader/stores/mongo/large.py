"""What is over the limit of a document: kept in GridFS, in collections of the store's own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridfs import GridFSBucket
from gridfs.errors import CorruptGridFile, NoFile

from dbloader.stores.mongo.layout import LARGE, STUB, own_collection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo.database import Database
    from pymongo.read_preferences import _ServerMode


class LostError(Exception):
    """A file is not there, or not whole."""


class Large:
    """The files of one store. They keep their collections' names when the store's records are renamed.

    Args:
        database: Of the store.
        collection: Name of the collection of records at the place.
        store: The store's id.
        read_preference: Default the database's.
    """

    def __init__(
        self, database: Database[Any], collection: str, store: str, read_preference: _ServerMode | None = None
    ) -> None:
        name = own_collection(collection, store) + LARGE
        self._bucket = GridFSBucket(database, name, read_preference=read_preference)
        self._files, self._chunks = database[f"{name}.files"], database[f"{name}.chunks"]

    def put(self, file: str, data: bytes) -> None:
        """Stores a file, in the place of what an attempt before may have left of it."""
        with suppress(NoFile):
            self._bucket.delete(file)
        self._bucket.upload_from_stream_with_id(file, file, data)

    def has(self, file: str) -> bool:
        """Tells whether a file is there."""
        return self._files.find_one({"_id": file}, {"_id": 1}) is not None

    def get(self, file: str) -> bytes:
        """Gives a file.

        Raises:
            LostError: It is not there, or not whole.
        """
        try:
            with self._bucket.open_download_stream(file) as stream:
                return stream.read()
        except NoFile:
            raise LostError("it is missing in GridFS") from None
        except CorruptGridFile as error:
            raise LostError(f"it is not whole in GridFS: {error}") from error

    def data_of(self, document: Mapping[str, Any]) -> bytes:
        """Gives the data of a chunk of a column, which are in its document or in a file."""
        return self.get(document[STUB]) if STUB in document else document["data"]

    def remove(self, files: Mapping[str, Any]) -> None:
        """Removes the files whose ids fulfil a condition, and what is there of unfinished ones."""
        self._files.delete_many({"_id": files})
        self._chunks.delete_many({"files_id": files})
