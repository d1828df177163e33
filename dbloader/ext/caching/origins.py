"""Fetch the files of a store to the folder of a cache. A file gets its final name when it is complete and verified.

The origin is the store that a cache copies: a folder of shards, an LMDB file, or a store in MongoDB or object storage.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dbloader._machine import NO_ROOM
from dbloader._places import is_mongo, is_remote
from dbloader.errors import DamagedStoreError, DBLoaderError, NotAStoreError, StoreAccessError, StoreFullError
from dbloader.ext.caching.folder import PARTIAL, write_whole
from dbloader.ext.publishing.publish_shards import write_index
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.handle import open_file
from dbloader.stores.lmdb.shard_table import COPY_AGAIN, MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.lmdb.writer import LMDBWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.ext.caching.folder import Checksums
    from dbloader.stores.base import Store

_REMEDY = f"if the store was replaced, open it again, with another cache; otherwise {COPY_AGAIN}"
# The pauses before the second and third attempt are short: MongoDB and object storage retry within each attempt.
_PAUSES_S = (0.5, 1.0)
# Bytes of images in each shard that StoreOrigin makes from records. Fetching such a shard takes 0.7 s at 100 MB/s.
_SHARD_BYTES = 64 * 2**20
# LMDB adds at most this many bytes to a record with small extra fields.
_PAGE_BYTES = 4096
_READ_AT_ONCE = 256
_COPIED_BYTES = 2**20


class Origin(Protocol):
    """Reads the files of a sharded store that a cache copies. Raises StoreError or OSError. Threads may share it."""

    place: str
    """The path or URI of the store, without credentials."""

    def manifest(self) -> bytes:
        """Return the content of the store's ``manifest.bson``. Called once, before ``fetch``."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy the file ``name`` of the store, such as ``shards/00017-ab.lmdb``, to a new local file."""


def open_origin(place: str) -> Origin:
    """Return the origin for a path or URI. CachedStore has checked the form of ``place``."""
    if is_mongo(place):
        from dbloader.stores.mongo.store import MongoStore

        return StoreOrigin(MongoStore(place))
    if is_remote(place):
        return BucketOrigin(place)
    if os.path.isdir(place):  # noqa: PTH112 - without permission, Path.is_dir raises an error that lacks the place
        return FolderOrigin(Path(place))
    return StoreOrigin(LMDBStore(place))


class BucketOrigin:
    """A store in object storage. Only the fetcher uses this class: readers may fork, and obstore hangs in a fork."""

    def __init__(self, place: str) -> None:
        from dbloader.ext.remote.bucket import Bucket

        self._bucket = Bucket(place, waits=False)  # raise errors, because nobody would see warnings
        self.place, self.fetch = self._bucket.place, self._bucket.fetch

    def manifest(self) -> bytes:
        """Return the content of the manifest."""
        from dbloader.ext.publishing.objects import read_manifest

        return read_manifest(self._bucket)


class FolderOrigin:
    """A folder of shards on a slow file system."""

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
        """Copy a file with small buffers, because waiting readers watch the copy grow."""
        with (self._folder / name).open("rb", buffering=0) as file, path.open("xb", buffering=4096) as copied:
            shutil.copyfileobj(file, copied, _COPIED_BYTES)


class StoreOrigin:
    """A store in MongoDB or in one LMDB file. ``fetch`` makes shards of about equal size from the store's records."""

    def __init__(self, store: Store) -> None:
        self.place = store.place
        self._store = store
        self._table: ShardTable

    def manifest(self) -> bytes:
        """Return a manifest of the shards that will be made from the store."""
        self._table = _divide(self._store)
        return self._table.encode()

    def fetch(self, name: str, path: Path) -> None:
        """Write the index, or verify and write the records of a shard."""
        table, store = self._table, self._store
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
                writer.write(store.encoded(indices))
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
    # A new conversion of the same records changes only the manifest's random salt, so only the index gets a new name.
    return ShardTable(manifest, f"index-{manifest.salt:08x}.lmdb", shards)


def fetch_index(origin: Origin, cache: Path, checksums: Checksums) -> ShardTable:
    """Fetch the manifest, and also the index if it is missing or damaged. Return the table of shards in the manifest.

    Raise NotAStoreError if the cache has the shards of another store.
    """
    data = origin.manifest()
    table = ShardTable.decode(data, origin.place)
    with suppress(FileNotFoundError, DamagedStoreError):
        if [*ShardTable.read(cache).shards] != [*table.shards]:
            raise NotAStoreError(
                f"{cache} is the cache of another store, not of the store now at {origin.place}: "
                "remove the folder, or name another folder"
            )
    index = cache / table.index_file
    if not index.exists() or not checksums.agrees(index):
        _fetch(origin, cache, checksums, table.index_file, index_of=table.manifest)
    write_whole(cache / MANIFEST_FILE, data)  # the manifest last, because it makes the folder a store
    return table


def fetch_shard(
    origin: Origin,
    cache: Path,
    checksums: Checksums,
    table: ShardTable,
    number: int,
    note: Callable[[DBLoaderError], None],
) -> None:
    """Fetch a shard of a store in up to three attempts. If another attempt follows, call ``note`` with the error."""
    shard = table.shards[number]
    name = f"{SHARD_FOLDER}/{shard.name}"
    for pause in (*_PAUSES_S, None):
        try:
            _fetch(origin, cache, checksums, name, digest=shard.digest)
        except (DBLoaderError, OSError) as error:
            failed = as_dbloader_error(error, f"{origin.place}/{name}")
            if isinstance(failed, StoreFullError) and getattr(error, "errno", None) == errno.EFBIG:
                raise failed from error  # the message about the limit of file sizes contains a remedy
            if isinstance(failed, StoreFullError):
                remedy = f"make room on the disk of {cache}, or limit the cache by cache_bytes"
                raise StoreFullError(f"{failed}: {remedy}") from error
            if isinstance(error, FileNotFoundError):  # or its subclass StoreNotFoundError
                failed = type(failed)(f"{failed}: {_REMEDY}")
            if pause is None:
                raise failed from error
            note(failed)
            time.sleep(pause)
        else:
            return


def _fetch(origin: Origin, cache: Path, checksums: Checksums, name: str, **expected: Any) -> None:
    path = cache / name
    partial = cache / PARTIAL / path.name
    try:
        origin.fetch(name, partial)
        open_file(partial, origin.place, name, _REMEDY, **expected)
        checksums.add(partial, path.name)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def as_dbloader_error(error: Exception, place: str) -> DBLoaderError:
    """Return an error as a DBLoaderError, because only a DBLoaderError can be sent to a reader."""
    if isinstance(error, DBLoaderError):
        return error
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return translate_refusal(error, f"a copy of {place}")
    return StoreAccessError(f"{place} cannot be fetched: {error}")
