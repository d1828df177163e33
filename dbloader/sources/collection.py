"""Read image files from any collection in MongoDB whose documents have a file's name and bytes."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from dbloader.errors import NotAStoreError, OptionError, StoreError, StoreNotFoundError
from dbloader.sources.base import Problem
from dbloader.sources.listing import ListingSource, read_listing
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.base import Entry

# Files of a query: each may have 16 MiB before ``hold`` is called.
_READ_FILES = 4


def read_collection(
    place: str | os.PathLike[str],
    listing: str | os.PathLike[str],
    *,
    name_field: str,
    image_field: str,
    file_fields: Sequence[str] = (),
) -> CollectionSource:
    """Return the source of the images that a listing names, from ``mongodb://host/database.collection``.

    ``name_field`` and ``image_field`` are the fields of a document with a file's name and bytes. ``file_fields`` are
    columns of the listing that name files too.
    """
    with ExitStack() as after_error:
        files = FileCollection(place, name_field, image_field)
        after_error.callback(files.close)
        found = read_listing(listing, os.sep, file_fields, make=partial(CollectionSource, files))
        after_error.pop_all()
    return cast("CollectionSource", found)


class CollectionSource(ListingSource):
    """The images that a listing names, from a collection; made by ``read_collection``."""

    def __init__(self, files: FileCollection, *described: Any) -> None:
        super().__init__(*described)
        self._files, self.place = files, files.place
        self.warnings = (*self.warnings, *files.warnings())

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for start in range(0, len(entries), _READ_FILES):
            block = entries[start : start + _READ_FILES]
            names = [os.fsdecode(entry.location[0]) for entry in block]
            found = self.by_name(names)
            for entry, name in zip(block, names, strict=True):
                data = found.get(name)
                hold(len(data or b""))
                yield Problem(entry.name, "is not in the collection") if data is None else data

    def by_name(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of files by their names in the collection; missing files are left out."""
        return self._files.read(names)

    @override
    def close(self) -> None:
        self._files.close()


class FileCollection:
    """A collection with one document for each file: its name in ``name_field``, its bytes in ``image_field``.

    Each process connects at its first use. A pickle has no password.
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
        """Look at the collection, and return a warning if it has no index on the names.

        Raises:
            StoreNotFoundError: The collection does not exist.
            NotAStoreError: No document has both fields.
        """
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
        """Return the bytes of files by their names, in one query, without the missing ones."""
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
        """Release the client. The next use connects again."""
        self._connection = None

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.pid != os.getpid():
            self._connection = Connection(self._place)
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}
