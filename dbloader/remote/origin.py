"""A store in object storage, as a copy or a cache fetches its files."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from dbloader.errors import NotAStoreError, StoreAccessError, StoreError, StoreFullError, StoreNotFoundError
from dbloader.remote.bucket import PARTS_AT_ONCE, Bucket, etag_of, md5_of, part_bytes

if TYPE_CHECKING:
    from dbloader.remote.bucket import Item

MANIFEST_FILE = "manifest.bson"


class RemoteOrigin:
    """The files of a sharded store below a place.

    Attributes:
        place: The place.
        bucket: The objects there.
    """

    def __init__(self, place: str) -> None:
        self.bucket = Bucket(place)
        self.place = str(self.bucket.place)

    @property
    def repeats(self) -> int:
        """Requests that were repeated."""
        return self.bucket.repeats

    def manifest(self) -> bytes:
        """Return the content of the store's ``manifest.bson``.

        Raises:
            NotAStoreError: The place has no such file.
            StoreError: It cannot be read.
        """
        try:
            return self.bucket.get(MANIFEST_FILE)
        except StoreNotFoundError:
            raise NotAStoreError(
                f"{self.place} has no store: there is no {MANIFEST_FILE} (dbloader copy puts a store there)"
            ) from None

    def fetch(self, name: str, path: str | os.PathLike[str]) -> None:
        """Copy a file of the store, such as ``shards/00017-ab.lmdb``, into a new file, by several requests at once.

        Raises:
            StoreError: It does not exist or cannot be read, or the new file cannot be written; a part may be there.
        """
        item = self.bucket.head(name)
        if item is None:
            raise StoreNotFoundError(f"{self.place}/{name} does not exist")
        try:
            with open(path, "xb") as file, ThreadPoolExecutor(PARTS_AT_ONCE) as threads:  # noqa: PTH123 - any str
                copy = partial(self._copy, item, file.fileno())
                starts = range(0, item.size, part_bytes(item.size))

                def ask() -> tuple[None, str, str]:
                    return None, item.etag, etag_of([*threads.map(copy, starts)])  # after an error no part is begun

                self.bucket.until_whole(ask, name)
        except StoreError:
            raise
        except OSError as error:
            kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreAccessError
            raise kind(f"a copy of {self.place}/{name} cannot be written: {error.strerror}") from error

    def _copy(self, item: Item, descriptor: int, start: int) -> bytes:
        """Copy the part that begins at a byte, and return its MD5."""
        end = min(start + part_bytes(item.size), item.size)
        part = self.bucket.get(item.key, item.etag, (start, end))
        data = memoryview(part)
        while data:  # a disk that is nearly full takes a part of what it is given
            written = os.pwrite(descriptor, data, start)
            data, start = data[written:], start + written
        return md5_of(part)
