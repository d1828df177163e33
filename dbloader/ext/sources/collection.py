"""Read image files from a collection in MongoDB. Each document has the name and the bytes of a file."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from dbloader.errors import NotAStoreError, OptionError, StoreError
from dbloader.ext.sources.listing import ListingSource, read_listing
from dbloader.sources.base import Problem
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.base import Entry, Listing
    from dbloader.stores.mongo.uri import MongoURI

# Number of files in one query. It is small: a file may have 16 MiB, and memory is limited only after the query.
_READ_FILES = 4


def read_collection(
    place: str | os.PathLike[str],
    listing: str | os.PathLike[str] | Listing,
    *,
    name_field: str,
    image_field: str,
    file_fields: Sequence[str] = (),
    encoding: str | None = None,
) -> CollectionSource:
    """Return the source for a listing of images in ``mongodb://host/database.collection``.

    Documents have a file's name in ``name_field`` and its bytes in ``image_field``. ``file_fields`` are columns of the
    listing with names of further files.

    Raises:
        NotAStoreError: There is no such collection, or none of its documents has both fields.
    """
    for field in (name_field, image_field):
        if not field or "." in field or field.startswith("$"):
            raise OptionError(
                f"name_field and image_field must be names of top-level fields of the documents, got {field!r}"
            )
    make = partial(CollectionSource, parse(place), name_field, image_field)
    return cast("CollectionSource", read_listing(listing, os.sep, file_fields, make, encoding=encoding))


class CollectionSource(ListingSource):
    """Reads the images of a listing from a collection; made by ``read_collection``.

    A pickled source connects again at its first use.
    """

    def __init__(self, place: MongoURI, name_field: str, image_field: str, *described: Any) -> None:
        super().__init__(*described)
        self._uri, self.place = place, place.redacted
        self._name_field, self._image_field = name_field, image_field
        self._connection: Connection | None = None
        self._indexed = self._find_index()
        if not self._indexed:
            what = "so the server reads the whole collection for each query: make an index"
            self.warnings = (*self.warnings, f"{self.place} has no index on {name_field!r}, {what}")

    def _find_index(self) -> bool:
        """Return whether the collection has an index on the names. Raise NotAStoreError if it contains no files."""
        connection = self._connect()
        collection = connection.database[self._uri.collection]
        wanted = {self._name_field: {"$exists": True}, self._image_field: {"$type": "binData"}}
        if connection.retry(lambda: collection.find_one(wanted, {"_id": 1}), scan=collection) is None:
            raise NotAStoreError(
                f"{self.place} has no document with a name in {self._name_field!r} and a file's bytes in "
                f"{self._image_field!r}"
            )
        indexes = connection.retry(collection.index_information).values()
        return self._name_field == "_id" or any(index["key"][0][0] == self._name_field for index in indexes)

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
        """Return {name: bytes} for files, with one query. Leave out missing files."""
        connection = self._connect()
        collection = connection.database[self._uri.collection]
        query = {self._name_field: {"$in": list(dict.fromkeys(names))}}
        fields = {"_id": 0, self._name_field: 1, self._image_field: 1}
        scan = None if self._indexed else collection
        files: dict[str, bytes] = {}
        for document in connection.retry(lambda: list(collection.find(query, fields)), scan=scan):
            name, data = document[self._name_field], document.get(self._image_field)
            if not isinstance(name, str):
                continue  # the query also finds an array that contains the name
            if name in files:
                raise StoreError(f"{self.place} has several documents whose {self._name_field!r} is {name!r}")
            if isinstance(data, bytes):
                files[name] = bytes(data)
        return files

    @override
    def close(self) -> None:
        """Release the client. The next use connects again."""
        self._connection = None

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.pid != os.getpid():
            self._connection = Connection(self._uri)
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}
