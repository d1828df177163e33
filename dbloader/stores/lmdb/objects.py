"""The files of a sharded store in object storage: the same as in a folder, below the place of the store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbloader.remote.bucket import Bucket
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from dbloader.remote.bucket import Item

# The keys of shards and indices, below the place.
_OURS = re.compile(rf"{SHARD_FOLDER}/[0-9]{{5,}}-[0-9a-f]+\.lmdb|index-[0-9a-f]+\.lmdb")


def read_table(place: str) -> ShardTable:
    """Return the manifest and the shards of a store in object storage."""
    bucket = Bucket(place)
    return ShardTable.decode(bucket.manifest(), bucket.place)


def list_files(bucket: Bucket) -> dict[str, Item]:
    """Return all shards and indices at a place, published or not, by their keys."""
    found = [*bucket.folders()[1], *bucket.items(SHARD_FOLDER)]  # the first fails soon without a server
    return {item.key: item for item in found if _OURS.fullmatch(item.key)}
