"""List and read the files of a sharded store in object storage. They have the same names as in a folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbloader.remote.bucket import Bucket
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from dbloader.remote.bucket import Item

# Keys of shards and indices, relative to the place of the store.
_OURS = re.compile(rf"{SHARD_FOLDER}/[0-9]{{5,}}-[0-9a-f]+\.lmdb|index-[0-9a-f]+\.lmdb")


def read_table(place: str) -> ShardTable:
    """Return the table of shards of a store in object storage."""
    bucket = Bucket(place)
    return ShardTable.decode(bucket.manifest(), bucket.place)


def list_files(bucket: Bucket) -> dict[str, Item]:
    """Return all shards and indices at a place by their keys, including files that no manifest names."""
    found = [*bucket.folders()[1], *bucket.items(SHARD_FOLDER)]  # if no server answers, ``folders`` fails quickly
    return {item.key: item for item in found if _OURS.fullmatch(item.key)}
