"""The report of a conversion, verifying a store, and damaged records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import DamagedRecordError, DamagedStoreError
from dbloader.records.record import encode
from tests.contracts.backend import Backend
from tests.contracts.records import documents_of, facts, make_records, salt_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class VerifyingContract(Backend):
    """What a store notices."""

    def test_events_come_in_the_order_in_which_they_were_written(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        events = [{"name": f"{n}.jpg", "event": "rejected", "reason": "ü"} for n in range(5)]
        with self.create(place) as writer:
            writer.write([], events=events[:2])
            writer.write([encode(Record(name="a"))], events=events[2:3])
            writer.commit()
            writer.write([], events=iter(events[3:]))
            writer.finish()
        with self.open(place) as store:
            assert list(store.events()) == events
            assert store.verify() == store.manifest.digest  # though no count of the outcome is of these lines
            iterators = store.events(), store.events()
            assert [next(iterator)["name"] for iterator in iterators] == ["0.jpg", "0.jpg"]
            for iterator in iterators:
                iterator.close()  # type: ignore[attr-defined]  # it is a generator

    @pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
    def test_verifying_a_store_returns_its_digest_and_reports_its_progress(self, tmp_path: Path, count: int) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, make_records(count))
        steps: list[int] = []
        with self.open(place) as store:
            assert store.verify(steps.append) == manifest.digest == store.manifest.digest
            assert sum(steps) == count
            assert all(steps)
            assert len(steps) >= count // 100

    @pytest.mark.slow
    def test_a_flipped_bit_in_any_byte_of_a_record_is_noticed(self, tmp_path: Path) -> None:
        record = Record(name="kept/name.jpg", label=3, image=b"the image", fields={"n": np.arange(2, dtype="<u1")})
        size = len(encode(record).document(0, 0))
        place = self.store(tmp_path, [record] * size)
        damaged = {}
        for index, document in enumerate(documents_of([record] * size, salt_of(place))):
            new = document[:index] + bytes([document[index] ^ 1 << index % 8]) + document[index + 1 :]
            if self.can_hold(place, index, new):
                damaged[index] = new
        assert len(damaged) > size // 8
        self.replace_documents(place, damaged)  # type: ignore[arg-type]  # no value is None, which would be possible
        with self.open(place) as store:
            for index in damaged:
                with pytest.raises(
                    DamagedRecordError, match=rf"^record {index} \(kept/name.jpg\) of .*store.* is damaged: i"
                ):
                    store.read([index])
            assert store.documents(list(damaged)) == list(damaged.values())

    @pytest.mark.parametrize("change", ["shorter", "longer", "empty", "another record", "missing"])
    def test_a_damaged_record_raises_and_the_others_are_still_read(self, tmp_path: Path, change: str) -> None:
        records = make_records(5)
        place = self.store(tmp_path, records)
        documents = documents_of(records, salt_of(place))
        new = {
            "shorter": documents[2][:-1],
            "longer": documents[2] + b"\0",
            "empty": b"",
            "another record": documents[3],
            "missing": None,
        }[change]
        if new is not None and not self.can_hold(place, 2, new):
            pytest.skip("this backend cannot have such a record")
        self.replace_documents(place, {2: new})
        with self.open(place) as store:
            message = r"^record 2 \(class 2/ä 2\.jpg\) of .*store.* is damaged: it .*; convert again, or copy"
            uses: list[Callable[[], object]] = [lambda: store.read([0, 2]), lambda: store[2], store.verify]
            for use in uses:
                with pytest.raises(DamagedRecordError, match=message):
                    use()
            assert [facts(record) for record in store.read([0, 1, 3, 4])] == [facts(records[i]) for i in (0, 1, 3, 4)]

    def test_a_damaged_record_without_a_name_is_named_by_its_index(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(3))
        self.replace_documents(place, {1: None})
        with self.open(place) as store, pytest.raises(DamagedRecordError, match=r"^record 1 \(without a name\) of "):
            store[1]

    def test_verifying_notices_a_record_that_was_exchanged_for_a_whole_one(self, tmp_path: Path) -> None:
        records = make_records(70)
        place = self.store(tmp_path, records)
        records[66].label = 2
        self.replace_documents(place, {66: documents_of(records, salt_of(place))[66]})
        with self.open(place) as store:
            assert store[66].label == 2
            with pytest.raises(DamagedStoreError, match=r"its column .* does not fit the 70 records from 0 on"):
                store.verify()
