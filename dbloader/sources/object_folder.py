"""Objects below a place, such as ``s3://bucket/imagenet/train/``, taken as the same folder on a disk would be."""

from __future__ import annotations

import posixpath
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import SourceError, StoreError
from dbloader.sources.base import Entry, Source, Tally
from dbloader.sources.folder import METADATA_FILES, SUFFIXES, check_not_empty, first_warnings, last_warnings
from dbloader.sources.objects import ObjectFiles, as_source_error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

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
    files = ObjectFiles(place)
    if files.bucket.place.scheme.startswith("http"):
        raise SourceError(
            f"{files.place}: a web server does not list its files: name them in a listing (--list), whose paths "
            "start from this place"
        )
    try:
        folders, loose = files.bucket.folders()
        if not folders and not loose and files.bucket.place.key and files.bucket.head("") is not None:
            raise SourceError(f"{files.place}: is one object: {_WHAT_IS_READ}")
    except StoreError as error:
        raise as_source_error(error) from error
    names = [posixpath.basename(item.key) for item in loose]
    for name in names:
        if name in METADATA_FILES or name.endswith(_NOT_READ):
            raise SourceError(f"{files.place}: holds {name}: {_WHAT_IS_READ}")
    classes = tuple(name for name in folders if not name.startswith("."))
    images = sum(name.lower().encode().endswith(SUFFIXES) and not name.startswith(".") for name in names)
    if not classes:
        what = f"{images} images lie directly in it" if images else "nothing is there"
        raise SourceError(
            f"{files.place}: there are no folders in it, one for each class ({what}): put each class in a folder of "
            "its own or use --list FILE"
        )
    return ObjectFolder(files, classes, images)


class ObjectFolder(Source):
    """The images below a place; made by ``scan_objects``. Classes, labels and order are those of a `FolderSource`."""

    def __init__(self, files: ObjectFiles, classes: tuple[str, ...], loose: int) -> None:
        self._files = files
        super().__init__(Path("/"), classes, first_warnings(files.place, classes, loose))
        self._first_warnings = self.warnings

    @property
    @override
    def place(self) -> str:
        return self._files.place

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        tally = Tally()
        filled = [False] * len(self.classes)
        try:
            for label, items in enumerate(self._list()):
                for item in sorted(items, key=lambda item: posixpath.split(item.key)):
                    if _is_taken(item, tally):
                        filled[label] = True
                        path = self._files.path(item.key, item.etag)
                        yield Entry(item.key, path, label, {}, (0, item.size))
        except StoreError as error:
            raise as_source_error(error) from error
        self.skipped, self.hidden = tally.skipped, tally.hidden
        self.warnings = (*self._first_warnings, *last_warnings(self.classes, filled, tally))
        check_not_empty(self.place, filled, tally)

    def _list(self) -> Iterator[list[Item]]:
        """Yield the objects of each class, in order; several are listed ahead."""
        bucket = self._files.bucket
        with ThreadPoolExecutor(_CLASSES_AT_ONCE, thread_name_prefix="dbloader-list") as threads:
            ahead = deque(threads.submit(list, bucket.items(name)) for name in self.classes[:_CLASSES_AT_ONCE])
            try:
                for number in range(len(self.classes)):
                    yield ahead.popleft().result()
                    for name in self.classes[number + _CLASSES_AT_ONCE : number + _CLASSES_AT_ONCE + 1]:
                        ahead.append(threads.submit(list, bucket.items(name)))
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        return self._files.read(entries, hold)

    @property
    @override
    def repeats(self) -> int:
        return self._files.repeats

    @override
    def close(self) -> None:
        self._files.close()


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
