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
    """A collection with one document for each file: its name in ``name_field``, its bytes in ``image_field``.

    Each process connects at its first use.
    """

    def __init__(self, place: str | os.PathLike[str], name_field: str, image_field: str) -> None:
        for field in (name_field, image_field):
            if not field or "." in field or field.startswith("$"):
                raise OptionError(
                    f"name_field and image_field must be names of fields of the documents themselves, got {field!r}"
                )
        self._place = parse(place)
        self.place = self._place.redacted
        self.name_field = name_field
        self.image_field = image_field
        self._indexed = False
        self._connection: Connection | None = None

    def warnings(self) -> list[str]:
        """Return what a person should know about the collection: whether it lacks an index."""
        connection = self._connect()
        collection = connection.database[self._place.collection]
        wanted = {self.name_field: {"$exists": True}, self.image_field: {"$type": "binData"}}
        if connection.retry(lambda: collection.find_one(wanted, {"_id": 1}), scan=collection) is None:
            if not connection.retry(
                lambda: connection.database.list_collection_names(filter={"name": collection.name})
            ):
                raise StoreNotFoundError(f"{self.place} does not exist")
            raise NotAStoreError(
                f"{self.place} has no document with a name in {self.name_field!r} and a file's bytes in "
                f"{self.image_field!r}"
            )
        indexes = connection.retry(collection.index_information).values()
        self._indexed = self.name_field == "_id" or any(index["key"][0][0] == self.name_field for index in indexes)
        if self._indexed:
            return []
        collection_name, field = json.dumps(self._place.collection), json.dumps(self.name_field)
        line = f"db.getCollection({collection_name}).createIndex({{{field}: 1}})"
        return [
            f"{self.place} has no index on {self.name_field!r}, so the server looks through all of it for every batch; "
            f"make one in mongosh: {line}"
        ]

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of files by their names, in one query, without those that are missing."""
        connection = self._connect()
        collection = connection.database[self._place.collection]
        query = {self.name_field: {"$in": list(dict.fromkeys(names))}}
        fields = {"_id": 0, self.name_field: 1, self.image_field: 1}
        scan = None if self._indexed else collection
        files: dict[str, bytes] = {}
        for document in connection.retry(lambda: list(collection.find(query, fields)), scan=scan):
            name, data = document[self.name_field], document.get(self.image_field)
            if not isinstance(name, str):
                continue  # the query also finds an array that contains the name
            if name in files:
                raise StoreError(f"{self.place} has several documents whose {self.name_field!r} is {name!r}")
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
