"""Objects below a place, such as ``s3://bucket/imagenet/train/``, taken as the same folder on a disk would be."""

from __future__ import annotations

import posixpath
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.remote.bucket import Bucket
from dbloader.sources.base import Entry, Tally
from dbloader.sources.folder import METADATA_FILES, SUFFIXES, check_not_empty, first_warnings, last_warnings
from dbloader.sources.objects import ObjectSource, object_path, source_errors

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from dbloader.remote.bucket import Item
    from dbloader.sources.base import Problem

# Classes that are listed at once; memory holds their keys.
_CLASSES_AT_ONCE = 16
_NOT_READ = (".tar", ".zip", ".parquet", ".arrow", ".mdb", ".lmdb", ".bson")
_WHAT_IS_READ = (
    "of object storage, folders of image files are read, and files that a listing names (--list): copy it to a disk, "
    "and convert it there"
)


def scan_objects(place: str | os.PathLike[str]) -> ObjectFolder:
    """Return the source of all images below a place, in a "folder" for each class.

    Raises:
        SourceError: There are no images in folders, but something else; or it cannot be listed.
    """
    bucket = Bucket(place)
    where = str(bucket.place)
    if bucket.place.scheme.startswith("http"):
        raise SourceError(
            f"{where}: a web server does not list its files: name them in a listing (--list), whose paths start from "
            "this place"
        )
    with source_errors():
        folders, loose = bucket.folders()
        if not folders and not loose and bucket.place.key and bucket.head("") is not None:
            raise SourceError(f"{where}: is one object: {_WHAT_IS_READ}")
    names = [item.key for item in loose]
    for name in names:
        if name in METADATA_FILES or name.endswith(_NOT_READ):
            raise SourceError(f"{where}: holds {name}: {_WHAT_IS_READ}")
    classes = tuple(name for name in folders if not name.startswith("."))
    images = sum(name.lower().encode().endswith(SUFFIXES) and not name.startswith(".") for name in names)
    if not classes:
        what = f"{images} images lie directly in it" if images else "nothing is there"
        raise SourceError(
            f"{where}: there are no folders in it, one for each class ({what}): put each class in a folder of its own "
            "or use --list FILE"
        )
    return ObjectFolder(bucket, classes, [*first_warnings(where, classes, images)])


class ObjectFolder(ObjectSource):
    """The images below a place; made by ``scan_objects``. Classes, labels and order are those of a `FolderSource`."""

    def __init__(self, bucket: Bucket, classes: tuple[str, ...], warnings: list[str]) -> None:
        super().__init__(bucket, Path("/"), classes, warnings)
        self._first_warnings = warnings

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        tally = Tally()
        filled = [False] * len(self.classes)
        for label, items in enumerate(self._list()):
            for item in sorted(items, key=lambda item: posixpath.split(item.key)):
                if _is_taken(item, tally):
                    filled[label] = True
                    yield Entry(item.key, object_path(item.key, item.etag), label, {}, (0, item.size))
        self.skipped, self.hidden = tally.skipped, tally.hidden
        self.warnings = (*self._first_warnings, *last_warnings(self.classes, filled, tally))
        check_not_empty(self.place, filled, tally)

    def _list(self) -> Iterator[list[Item]]:
        """Yield the objects of each class, in order; those of some classes are listed at once."""
        with ThreadPoolExecutor(_CLASSES_AT_ONCE, thread_name_prefix="dbloader-list") as threads:
            for first in range(0, len(self.classes), _CLASSES_AT_ONCE):
                with source_errors():
                    yield from threads.map(self._bucket.items, self.classes[first : first + _CLASSES_AT_ONCE])


def _is_taken(item: Item, tally: Tally) -> bool:
    """Return whether an object is an image to convert; count it if not, as a file of a folder is counted."""
    if any(part.startswith(".") for part in item.key.split("/")):
        tally.hidden += 1
        return False
    name = posixpath.basename(item.key).encode()
    if name.lower().endswith(SUFFIXES):
        return True
    if item.size or b"." in name:  # else it stands for an empty folder
        tally.skip(name)
        if name.decode() in METADATA_FILES:
            tally.metadata = tally.metadata or item.key
    return False
