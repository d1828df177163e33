"""Image files in object storage, read by many requests at once; and those of them that a listing names."""

from __future__ import annotations

import os
import posixpath
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader.errors import SourceError, SourceNotFoundError, StoreError, StoreNotFoundError
from dbloader.remote.bucket import Bucket
from dbloader.remote.errors import BucketNotFoundError, ObjectChangedError
from dbloader.sources.base import MAX_BYTES, Problem, Source
from dbloader.sources.listing import LISTING, ListingSource, read_listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.base import Entry

# Requests at once. One brings about 10 images a second from a cloud, since most of its time is waiting.
_AT_ONCE = 64
_ETAG = b"\0"  # after the key in the path of an entry: no key has it


class ObjectSource(Source):
    """Images below a place in object storage. Its threads start with the first read."""

    def __init__(self, bucket: Bucket, *described: Any) -> None:
        super().__init__(*described)
        self._bucket = bucket
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-objects")

    @property
    @override
    def place(self) -> str:
        return str(self._bucket.place)

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        started = []
        try:
            for entry in entries:
                if entry.span:
                    hold(entry.span[1])
                started.append(self._threads.submit(_get, self._bucket, entry))
            for entry, future in zip(entries, started, strict=True):
                with source_errors():
                    data = future.result()
                if isinstance(data, bytes) and not entry.span:
                    hold(len(data))
                yield data
        finally:
            for future in started:
                future.cancel()

    @property
    @override
    def repeats(self) -> int:
        return self._bucket.repeats

    @override
    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class ListedObjects(ObjectSource, ListingSource):
    """The objects that a listing names; made by ``read_listed_objects``."""


def read_listed_objects(
    place: str | os.PathLike[str], listing: str | os.PathLike[str], file_fields: Sequence[str] = ()
) -> ListingSource:
    """Return the source of the objects that a listing names, whose paths are keys below the place."""
    kind = LISTING._replace(file_columns=tuple(file_fields))
    return read_listing(listing, os.sep, kind, make=partial(ListedObjects, Bucket(place)))


@contextmanager
def source_errors() -> Iterator[None]:
    """Raise an error of object storage as one of the source."""
    try:
        yield
    except StoreError as error:
        raise (SourceNotFoundError if isinstance(error, StoreNotFoundError) else SourceError)(str(error)) from error


def object_path(key: str, etag: str) -> bytes:
    """Return the path of an entry, which has the ETag that the object had when it was listed."""
    return key.encode() + _ETAG + etag.encode()


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
