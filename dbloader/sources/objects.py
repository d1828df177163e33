"""Image files in object storage, read by many requests at once; and those of them that a listing names."""

from __future__ import annotations

import os
import posixpath
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import SourceError, SourceNotFoundError, StoreError, StoreNotFoundError
from dbloader.remote.errors import BucketNotFoundError, ObjectChangedError
from dbloader.remote.places import parse_place
from dbloader.sources.base import MAX_BYTES, Problem
from dbloader.sources.listing import LISTING, ListingSource, read_listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from dbloader.remote.bucket import Bucket
    from dbloader.sources.base import Entry

# Requests at once. One brings about 10 images a second from a cloud, since most of its time is waiting.
_AT_ONCE = 64
_ETAG = b"\0"  # after the key in the path of an entry: no key has it


class ObjectFiles:
    """The files below a place in object storage. Its threads start with the first read."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = str(parse_place(place))
        self._bucket: Bucket | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-objects")

    @property
    def bucket(self) -> Bucket:
        """The objects, opened when they are first asked for."""
        with self._lock:
            if self._bucket is None:
                from dbloader.remote.bucket import Bucket

                self._bucket = Bucket(self.place)
            return self._bucket

    @staticmethod
    def path(key: str, etag: str = "") -> bytes:
        """Return the path of an entry, which has the ETag that the object had when it was listed."""
        return key.encode() + _ETAG + etag.encode()

    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        """Yield the bytes of each entry's object, or why there are none; all are asked for at once."""
        bucket = self.bucket
        started: list[Future[bytes | Problem]] = []
        try:
            for entry in entries:
                if entry.span:
                    hold(entry.span[1])
                started.append(self._threads.submit(_get, bucket, entry))
            for entry, future in zip(entries, started, strict=True):
                data = future.result()
                if isinstance(data, bytes) and not entry.span:
                    hold(len(data))
                yield data
        except StoreError as error:
            raise as_source_error(error) from error
        finally:
            for future in started:
                future.cancel()

    @property
    def repeats(self) -> int:
        """As of a source."""
        return self._bucket.repeats if self._bucket else 0

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


def _get(bucket: Bucket, entry: Entry) -> bytes | Problem:
    """Return the bytes of an object, or what is wrong with it; a StoreError is not its fault."""
    size = entry.span[1] if entry.span else 0
    key, _, etag = entry.path.partition(_ETAG)
    path = posixpath.normpath(os.fsdecode(key)).lstrip("/")
    if path.startswith("../") or path in (".", ".."):
        return Problem(entry.name, f"its path leaves {bucket.place}")
    try:
        data = b"" if size > MAX_BYTES else bucket.get(path, etag.decode())
    except ObjectChangedError:
        return Problem(entry.name, "was changed after it was listed: its ETag is another one")
    except BucketNotFoundError:
        raise
    except StoreNotFoundError as error:
        return Problem(entry.name, f"was removed after it was listed: {error}" if etag else str(error))
    size = max(size, len(data))
    if size > MAX_BYTES:
        return Problem(entry.name, f"has {size:,} bytes, more than a record can hold ({MAX_BYTES:,})")
    return data


def as_source_error(error: StoreError) -> SourceError:
    """Return the error of a source for one of object storage."""
    return (SourceNotFoundError if isinstance(error, StoreNotFoundError) else SourceError)(str(error))


def read_listed_objects(
    place: str | os.PathLike[str], listing: str | os.PathLike[str], file_fields: Sequence[str] = ()
) -> ListedObjects:
    """Return the source of the objects that a listing names, whose paths are keys below the place."""
    named = read_listing(listing, os.sep, LISTING._replace(file_columns=tuple(file_fields)))
    return ListedObjects(named, ObjectFiles(place))


class ListedObjects(ListingSource):
    """The objects that a listing names; made by ``read_listed_objects``."""

    def __init__(self, named: ListingSource, files: ObjectFiles) -> None:
        super().__init__(
            Path(os.sep), named.classes, [*named.warnings], named.listing, named.labels, named._kind, named.file_fields
        )
        self._files = files

    @property
    @override
    def place(self) -> str:
        return self._files.place

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
