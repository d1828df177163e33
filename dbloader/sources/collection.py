"""A collection in MongoDB with a document for each image file, and a listing of the images to convert."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from dbloader.sources.base import Problem
from dbloader.sources.listing import ListingSource, read_listing
from dbloader.stores.mongo.collection import FileCollection

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
