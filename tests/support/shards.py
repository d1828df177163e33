"""Write sharded stores without the code that makes them: the index is a store of all records, without the records."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dbloader.records.manifest import Manifest
from dbloader.records.record import Record
from dbloader.stores.lmdb.keys import META, RECORDS, SHARD_INDEX
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable
from tests.support.lmdb_files import content_of, tamper
from tests.support.stores import store_records


def write_shards(place: str, records: Sequence[Record], bounds: Sequence[int]) -> Manifest:
    """Write a sharded store. ``bounds`` lists the index after the last record of each shard."""
    folder = Path(place)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SHARD_FOLDER).mkdir(parents=True)
    shards = []
    for number, (begin, end) in enumerate(zip([0, *bounds], [*bounds, len(records)], strict=True)):
        path = folder / SHARD_FOLDER / f"{number:05}.lmdb"
        digest = store_records(path, records[begin:end]).digest
        shards.append(Shard(path.name, end - begin, path.stat().st_size, digest))
    index = folder / "index.lmdb"
    manifest = store_records(index, records)
    tamper(index, RECORDS, dict.fromkeys(content_of(index).get(RECORDS, {})))
    tamper(index, META, {SHARD_INDEX: b""})
    (folder / MANIFEST_FILE).write_bytes(ShardTable(manifest, index.name, shards).encode())
    return manifest
