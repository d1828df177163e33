"""A store in object storage, as a cache fetches its files."""

from __future__ import annotations

from dbloader.errors import NotAStoreError, StoreNotFoundError
from dbloader.remote.bucket import Bucket
from dbloader.remote.download import download
from dbloader.remote.errors import BucketNotFoundError

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
        except BucketNotFoundError:
            raise
        except StoreNotFoundError:
            raise NotAStoreError(
                f"{self.place} has no store: there is no {MANIFEST_FILE} (dbloader copy puts a store there)"
            ) from None

    def fetch(self, name: str, path: str) -> None:
        """Copy a file of the store, such as ``shards/00017-ab.lmdb``, into a new file, which is removed on failure.

        Raises:
            StoreError: It cannot be read.
        """
        download(self.bucket, name, path)
