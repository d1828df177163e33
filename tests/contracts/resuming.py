"""Going on with an unfinished store, and writers that fail or are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import StoreExistsError
from dbloader.records.columns import CHUNK
from dbloader.records.record import encode
from tests.contracts.backend import Backend
from tests.contracts.records import documents_of, make_records, small_records, stored, write_one_by_one

if TYPE_CHECKING:
    from pathlib import Path


class ResumingContract(Backend):
    """What an unfinished writer leaves for the next."""

    def test_an_unfinished_store_is_neither_lost_nor_taken_for_another_by_mistake(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write_partial(place, make_records(3))
        there = self.what_is_at(place)
        assert there
        self.check_unreadable(place)
        with pytest.raises(StoreExistsError, match=r"unfinished .*: resume \(--resume\) .* overwrite \(--overwrite\)"):
            self.write_nothing(place)
        assert self.what_is_at(place) == there
        records = make_records(2, seed=2)
        self.write(place, records, overwrite=True)
        with self.open(place) as store:
            assert stored(store, range(2)) == documents_of(records)
            assert list(store.events()) == []

    @pytest.mark.parametrize("cuts", [[0, 0, 3], [5, 6, 7, 19], [20]])
    def test_a_resumed_store_is_the_same_as_one_written_at_once(
        self, tmp_path: Path, cuts: list[int], many_commits: None
    ) -> None:
        records = make_records(20)
        whole, place = self.place(tmp_path, "whole"), self.place(tmp_path)
        with self.create(whole) as writer:
            write_one_by_one(writer, records)
            expected = writer.finish(created="then")
        for number, cut in enumerate(cuts):
            with self.create(place, resume=number > 0, resumable=True) as writer:
                assert writer.resumed == (number > 0)
                assert writer.length == writer.position == (cuts[number - 1] if number else 0)
                write_one_by_one(writer, records[:cut])
                writer.commit()
        with self.create(place, resume=True) as writer:
            write_one_by_one(writer, records)
            assert writer.finish(created="then") == expected
        self.check_same(place, whole)

    @pytest.mark.parametrize("cut", [CHUNK - 1, CHUNK])
    def test_a_store_resumed_in_the_middle_of_a_chunk_is_the_same(self, tmp_path: Path, cut: int) -> None:
        records = [encode(record) for record in small_records(CHUNK + 10)]
        place = self.place(tmp_path)
        with self.create(place, resumable=True) as writer:
            for start in range(0, cut, 1000):  # some commits within the first chunk
                writer.write(records[start : min(start + 1000, cut)])
                writer.commit()
        with self.create(place, resume=True) as writer:
            assert writer.length == cut
            writer.write(records[cut:])
            manifest = writer.finish()
        with self.open(place) as store:
            assert store.verify() == manifest.digest
            assert store.column("crc32").tolist() == [record.crc32 for record in records]
            assert store.name(cut) == f"{cut}.jpg"
            assert store.find(f"{cut}.jpg") == cut

    def test_a_writer_keeps_its_position_until_another_is_given(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place, resumable=True) as writer:
            writer.write([encode(Record(name="a"))], position=7)
            writer.write([encode(Record(name="b"))])
            writer.commit()
            assert (writer.length, writer.position) == (2, 7)
        with self.create(place, resume=True) as writer:
            assert (writer.length, writer.position) == (2, 7)

    def test_a_resumed_writer_overwrites_if_that_was_asked_for_at_the_beginning(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(2, seed=1))
        records = make_records(5, seed=2)
        self.write_partial(place, records[:3], overwrite=True)
        with self.create(place, resume=True) as writer:
            write_one_by_one(writer, records)
            writer.finish()
        self.check_documents(place, records)

    def test_a_writer_that_is_not_resumable_or_commits_nothing_leaves_nothing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write_nothing(place, resumable=True)
        assert self.what_is_at(place) == []
        self.write_partial(place, make_records(3))
        self.write_nothing(place, resume=True)
        assert self.what_is_at(place) == []

    def test_a_writer_that_may_overwrite_and_writes_nothing_leaves_nothing_new(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(2, seed=1))
        there = self.what_is_at(place)
        self.write_nothing(place, overwrite=True, resumable=True)
        assert self.what_is_at(place) == there

    @pytest.mark.parametrize("begun", [False, True])
    def test_overwriting_and_resuming_together_go_on_where_they_can_and_replace(
        self, tmp_path: Path, begun: bool
    ) -> None:
        place = self.store(tmp_path, make_records(2, seed=1))
        records = make_records(5, seed=2)
        if begun:
            self.write_partial(place, records[:3], overwrite=True)
        with self.create(place, overwrite=True, resume=True) as writer:
            assert writer.resumed == begun
            assert writer.length == 3 * begun
            write_one_by_one(writer, records)
            writer.finish()
        self.check_documents(place, records)

    @pytest.mark.parametrize(
        ("now", "named"),
        [
            ({"quality": 90, "source": "abc"}, r"another quality \(95, now 90\)"),
            ({"quality": 95}, r"another source \(abc, now None\)"),
            ({"quality": 95, "source": "abc", "seed": 3}, r"another seed \(None, now 3\)"),
        ],
    )
    def test_resuming_with_other_settings_is_refused_and_names_the_setting(
        self, tmp_path: Path, now: dict[str, Any], named: str
    ) -> None:
        place = self.place(tmp_path)
        settings = {"quality": 95, "source": "abc"}
        with self.create(place, resumable=True) as writer:
            writer.check_settings(settings)
            write_one_by_one(writer, make_records(3))
            writer.commit()
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match=rf"was begun with {named}: resume with the same, or begin again"),
            self.create(place, resume=True, resumable=True) as writer,
        ):
            writer.check_settings(now)
        assert self.what_is_at(place) == there
        with self.create(place, resume=True) as writer:
            writer.check_settings(settings)
            assert writer.settings == settings
            writer.finish()

    def test_settings_are_compared_as_they_are_stored(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        settings = {"size": (3, 4), "factor": np.float64(0.5), "nested": {"a": (1,)}}
        for resume in (False, True):
            with self.create(place, resume=resume, resumable=True) as writer:
                writer.check_settings(settings)
                write_one_by_one(writer, make_records(2))
                writer.commit()
