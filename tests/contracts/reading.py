"""Reading records, columns and names."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import bson
import lmdb
import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import RecordIndexError, RecordNotFoundError
from dbloader.records.columns import CHUNK, NO_LABEL
from dbloader.records.record import encode
from tests.contracts.backend import Backend
from tests.contracts.records import documents_of, facts, make_records, owner_of, small_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ReadingContract(Backend):
    """What a store returns."""

    def test_every_kind_of_record_comes_back_as_it_was_written(self, tmp_path: Path) -> None:
        records = make_records(100)
        records.append(Record())
        place = self.place(tmp_path)
        manifest = self.write(place, records)
        with self.open(place) as store:
            read = store.read(range(101))
            assert [facts(record) for record in read] == [facts(record) for record in records]
            assert [record.index for record in read] == list(range(101))
            assert store.manifest == manifest

    def test_read_returns_records_in_the_order_asked_with_repeats(self, tmp_path: Path) -> None:
        records = make_records(30)
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            indices = [29, 0, 0, 17, 29, 3]
            assert [record.index for record in store.read(indices)] == indices
            assert [facts(record) for record in store.read(indices)] == [facts(records[index]) for index in indices]
            for sequence in ((3, 1), range(3, -1, -2), np.array([3, 1])):
                read = store.read(sequence)  # type: ignore[arg-type]  # an array is a sequence to everybody but typing
                assert [(record.index, type(record.index)) for record in read] == [(3, int), (1, int)]
            assert store.read([]) == []
            assert store.documents([]) == []
            twice = store.read([5, 5])
            twice[0].fields["changed"] = True
            assert twice[1].fields == records[5].fields

    def test_borrowed_records_are_those_that_are_read(self, tmp_path: Path) -> None:
        records = make_records(30)
        place = self.store(tmp_path, records)

        def facts_of(record: Record) -> Any:
            if isinstance(record.image, memoryview):
                return facts(replace(record, image=bytes(record.image)))
            return facts(record)

        with self.open(place) as store:
            indices = [29, 0, 0, 17, 29, 3]
            with store.borrow(indices) as borrowed:
                assert [facts_of(record) for record in borrowed] == [facts(records[index]) for index in indices]
            with pytest.raises(lmdb.Error, match="of the caller"), store.borrow([2]) as borrowed:
                raise lmdb.Error("of the caller")
            with pytest.raises(RecordIndexError, match="no record 30 in"), store.borrow([30]) as borrowed:
                next(borrowed)

    @pytest.mark.parametrize("index", [5, -1, 2**63, 2**64, -(2**63)])
    def test_an_index_out_of_range_raises(self, tmp_path: Path, index: int) -> None:
        place = self.store(tmp_path, make_records(5))
        with self.open(place) as store:
            message = f"^no record {index} in .*store.*, which has 5$"
            uses: list[Callable[[], object]] = [
                lambda: store.read([0, index]),
                lambda: store.documents([index]),
                lambda: store.name(index),
            ]
            for use in uses:
                with pytest.raises(RecordIndexError, match=message):
                    use()

    def test_square_brackets_count_from_the_end_too(self, tmp_path: Path) -> None:
        records = make_records(5)
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            for index in range(-5, 5):
                assert facts(store[index]) == facts(records[index])
                assert store[index].index == index % 5
            for index in (5, -6, 2**70):
                with pytest.raises(RecordIndexError, match=f"^no record {index} in .*, which has 5$"):
                    store[index]

    def test_iterating_yields_every_record_once_and_in_order(self, tmp_path: Path) -> None:
        records = make_records(150)  # more than are read at a time
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            assert [facts(record) for record in store] == [facts(record) for record in records]

    def test_documents_are_the_bson_that_was_written(self, tmp_path: Path) -> None:
        records = make_records(40)
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            indices = [39, *range(39)]
            documents = store.documents(indices)
            assert documents == [documents_of(records, store.manifest.salt)[index] for index in indices]
            for index, document in zip(indices, documents, strict=True):
                assert type(document) is bytes
                values = bson.decode(document)
                first_key, *_, last_key = values
                assert (first_key, last_key) == ("_id", "crc32")
                assert values["_id"] == index

    def test_nothing_that_was_read_points_into_the_store(self, tmp_path: Path) -> None:
        records = make_records(40)
        place = self.store(tmp_path, records)
        store = self.open(place)
        read, documents, names = store.read(range(40)), store.documents(range(40)), store.names()
        columns = {name: store.column(name) for name in ("label", "width", "height", "nbytes", "crc32")}
        for array in (names.data, names.offsets, *columns.values()):
            assert owner_of(array) is None or isinstance(owner_of(array), bytearray)
        for record in read:
            assert isinstance(record.image, (bytes, np.ndarray))
            for value in (record.image, record.fields.get("mask")):
                if isinstance(value, np.ndarray):
                    assert owner_of(value) is None
                    assert value.flags.writeable
        salt = store.manifest.salt
        store.close()
        del store
        self.remove(place)
        gc.collect()
        assert [facts(record) for record in read] == [facts(record) for record in records]
        assert documents == documents_of(records, salt)
        assert list(names) == [record.name or "" for record in records]
        assert columns["nbytes"].sum() == sum(encode(record).nbytes for record in records)

    def test_columns_hold_the_facts_of_all_records(self, tmp_path: Path) -> None:
        records = [
            Record(name="a", label=2**63 - 1, image=b"12345", width=2**32 - 1, height=1),
            Record(name="b"),
            Record(name="c", label=-(2**63) + 1, image=np.zeros(3), width=0, height=0),
            Record(label=0, image=b"", height=2**32 - 1),
        ]
        place = self.store(tmp_path, records)
        encoded = [encode(record) for record in records]
        with self.open(place) as store:
            expected = {
                "label": (np.int64, [2**63 - 1, NO_LABEL, -(2**63) + 1, 0]),
                "width": (np.uint32, [2**32 - 1, 0, 0, 0]),
                "height": (np.uint32, [1, 0, 0, 2**32 - 1]),
                "nbytes": (np.uint64, [5, 0, encoded[2].nbytes, 0]),
                "crc32": (np.uint32, [record.crc32 for record in encoded]),
            }
            assert encoded[2].nbytes == len(bson.decode(store.documents([2])[0])["image"]) > 24
            for name, (dtype, values) in expected.items():
                column = store.column(name)
                assert column.dtype == dtype
                assert column.shape == (4,)
                assert column.tolist() == values
                assert column.flags.owndata
                assert column.flags.writeable
                column[:] = 0
                assert store.column(name).tolist() == values
            with pytest.raises(ValueError, match=r"^a column is one of label, .*, got 'name'$"):
                store.column("name")

    def test_names_are_packed_and_empty_where_there_is_none(self, tmp_path: Path) -> None:
        records = small_records(5, ["a/ü.jpg", None, "日本/🐈.png", "x", None].__getitem__)
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            names = store.names()
            assert names.data.tobytes() == "a/ü.jpg日本/🐈.pngx".encode()
            assert names.offsets.tolist() == [0, 8, 8, 23, 24, 24]
            assert list(names) == ["a/ü.jpg", "", "日本/🐈.png", "x", ""]
            assert [store.name(index) for index in range(5)] == ["a/ü.jpg", None, "日本/🐈.png", "x", None]

    def test_find_returns_the_lowest_index_of_a_name(self, tmp_path: Path) -> None:
        # The CRC-32 of "plumless" is that of "buckeroo".
        names = ["same", "buckeroo", "same", "ü/日本 🐈.png", "plumless", None, "buckeroo"]
        place = self.store(tmp_path, small_records(7, names.__getitem__))
        with self.open(place) as store:
            assert [store.find(name) for name in ("same", "buckeroo", "ü/日本 🐈.png", "plumless")] == [0, 1, 3, 4]

    @pytest.mark.parametrize("name", ["absent", "", "SAME", "same ", "sam", "\0", "\ud800", "a" * 100_000, "ü"])
    def test_find_says_when_no_record_has_a_name(self, tmp_path: Path, name: str) -> None:
        place = self.store(tmp_path, small_records(3, ["same", None, "u\u0308"].__getitem__))
        with self.open(place) as store, pytest.raises(RecordNotFoundError, match=r"^no record of .*store.* is named '"):
            store.find(name)

    def test_a_store_of_exactly_a_chunk_is_whole(self, tmp_path: Path) -> None:
        count = CHUNK
        records = small_records(count)
        place = self.place(tmp_path)
        manifest = self.write(place, records)
        with self.open(place) as store:
            assert len(store) == manifest.length == count
            assert store.column("label").tolist() == [number % 10 for number in range(count)]
            assert list(store.names()) == [record.name for record in records]
            for index in (0, 1, CHUNK - 2, count - 1):
                assert store.find(f"{index}.jpg") == index
                assert store.name(index) == f"{index}.jpg"
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find(f"{count}.jpg")
            assert store.verify() == manifest.digest

    def test_a_store_of_no_records_is_a_store(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, [])
        with self.open(place) as store:
            assert len(store) == manifest.length == 0
            assert [*store, *store.names(), *store.read([])] == []
            assert store.column("label").shape == (0,)
            assert store.verify() == manifest.digest
            with pytest.raises(RecordIndexError, match=r"no record 0 in .*, which has 0"):
                store[0]
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find("a")
