"""A folder of several LMDB files keeps the promises of every store that is read, and has the digest of one file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable
from tests.contracts.backend import FileBackend
from tests.contracts.processes import ProcessesContract
from tests.contracts.reading import ReadingContract
from tests.contracts.records import documents_of, make_records, salt_of, stored
from tests.support.lmdb_files import tamper_with_records
from tests.support.shards import write_shards


class TestShardedStore(FileBackend, ProcessesContract, ReadingContract):
    def bounds(self, length: int) -> list[int]:
        """Return where shards end. Two of the shards are empty."""
        return sorted(min(length, bound) for bound in (0, 2, 2, 7, length - length // 3))

    def write(self, place: str, records: Iterable[Record], **options: Any) -> Manifest:
        records = [*records]
        return write_shards(place, records, self.bounds(len(records)))

    @override
    def test_open_store_keeps_its_records_when_it_is_replaced(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(5, seed=1))
        with self.open(place) as store, self.open(place) as unopened:
            before = stored(store, [0])
            self.write(place, make_records(9, seed=2))
            assert stored(store, [0]) == before  # this record is in a shard that was open
            with pytest.raises(DamagedStoreError, match=r"if the store was replaced, open it again"):
                store.read([4])
            assert len(unopened) == 9

    def documents(self, place: str, records: list[Record]) -> list[bytes]:
        ends = [*self.bounds(len(records)), len(records)]
        shards = [Path(place) / SHARD_FOLDER / f"{number:05}.lmdb" for number in range(len(ends))]
        parts = (records[begin:end] for begin, end in pairwise([0, *ends]))
        return [
            document
            for shard, part in zip(shards, parts, strict=True)
            for document in documents_of(part, salt_of(shard))
        ]

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        with open_store(place) as store:
            starts = [0, *self.bounds(len(store))]
        for index, document in documents.items():
            number = max(number for number, start in enumerate(starts) if start <= index)
            tamper_with_records(Path(place) / SHARD_FOLDER / f"{number:05}.lmdb", {index - starts[number]: document})
        # A reader refuses longer files before it reads a record.
        manifest = Path(place) / MANIFEST_FILE
        table = ShardTable.decode(manifest.read_bytes(), place)
        sizes = [(Path(place) / SHARD_FOLDER / shard.name).stat().st_size for shard in table.shards]
        shards = [shard._replace(nbytes=size) for shard, size in zip(table.shards, sizes, strict=True)]
        manifest.write_bytes(table._replace(shards=shards).encode())
