"""Find the files of a sharded store in object storage. The files have the same names as on a disk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbloader._places import WRITABLE, parse_place
from dbloader.errors import NotAStoreError, OptionError, PlaceError, StoreError, StoreExistsError, StoreNotFoundError
from dbloader.ext.remote.bucket import Bucket
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dbloader.ext.remote.bucket import Item

# Keys of shards, index files and old manifests, relative to the place of the store.
_OURS = re.compile(rf"{SHARD_FOLDER}/[0-9]{{5,}}-[0-9a-f]+\.lmdb|index-[0-9a-f]+\.lmdb(\.{re.escape(MANIFEST_FILE)})?")


def open_target(place: str) -> Bucket:
    """Return the bucket for a new store. Raise an error if no store can be written to the place."""
    parts = parse_place(place)
    if parts.scheme not in WRITABLE:
        raise OptionError(f"{place}: a store cannot be put on a web server: name a bucket")
    if not parts.key:
        raise PlaceError(f"{parts} names only a bucket: name the store too, as in {parts}/train.lmdb")
    return Bucket(place)


def find_replaced(target: Bucket, *, overwrite: bool) -> Item | None:
    """Return the manifest of the old store, or None. Raise StoreExistsError if the store may not be replaced."""
    replaces = target.head(MANIFEST_FILE)
    if replaces and not overwrite:
        raise StoreExistsError(f"{target.place} exists already; overwrite (--overwrite) replaces it")
    return replaces


def read_manifest(bucket: Bucket) -> bytes:
    """Return the bytes of a store's manifest. Raise NotAStoreError if there is no store."""
    try:
        return bucket.get(MANIFEST_FILE)
    except StoreNotFoundError:
        raise NotAStoreError(
            f"{bucket.place} has no store: there is no {MANIFEST_FILE} (dbloader copy puts a store there)"
        ) from None


def read_table(bucket: Bucket) -> ShardTable:
    """Return the shard table of a store. Raise NotAStoreError if there is no store."""
    return ShardTable.decode(read_manifest(bucket), bucket.place)


def read_remote_table(place: str) -> ShardTable:
    """Return the shard table of a store at a place in object storage."""
    return read_table(Bucket(place))


def put_table(target: Bucket, table: ShardTable, replaces: Item | None, own: Iterable[str]) -> None:
    """Publish a store by writing its manifest. All other files must be in the bucket already.

    ``replaces`` is the manifest of the old store; None if the place has no store. ``own`` are the keys that this upload
    has written. If another process has published meanwhile, delete the objects at these keys, and raise
    StoreExistsError.
    """
    try:
        target.put_if(MANIFEST_FILE, table.encode(), replaces)
    except StoreExistsError:
        target.delete(own)
        raise
    except StoreError as error:  # the manifest may have been written, so keep the files
        what = f"the store may be published in spite of this error: check with dbloader info {target.place}"
        raise type(error)(f"{error}; {what}") from None


def list_files(bucket: Bucket) -> dict[str, Item]:
    """Return {key: Item} for all shards, index files and old manifests in a Bucket, even if no manifest names them."""
    found = [*bucket.folders()[1], *bucket.items(SHARD_FOLDER)]  # `folders` first: it warns if no server answers
    return {item.key: item for item in found if _OURS.fullmatch(item.key)}
