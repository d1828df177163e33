"""Read images from object storage: from class folders, or with a listing."""

from __future__ import annotations

import os
import posixpath
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from dbloader.errors import SourceError, SourceNotFoundError, StoreError, StoreNotFoundError
from dbloader.ext.remote.bucket import Bucket
from dbloader.ext.remote.errors import NotWholeError, ObjectChangedError
from dbloader.ext.sources.archive import TARS, ZIPS, is_left_out
from dbloader.ext.sources.class_folders import CLASS_FOLDERS, FOLDERS_IN_WORDS, Companions, Depths, folder_warnings
from dbloader.ext.sources.listing import ListingSource, read_listing
from dbloader.ext.sources.listing_files import ListedFiles
from dbloader.ext.sources.options import UNDECIDED
from dbloader.sources.base import MAX_BYTES, Entry, FieldFile, Problem, Source, Tally
from dbloader.sources.folder import (
    LATE,
    METADATA_FILES,
    OUTSIDE,
    SIDECARS,
    SUFFIXES,
    check_filled,
    describe_classes,
    is_system,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dbloader.ext.remote.bucket import Item
    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Listing

# Number of concurrent requests. One request at a time reads only about 10 images a second from a cloud: it mostly
# waits.
_AT_ONCE = 64
# Number of classes to list at the same time. It is small, because all keys of these classes are in memory.
_CLASSES_AT_ONCE = 16
_NOT_READ = (*TARS, *ZIPS, ".parquet", ".arrow", ".mdb", ".lmdb", ".bson")
_WHAT_IS_READ = (
    "from object storage, convert reads only class folders of images, and files that a listing names (--listing); copy "
    "anything else to a disk, and convert it there"
)


class _Location(NamedTuple):
    """The key of an object, relative to the URL of the source."""

    key: bytes
    etag: str = ""  # ETag in the bucket's list of objects; "" if a listing names the object
    size: int | None = None  # number of bytes in that list; None if a listing names the object

    @property
    def path(self) -> str:
        return posixpath.normpath(os.fsdecode(self.key)).lstrip("/")


def read_listed_objects(
    place: str | os.PathLike[str],
    listing: str | os.PathLike[str] | Listing,
    file_fields: Sequence[str] = (),
    encoding: str | None = None,
) -> ListingSource:
    """Return the source for a listing of objects. The paths in the listing are keys below the place."""
    bucket = Bucket(place)
    files = None  # a web server does not list its files
    if not bucket.parts.scheme.startswith("http"):
        with_errors = _source_errors()
        has = with_errors(lambda path: bucket.head(_Location(path).path) is not None)
        files = ListedFiles(None, has, with_errors(lambda: [item.key.encode() for item in bucket.items()]))
    return read_listing(listing, os.sep, file_fields, partial(ListedObjects, bucket), files, encoding=encoding)


class ObjectSource(Source):
    """Reads images from object storage. The threads start with the first read."""

    asks_again = True

    def __init__(self, bucket: Bucket, *described: Any) -> None:
        super().__init__(*described)
        self._bucket, self.place = bucket, bucket.place
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-objects")

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        started = []
        for entry in entries:
            if (listed := _Location(*entry.location)).size is not None:
                hold(listed.size)
            started.append(self._threads.submit(_get, self._bucket, entry))
        for entry, future in zip(entries, started, strict=True):
            with _source_errors():
                data = future.result()
            if isinstance(data, bytes) and _Location(*entry.location).size is None:
                hold(len(data))
            yield data

    @override
    def differs(self, entry: Entry) -> bool | None:
        keys = {_Location(*place).path for place in (entry.location, *(place for _, place in entry.files.values()))}
        if keys.isdisjoint(self._bucket.differing):
            return None
        self._bucket.differing -= keys  # save memory: with KMS encryption, all objects may differ
        return bool(self._bucket.has_md5)

    @override
    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class ObjectFolder(ObjectSource):
    """Reads the images below a place, with the classes, labels and order of a `FolderSource`.

    Raises:
        SourceError: The place has no class folders or cannot be listed. Or a file beside the class folders, such as a
            tar, can be read only on a disk.
    """

    follows = ("class_folder",)

    def __init__(self, place: str | os.PathLike[str], reading: Reading = UNDECIDED) -> None:
        bucket = Bucket(place)
        where = bucket.place
        if bucket.parts.scheme.startswith("http"):
            raise SourceError(
                f"{where}: a web server does not list its files: name them in a listing (--listing), whose paths start "
                "from this place"
            )
        with _source_errors():
            folders, self._loose = bucket.folders()
        for item in self._loose:
            if item.key in METADATA_FILES or item.key.lower().endswith(_NOT_READ):
                raise SourceError(f"{where}: holds {item.key}: {_WHAT_IS_READ}")
        self._tally = Tally(system={name for name in folders if is_system(name)})
        self._folders = tuple(name for name in folders if not name.startswith(".") and not is_system(name))
        if not self._folders:
            raise SourceError(f"{where}: it contains no class folders: {_WHAT_IS_READ}")
        chosen = reading.class_folder or "first"
        self._reading, self._class_of = reading, CLASS_FOLDERS[chosen]
        super().__init__(bucket, Path("/"), self._folders)
        if chosen != "first":
            keys = (item.key for items in self._list() for item in items if _is_taken(item, Tally()))
            self.classes = tuple(sorted({self._class_of(posixpath.dirname(key)) for key in keys}))
        self.warnings = tuple(folder_warnings(where, self.classes))
        self.understood = (f"images: {where}", describe_classes(self.classes, FOLDERS_IN_WORDS[chosen]))

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally = deepcopy(self._tally)
        filled, depths, companions = [False] * len(self.classes), Depths(), Companions()
        labels = {name: label for label, name in enumerate(self.classes)}
        yield from (Problem(item.key, OUTSIDE) for item in self._loose if _is_taken(item, tally))
        for items in self._list():
            beside = _beside(items)
            used = {file.name for files in beside.values() for file in files.values()}
            for item in sorted(items, key=lambda item: posixpath.split(item.key)):
                if item.key not in used and _is_taken(item, tally):
                    folder = posixpath.dirname(item.key)
                    if (label := labels.get(self._class_of(folder))) is None:
                        yield Problem(item.key, LATE)
                        continue
                    filled[label] = True
                    depths.add(folder)
                    files = beside.get(posixpath.splitext(item.key)[0]) or beside.get(item.key) or {}
                    tally.count_beside(files)
                    entry = Entry(item.key, _located(item), label, {}, files=files)
                    companions.add(entry)
                    yield entry
        check_filled(self.place, self.classes, filled, tally)
        tally.warnings += (*depths.warnings(self.classes, self._reading, self.place), *companions.warnings(tally))
        return tally

    def _list(self) -> Iterator[list[Item]]:
        """Yield the objects of each class, in the order of the classes. Threads list several classes concurrently."""
        with ThreadPoolExecutor(_CLASSES_AT_ONCE, thread_name_prefix="dbloader-list") as threads:
            for first in range(0, len(self._folders), _CLASSES_AT_ONCE):
                with _source_errors():
                    yield from threads.map(self._bucket.items, self._folders[first : first + _CLASSES_AT_ONCE])


class ListedObjects(ObjectSource, ListingSource):
    """The objects that a listing names; made by ``read_listed_objects``."""


@contextmanager
def _source_errors() -> Iterator[None]:
    """Turn errors of object storage into SourceErrors."""
    try:
        yield
    except StoreError as error:
        raise (SourceNotFoundError if isinstance(error, StoreNotFoundError) else SourceError)(str(error)) from error


def _get(bucket: Bucket, entry: Entry) -> bytes | Problem:
    """Return the bytes of an object, or what is wrong with it. Raise StoreError if the object storage fails."""
    location = _Location(*entry.location)
    path, size = location.path, location.size or 0
    if path.startswith("../") or path in (".", ".."):
        return Problem(entry.name, f"its path leaves {bucket.place}")
    try:
        data = b"" if size > MAX_BYTES else bucket.get(path, location.etag, size=location.size)
    except ObjectChangedError:
        return Problem(entry.name, "was changed after it was listed: its ETag has changed")
    except StoreNotFoundError as error:
        return Problem(entry.name, f"was removed after it was listed: {error}" if location.etag else str(error))
    except NotWholeError as error:
        return Problem(entry.name, str(error))
    size = max(size, len(data))
    if size > MAX_BYTES:
        return Problem(entry.name, f"has {size:,} bytes, more than a record can hold ({MAX_BYTES:,})")
    return data


def _located(item: Item) -> _Location:
    return _Location(item.key.encode(), item.etag, item.size)


def _beside(items: Sequence[Item]) -> dict[str, dict[str, FieldFile]]:
    """Return {key of an image, with or without its extension: {field: file}} for the files that become fields."""
    images = {item.key for item in items if item.key.lower().encode().endswith(SUFFIXES)}
    images |= {posixpath.splitext(key)[0] for key in images}
    found: dict[str, dict[str, FieldFile]] = {}
    for item in sorted(items, key=lambda item: item.key):
        stem, extension = posixpath.splitext(item.key)
        if stem in images and extension.lower().encode() in SIDECARS:
            found.setdefault(stem, {})[extension[1:].lower()] = FieldFile(item.key, _located(item))
    return found


def _is_taken(item: Item, tally: Tally) -> bool:
    """Return whether an object is an image to convert. Count any other object in ``tally``, as `FolderSource` does."""
    if is_left_out(item.key, tally):
        return False
    name = posixpath.basename(item.key).encode()
    if name.lower().endswith(SUFFIXES):
        return True
    if item.size or b"." in name:  # an empty object without a dot in its name is a placeholder of a folder
        tally.skip(name)
        if name.decode() in METADATA_FILES:
            tally.metadata = tally.metadata or item.key
    return False
