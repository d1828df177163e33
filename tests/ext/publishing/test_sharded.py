"""Published shards keep the promises of every store that is read, and their manifest has the documented form."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from typing_extensions import override

from dbloader import Record, open_store
from dbloader.ext.publishing.publish_shards import index_shards, put_manifest
from dbloader.records.columns import CHUNK, COLUMNS
from dbloader.records.field_columns import MAX_FIELDS, column_names
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER
from tests.contracts.records import make_records
from tests.stores.lmdb import test_sharded
from tests.stores.lmdb.test_shard_table import NAMES
from tests.support.lmdb_files import content_of, value_at
from tests.support.stores import store_records


def write_shards(place: str, records: list[Record], bounds: list[int]) -> Manifest:
    """Make a sharded store. ``bounds`` lists the index after the last record of each shard."""
    folder = Path(place)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SHARD_FOLDER).mkdir(parents=True)
    names = []
    for number, (begin, end) in enumerate(zip([0, *bounds], [*bounds, len(records)], strict=True)):
        names.append(f"{number:05}.lmdb")
        store_records(folder / SHARD_FOLDER / names[-1], (record for record in records[begin:end]))
    table = index_shards(folder, names, [None] * len(names))
    put_manifest(folder, table)
    return table.manifest


class TestPublishedShards(test_sharded.TestShardedStore):
    @override
    def write(self, place: str, records: Iterable[Record], **options: Any) -> Manifest:
        records = [*records]
        return write_shards(place, records, self.bounds(len(records)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_shards(str(tmp_path / "store.lmdb"), make_records(4), [2])
    return tmp_path / "store.lmdb"


def test_manifest_and_index_have_the_documented_form(place: Path) -> None:
    data = (place / MANIFEST_FILE).read_bytes()
    values = bson.decode(data)
    shards = [place / SHARD_FOLDER / name for name in NAMES]
    with open_store(shards[0]) as one, open_store(shards[1]) as two:
        digests = bytes.fromhex(one.manifest.digest + two.manifest.digest)
        columns = [*COLUMNS, *column_names(one.manifest.fields | two.manifest.fields)]
    assert values == {
        "format": "dbloader shards",
        "version": 1,
        "manifest": value_at(place / values["index"], b"meta", b"manifest"),
        "index": values["index"],
        "names": NAMES,
        "lengths": struct.pack("<2q", 2, 2),
        "nbytes": struct.pack("<2q", *(shard.stat().st_size for shard in shards)),
        "digests": digests,
        "previous": "",
        "crc32": zlib.crc32(data[4:-16]),
    }
    assert list(values)[-1] == "crc32"
    assert data[data.index(b"version\0") - 1] == 0x10  # int32
    assert type(values["crc32"]) is Int64
    meta = [b"column/%s/%s" % (name.encode(), bytes(8)) for name in columns]
    index = content_of(place / values["index"])
    assert list(index) == [b"meta", b"records"]
    assert list(index[b"meta"]) == sorted([*meta, b"manifest", b"shards"])
    assert index[b"meta"][b"shards"] == b""
    assert index[b"records"] == {}


@pytest.mark.parametrize("fields", [[MAX_FIELDS + 1, 0], [MAX_FIELDS, 1]])
def test_store_with_too_many_fields_has_no_field_columns(tmp_path: Path, fields: list[int]) -> None:
    first, second = ({f"{number} {place}": place for number in range(count)} for place, count in enumerate(fields))
    records = [Record(fields={**first, "score": 1})] * (CHUNK + 1) + [Record(fields={**second, "score": 2})]
    manifest = write_shards(str(tmp_path / "store.lmdb"), records, [CHUNK + 1])
    with open_store(tmp_path / "store.lmdb") as store:
        assert manifest.columns == {}
        assert store.verify() == manifest.digest
