"""The promises of every store to its readers. Each backend's tests inherit this class."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import DamagedRecordError, DamagedStoreError, OptionError, RecordIndexError, RecordNotFoundError
from dbloader.records.columns import CHUNK, NO_LABEL
from dbloader.records.record import encode
from dbloader.sampling import OrderedSampler
from dbloader.stores.base import Store
from dbloader.stores.open import create_store
from tests.contracts.backend import Backend
from tests.contracts.records import documents_of, facts, make_records, owner_of, small_records, stored

RECORDS = [*make_records(100), Record()]
FACTS = [facts(record) for record in RECORDS]
INDICES = [29, 0, 0, 17, 29, 3]


class ReadingContract(Backend):
    """Records, columns, names, the report, and damage in them."""

    @pytest.fixture
    def many(self, tmp_path: Path) -> Iterator[Store]:
        """A store of RECORDS."""
        with self.open(self.store(tmp_path, RECORDS)) as store:
            yield store

    def test_records_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, RECORDS)
        with self.open(place) as store:
            assert [facts(record) for record in store.read(range(101))] == [facts(record) for record in store] == FACTS
            assert [record.index for record in store] == list(range(101))
            assert store.manifest == manifest

    def test_read_returns_records_in_the_order_of_the_indices(self, many: Store) -> None:
        read = many.read(INDICES)
        assert [record.index for record in read] == INDICES
        assert [facts(record) for record in read] == [FACTS[index] for index in INDICES]
        for sequence in ((3, 1), range(3, -1, -2), np.array([3, 1])):
            read = many.read(sequence)  # type: ignore[arg-type]  # an array is a sequence to everybody but typing
            assert [(record.index, type(record.index)) for record in read] == [(3, int), (1, int)]
        assert [*many.read([]), *many.encoded([])] == []
        twice = many.read([7, 7])
        twice[0].fields["changed"] = True
        assert facts(twice[1]) == FACTS[7]

    def test_borrowed_records_equal_read_records(self, many: Store) -> None:
        def facts_of(record: Record) -> Any:
            image = bytes(record.image) if isinstance(record.image, memoryview) else record.image
            return facts(replace(record, image=image))

        with many.borrow(INDICES) as borrowed:
            assert [facts_of(record) for record in borrowed] == [FACTS[index] for index in INDICES]
        with pytest.raises(lmdb.Error, match="of the caller"), many.borrow([2]) as borrowed:
            raise lmdb.Error("of the caller")
        with pytest.raises(RecordIndexError, match="no record 101 in"), many.borrow([101]) as borrowed:
            next(borrowed)

    @pytest.mark.parametrize("index", [101, -1, 2**63, 2**64, -(2**63)])
    def test_index_out_of_range_raises(self, many: Store, index: int) -> None:
        uses: list[Callable[[], object]] = [
            lambda: many.read([0, index]),
            lambda: many.encoded([index]),
            lambda: many.name(index),
        ]
        for use in uses:
            with pytest.raises(
                RecordIndexError, match=f"^no record {index} in .*store.*, which has 101 records, numbered from 0$"
            ):
                use()

    def test_order_is_announced_to_any_store(self, many: Store) -> None:
        sampler = OrderedSampler(many)
        for indices in (None, np.arange(len(many))):
            many.expect_order(sampler, sampler.state_after(0), indices, margin=4, check=True)
        assert [facts(record) for record in many.read([2, 0])] == [FACTS[2], FACTS[0]]

    def test_negative_index_counts_from_the_end(self, many: Store) -> None:
        for index in (-101, -1, 0, 100):
            assert (facts(many[index]), many[index].index) == (FACTS[index], index % 101)
        for index in (101, -102, 2**70):
            with pytest.raises(RecordIndexError, match=f"^no record {index} in .*, which has 101 records"):
                many[index]

    def test_encoded_records_equal_the_written_records(self, many: Store) -> None:
        indices = [39, *range(39)]
        written = [encode(RECORDS[index]) for index in indices]
        assert [record[1:] for record in many.encoded(indices)] == [record[1:] for record in written]
        assert stored(many, indices) == [record.document(at, 0) for record, at in zip(written, indices, strict=True)]

    def test_results_do_not_share_memory_with_the_store(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, RECORDS)
        store = self.open(place)
        read, encoded, names = store.read(range(101)), store.encoded(range(101)), store.names()
        columns = {name: store.column(name) for name in ("label", "width", "height", "nbytes", "crc32")}
        for array in (names.data, names.offsets, *columns.values()):
            assert owner_of(array) is None or isinstance(owner_of(array), bytearray)
        for record in read:
            for value in (record.image, record.fields.get("mask")):
                assert not isinstance(value, memoryview)
                if isinstance(value, np.ndarray):
                    assert owner_of(value) is None
                    assert value.flags.writeable
        store.close()
        del store
        self.remove(place)
        gc.collect()
        assert [facts(record) for record in read] == FACTS
        assert [record.document(at, 0) for at, record in enumerate(encoded)] == documents_of(RECORDS)
        assert list(names) == [record.name or "" for record in RECORDS]
        assert columns["nbytes"].sum() == sum(encode(record).nbytes for record in RECORDS)

    def test_columns_hold_the_values_of_all_records(self, tmp_path: Path) -> None:
        records = [
            Record(name="a", label=2**63 - 1, image=b"12345", width=2**32 - 1, height=1),
            Record(name="b"),
            Record(name="c", label=-(2**63) + 1, image=np.zeros(3), width=0, height=0),
            Record(label=0, image=b"", height=2**32 - 1),
        ]
        encoded = [encode(record) for record in records]
        with self.open(self.store(tmp_path, records)) as store:
            expected = {
                "label": (np.int64, [2**63 - 1, NO_LABEL, -(2**63) + 1, 0]),
                "width": (np.uint32, [2**32 - 1, 0, 0, 0]),
                "height": (np.uint32, [1, 0, 0, 2**32 - 1]),
                "nbytes": (np.uint64, [5, 0, encoded[2].nbytes, 0]),
                "crc32": (np.uint32, [record.crc32 for record in encoded]),
            }
            assert encoded[2].nbytes > 24
            assert [store.label(index) for index in range(4)] == expected["label"][1]
            for name, (dtype, values) in expected.items():
                column = store.column(name)
                assert (column.dtype, column.shape, column.tolist()) == (dtype, (4,), values)
                assert column.flags.owndata
                column[:] = 0
                assert store.column(name).tolist() == values
            with pytest.raises(OptionError, match=r" has no column 'name'; its columns are label, .*, name_hash$"):
                store.column("name")
            with pytest.raises(TypeError, match="the name of a column must be a str, got 3"):
                store.column(3)  # type: ignore[arg-type]

    def test_scalars_in_further_fields_have_columns(self, tmp_path: Path) -> None:
        count = 2 * CHUNK + 5
        records = [Record(fields={"half": number / 2}) for number in range(count)]
        records[5].fields = {"boxes": [1], "long": "x" * 3000, "none": None}
        records[CHUNK].fields |= {"late": CHUNK, "caption": "a cat", "nbytes": 3}
        records[-1].fields |= {"late": 0.5, "flag": True, "boxes": 3}
        with self.open(self.store(tmp_path, records)) as store:
            kinds = {"caption": "text", "flag": "bool", "half": "float", "late": "float", "nbytes": "int"}
            assert store.manifest.columns == kinds
            half, late, caption = (store.column(name) for name in ("half", "late", "caption"))
            assert half.dtype == late.dtype == np.float64
            assert [*half[[0, 4, 6]], *half[[-1, CHUNK]]] == [0, 2, 3, (count - 1) / 2, CHUNK / 2]
            assert (np.flatnonzero(~np.isnan(late)).tolist(), late[-1]) == ([CHUNK, count - 1], 0.5)
            assert np.isnan(half[5])
            assert (np.flatnonzero(caption != "").tolist(), caption[CHUNK]) == ([CHUNK], "a cat")
            assert store.column("flag").tolist() == [-1] * (count - 1) + [1]
            assert store.column("nbytes").tolist() == [0] * count  # size of the image; these records have none
            assert store.column("field.nbytes")[CHUNK] == 3
            for name in ("boxes", "long", "none"):
                with pytest.raises(OptionError, match=rf" has no column '{name}'; .*, caption, flag, half, late, "):
                    store.column(name)
            assert store.verify() == store.manifest.digest

    def test_names_are_packed_and_a_missing_name_is_empty(self, tmp_path: Path) -> None:
        names = ["a/ü.jpg", None, "日本/🐈.png", "x", None]
        with self.open(self.store(tmp_path, small_records(5, names.__getitem__))) as store:
            packed = store.names()
            assert packed.data.tobytes() == "a/ü.jpg日本/🐈.pngx".encode()
            assert packed.offsets.tolist() == [0, 8, 8, 23, 24, 24]
            assert list(packed) == [name or "" for name in names]
            assert [store.name(index) for index in range(5)] == names

    def test_find_returns_the_lowest_index_of_a_name(self, tmp_path: Path) -> None:
        # "plumless" and "buckeroo" have the same CRC-32.
        names = ["same", "buckeroo", "same", "ü/日本 🐈.png", "plumless", None, "buckeroo"]
        with self.open(self.store(tmp_path, small_records(7, names.__getitem__))) as store:
            assert [store.find(name) for name in ("same", "buckeroo", "ü/日本 🐈.png", "plumless")] == [0, 1, 3, 4]

    def test_find_raises_for_an_unknown_name(self, tmp_path: Path) -> None:
        with self.open(self.store(tmp_path, small_records(3, ["same", None, "u\u0308"].__getitem__))) as store:
            for name in ("absent", "", "SAME", "same ", "sam", "\0", "\ud800", "a" * 100_000, "ü"):
                with pytest.raises(RecordNotFoundError, match=r"^no record of .*store.* is named '"):
                    store.find(name)

    def test_store_without_records_can_be_read(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, [])
        with self.open(place) as store:
            assert len(store) == manifest.length == 0
            assert [*store, *store.names(), *store.read([])] == []
            assert store.column("label").shape == (0,)
            assert store.verify() == manifest.digest
            with pytest.raises(RecordIndexError, match=r"no record 0 in .*, which has 0 records, numbered from 0"):
                store[0]
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find("a")

    def test_events_keep_the_order_of_writing(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        events = [{"name": f"{n}.jpg", "event": "rejected", "reason": "ü"} for n in range(5)]
        with create_store(place) as writer:
            writer.write([], events=events[:2])
            writer.write([encode(Record(name="a"))], events=events[2:3])
            writer.commit()
            writer.write([], events=iter(events[3:]))
            writer.finish()
        with self.open(place) as store:
            assert list(store.events()) == events
            assert store.verify() == store.manifest.digest  # although these events are not counted in the outcome
            iterators = store.events(), store.events()
            assert [next(iterator)["name"] for iterator in iterators] == ["0.jpg", "0.jpg"]
            for iterator in iterators:
                iterator.close()  # type: ignore[attr-defined]  # it is a generator

    @pytest.mark.parametrize("count", [1, 200])
    def test_verify_returns_the_digest_and_reports_progress(self, tmp_path: Path, count: int) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, make_records(count))
        steps: list[int] = []
        with self.open(place) as store:
            assert store.verify(steps.append) == manifest.digest == store.manifest.digest
            assert sum(steps) == count
            assert all(steps)
            assert len(steps) >= count // 100

    @pytest.mark.slow
    def test_bit_flip_in_any_byte_of_a_record_raises(self, tmp_path: Path) -> None:
        record = Record(name="kept/name.jpg", label=3, image=b"the image", fields={"n": np.arange(2, dtype="<u1")})
        size = len(encode(record).document(0, 0))
        place = self.store(tmp_path, [record] * size)
        damaged: dict[int, bytes | None] = {}
        for index, document in enumerate(self.documents(place, [record] * size)):
            new = document[:index] + bytes([document[index] ^ 1 << index % 8]) + document[index + 1 :]
            if self.can_hold(place, index, new):
                damaged[index] = new
        assert len(damaged) > size // 8
        self.replace_documents(place, damaged)
        with self.open(place) as store:
            for index in damaged:
                with pytest.raises(
                    DamagedRecordError, match=rf"^record {index} \(kept/name.jpg\) of .*store.* is damaged: i"
                ):
                    store.read([index])

    @pytest.mark.parametrize("change", ["shorter", "longer", "empty", "another record", "missing"])
    def test_damaged_record_raises_and_other_records_are_read(self, tmp_path: Path, change: str) -> None:
        records = make_records(5)
        place = self.store(tmp_path, records)
        documents = self.documents(place, records)
        new = {
            "shorter": documents[2][:-1],
            "longer": documents[2] + b"\0",
            "empty": b"",
            "another record": documents[3],
            "missing": None,
        }[change]
        if new is not None and not self.can_hold(place, 2, new):
            pytest.skip("this backend cannot store such a record")
        self.replace_documents(place, {2: new})
        with self.open(place) as store:
            message = r"^record 2 \(class 2/ä 2\.jpg\) of .*store.* is damaged: its? .*; convert again, or copy"
            uses: list[Callable[[], object]] = [lambda: store.read([0, 2]), lambda: store[2], store.verify]
            for use in uses:
                with pytest.raises(DamagedRecordError, match=message):
                    use()
            assert [facts(record) for record in store.read([0, 1, 3, 4])] == [facts(records[i]) for i in (0, 1, 3, 4)]

    def test_verify_finds_a_record_replaced_by_another(self, tmp_path: Path) -> None:
        records = make_records(70)
        place = self.store(tmp_path, records)
        records[66].label = 2
        self.replace_documents(place, {66: self.documents(place, records)[66]})
        with self.open(place) as store:
            assert store[66].label == 2
            with pytest.raises(DamagedStoreError, match=r"its column .* disagrees with records 0 to 69"):
                store.verify()
