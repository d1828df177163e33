"""Read the origin of a cache: a folder of shards, an LMDB file, MongoDB or object storage."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dbloader.errors import NotAStoreError
from dbloader.remote.places import is_remote
from dbloader.stores.lmdb.publish_shards import write_index
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.lmdb.writer import LMDBWriter
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from dbloader.stores.base import Store

# Bytes of images in a shard that is made from records. Fetching it takes 0.6 s at 100 MB/s.
_SHARD_BYTES = 64 * 2**20
# LMDB adds at most this many bytes to a record with small further fields.
_PAGE_BYTES = 4096
_READ_AT_ONCE = 256
_COPIED_BYTES = 2**20


class Origin(Protocol):
    """Reads the files of a sharded store at another place. Threads may share an origin."""

    place: str
    """The place of the store, without credentials."""

    @property
    def repeats(self) -> int:
        """Repeated requests so far; 0 if the origin does not count them."""

    def manifest(self) -> bytes:
        """Read the store's ``manifest.bson`` again and return its content.

        Raises:
            StoreError, OSError: The file does not exist or cannot be read.
        """

    def fetch(self, name: str, path: Path) -> None:
        """Copy the file ``name`` of the store, such as ``shards/00017-ab.lmdb``, to a new local file.

        Raises:
            StoreError, OSError: The file cannot be read, or the local file cannot be written.
        """


def open_origin(place: str) -> Origin:
    """Return the origin at a place. CachedStore has checked the form of the place."""
    if is_mongo(place):
        from dbloader.stores.mongo.store import MongoStore

        return StoreOrigin(MongoStore(place))
    if is_remote(place):
        from dbloader.remote.bucket import Bucket

        return Bucket(place)  # imports obstore, so only the fetcher may do this
    if os.path.isdir(place):  # noqa: PTH112 - without permission, Path.is_dir would raise an error without the place
        return FolderOrigin(Path(place))
    return StoreOrigin(LMDBStore(place))


class FolderOrigin:
    """A folder of shards on a slow file system."""

    repeats = 0

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def manifest(self) -> bytes:
        """Return the content of the manifest."""
        try:
            return (self._folder / MANIFEST_FILE).read_bytes()
        except FileNotFoundError as error:
            raise NotAStoreError(f"{self.place} is a folder without {MANIFEST_FILE}, so it is not a store") from error

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file. The copy must grow steadily, because waiting readers watch its size; so buffers are small."""
        with (self._folder / name).open("rb", buffering=0) as file, path.open("xb", buffering=4096) as copied:
            shutil.copyfileobj(file, copied, _COPIED_BYTES)


class StoreOrigin:
    """A store in MongoDB or in one LMDB file. ``fetch`` makes shards of about equal size from the store's records."""

    repeats = 0

    def __init__(self, store: Store) -> None:
        self.place = store.place
        self._store = store
        self._table: ShardTable | None = None

    def manifest(self) -> bytes:
        """Return a manifest of the shards that will be made from the store."""
        store = copy.copy(self._store)  # the copy has no handle, so it opens the store that is at the place now
        table = _divide(store)
        if self._table is None:
            self._table, self._store = table, store
        return table.encode()

    def fetch(self, name: str, path: Path) -> None:
        """Write the index, or verify and write the records of a shard."""
        table, store = self._table, self._store
        assert table is not None, "call manifest() first"
        if name == table.index_file:
            write_index(path, [store], self.place, **table.manifest.given)
            return
        number = [f"{SHARD_FOLDER}/{shard.name}" for shard in table.shards].index(name)
        begin = sum(shard.length for shard in table.shards[:number])
        end = begin + table.shards[number].length
        with LMDBWriter(path) as writer:
            for at in range(begin, end, _READ_AT_ONCE):
                indices = range(at, min(at + _READ_AT_ONCE, end))
                store.prefetch(indices)
                with store.borrow_documents(indices) as documents:
                    writer.write(store.verified(document, index) for document, index in documents)
            writer.finish()


def _divide(store: Store) -> ShardTable:
    """Divide a store into shards. Compute the digests of the shards from the column of checksums."""
    manifest = store.manifest
    crc32, nbytes = store.column("crc32"), store.column("nbytes")
    size = max(1, min(manifest.length, _SHARD_BYTES * manifest.length // max(1, manifest.image_bytes)))
    shards = []
    for number, begin in enumerate(range(0, manifest.length, size)):
        end = min(begin + size, manifest.length)
        digest = hashlib.sha256(crc32[begin:end].tobytes()).hexdigest()
        size_of_file = int(nbytes[begin:end].sum()) + (end - begin + 64) * _PAGE_BYTES  # an estimate
        shards.append(Shard(f"{number:05}-{digest[:8]}.lmdb", end - begin, size_of_file, digest))
    # Another conversion of the same records has a new salt but the same digests, so only the index gets a new name.
    return ShardTable(manifest, f"index-{manifest.salt:08x}.lmdb", shards)
