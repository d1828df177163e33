"""Read image files from a collection that is not a dbloader store: documents with a name and the file's bytes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dbloader.errors import NotAStoreError, OptionError, StoreError, StoreNotFoundError
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Sequence


class FileCollection:
    """A collection with one document for each file: its name in the field ``key``, its bytes in ``image``.

    Each process connects at its first use.
    """

    def __init__(self, place: str | os.PathLike[str], key: str, image: str) -> None:
        for field in (key, image):
            if not field or "." in field or field.startswith("$"):
                raise OptionError(f"key and image must be names of fields of the documents themselves, got {field!r}")
        self._place = parse(place)
        self.place = self._place.redacted
        self.key = key
        self.image = image
        self._indexed = False
        self._connection: Connection | None = None

    def warnings(self) -> list[str]:
        """Return what a person should know about the collection: whether it lacks an index."""
        connection = self._connect()
        collection = connection.database[self._place.collection]
        wanted = {self.key: {"$exists": True}, self.image: {"$type": "binData"}}
        if connection.retry(lambda: collection.find_one(wanted, {"_id": 1}), scan=collection) is None:
            if not connection.retry(
                lambda: connection.database.list_collection_names(filter={"name": collection.name})
            ):
                raise StoreNotFoundError(f"{self.place} does not exist")
            raise NotAStoreError(
                f"{self.place} has no document with a name in {self.key!r} and a file's bytes in {self.image!r}"
            )
        indexes = connection.retry(collection.index_information).values()
        self._indexed = self.key == "_id" or any(index["key"][0][0] == self.key for index in indexes)
        if self._indexed:
            return []
        line = f"db.getCollection({json.dumps(self._place.collection)}).createIndex({{{json.dumps(self.key)}: 1}})"
        return [
            f"{self.place} has no index on {self.key!r}, so the server looks through all of it for every batch; "
            f"make one in mongosh: {line}"
        ]

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of files by their names, in one query, without those that are missing."""
        connection = self._connect()
        collection = connection.database[self._place.collection]
        query = {self.key: {"$in": list(dict.fromkeys(names))}}
        fields = {"_id": 0, self.key: 1, self.image: 1}
        scan = None if self._indexed else collection
        files: dict[str, bytes] = {}
        for document in connection.retry(lambda: list(collection.find(query, fields)), scan=scan):
            name, data = document[self.key], document.get(self.image)
            if not isinstance(name, str):
                continue  # the query also finds an array that contains the name
            if name in files:
                raise StoreError(f"{self.place} has several documents whose {self.key!r} is {name!r}")
            if isinstance(data, bytes):
                files[name] = bytes(data)
        return files

    def close(self) -> None:
        """Let go of the client. The next use connects again."""
        self._connection = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.pid != os.getpid():
            self._connection = Connection(self._place)
        return self._connection
