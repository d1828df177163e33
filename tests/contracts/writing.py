"""Writing a store: what is at the place and when, and one writer at a time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import Record
from dbloader._version import __version__
from dbloader.errors import FieldError, StoreError, StoreExistsError
from dbloader.records.record import encode
from tests.contracts.backend import Backend
from tests.contracts.records import make_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class WritingContract(Backend):
    """What a writer leaves at a place."""

    def test_the_manifest_tells_of_the_records(self, tmp_path: Path) -> None:
        records = make_records(50)
        place = self.place(tmp_path)
        before = datetime.now(UTC).replace(microsecond=0)
        with self.create(place) as writer:
            writer.write([encode(record) for record in records], outcome={"repaired": 2})
            writer.write([], outcome={"repaired": 1, "rejected": 4})
            manifest = writer.finish(classes=("a", "b", "c"), source={"path": "/ü", "shuffle": None})
        encoded = [encode(record) for record in records]
        widths = [record.width for record in records if record.width]
        heights = [record.height for record in records if record.height]
        with self.open(place) as store:
            assert store.manifest == manifest
        assert manifest.length == 50
        assert manifest.classes == ("a", "b", "c")
        assert manifest.label_counts == dict(
            sorted(Counter(r.label for r in records if r.label is not None).items()),
        )
        assert manifest.labelled == sum(record.label is not None for record in records) < 50
        assert manifest.named == 49
        assert manifest.image_bytes == sum(record.nbytes for record in encoded)
        assert manifest.width == (min(widths), max(widths))
        assert manifest.height == (min(heights), max(heights))
        assert manifest.formats == dict(Counter(record.format for record in records if record.format))
        assert manifest.fields == {"boxes": 12, "caption": 12, "mask": 12}
        assert manifest.outcome == {"repaired": 3, "rejected": 4}
        assert manifest.source == {"path": "/ü", "shuffle": None}
        assert manifest.created_by == f"dbloader {__version__}"
        created = datetime.fromisoformat(manifest.created)
        assert before <= created <= datetime.now(UTC)

    def test_nothing_can_be_read_before_the_store_is_finished(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        with self.create(place) as writer:
            self.check_unreadable(place)
            writer.write([encode(record) for record in make_records(5)])
            writer.commit()
            self.check_unreadable(place)
            writer.finish()
            with self.open(place) as store:
                assert len(store) == 5

    @pytest.mark.parametrize("committed", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    def test_leaving_without_finishing_leaves_nothing(self, tmp_path: Path, committed: bool, fails: bool) -> None:
        place = self.place(tmp_path)

        def leave() -> None:
            with self.create(place) as writer:
                writer.write([encode(record) for record in make_records(5)])
                if committed:
                    writer.commit()
                if fails:
                    raise ZeroDivisionError("of the caller")

        if fails:
            with pytest.raises(ZeroDivisionError, match="of the caller"):
                leave()
        else:
            leave()
        assert self.what_is_at(place) == []

    @pytest.mark.parametrize("finishes", [False, True])
    def test_overwriting_replaces_the_store_only_when_the_new_one_is_finished(
        self, tmp_path: Path, many_commits: None, finishes: bool
    ) -> None:
        place = self.place(tmp_path)
        old, new = make_records(4, seed=1), make_records(9, seed=2)
        self.write(place, old)
        there = self.what_is_at(place)
        with self.create(place, overwrite=True) as writer:
            writer.write([encode(record) for record in new])
            writer.commit()
            self.check_documents(place, old)
            if finishes:
                writer.finish()
            self.check_documents(place, new if finishes else old)
        assert self.what_is_at(place) == there

    def test_nothing_can_be_written_after_finishing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        record = encode(Record(name="a"))
        with self.create(place) as writer:
            writer.write([record])
            writer.finish()
            uses: list[Callable[[], object]] = [lambda: writer.write([record]), writer.commit, writer.finish]
            for use in uses:
                with pytest.raises(StoreError, match="is finished: nothing can be written to it any more"):
                    use()
        with self.open(place) as store:
            assert len(store) == 1

    @pytest.mark.parametrize("options", [{}, {"resumable": True}, {"resume": True}])
    def test_a_finished_store_is_not_written_to(self, tmp_path: Path, options: dict[str, bool]) -> None:
        place = self.store(tmp_path, make_records(2))
        there = self.what_is_at(place)
        message = "is finished already: there is nothing to resume" if "resume" in options else "exists already; overwr"
        with pytest.raises(StoreExistsError, match=message):
            self.write_nothing(place, **options)
        assert self.what_is_at(place) == there

    def test_a_text_is_not_taken_for_true(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(2))
        there = self.what_is_at(place)
        options: dict[str, Any] = {"overwrite": "no"}
        with pytest.raises(TypeError, match=r"^overwrite must be True or False, got 'no'$"):
            self.write_nothing(place, **options)
        assert self.what_is_at(place) == there

    def test_overwriting_where_nothing_is_makes_a_store(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(2), overwrite=True)
        with self.open(place) as store:
            assert len(store) == 2

    def test_what_is_not_a_store_is_never_replaced(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.put_something_else(place)
        there = self.what_is_at(place)
        with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
            self.write_nothing(place, overwrite=True)
        assert self.what_is_at(place) == there

    def test_what_is_not_a_store_is_not_replaced_by_a_resumed_writer_either(self, tmp_path: Path) -> None:
        place = self.store(tmp_path, make_records(2))
        self.write_partial(place, make_records(3), overwrite=True)
        self.remove(place)
        self.put_something_else(place)
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
            self.create(place, resume=True, resumable=True) as writer,
        ):
            writer.finish()
        assert self.what_is_at(place) == there

    @pytest.mark.parametrize(
        "values",
        [
            {"classes": ["a", 3]},
            {"classes": ["a", "\ud800"]},
            {"source": {"path": b"x"}},
            {"source": {"path": object()}},
            {"source": {"at": datetime.now(UTC)}},
            {"created": 3},
        ],
    )
    def test_what_a_manifest_cannot_say_is_refused_before_a_store_is_published(
        self, tmp_path: Path, values: dict[str, Any]
    ) -> None:
        place = self.place(tmp_path)
        with (
            self.create(place) as writer,
            pytest.raises(FieldError, match=r"cannot be finished: "),
        ):
            writer.finish(**values)
        self.check_unreadable(place)

    def test_a_label_without_a_class_is_refused_when_the_store_is_finished(self, tmp_path: Path) -> None:
        for number, (label, classes) in enumerate([(3, "abc"), (-1, "abc"), (2**62, "a")]):
            place = self.place(tmp_path, f"store {number}")
            records = [Record(name="a", label=0), Record(name="b", label=label), Record(name="c")]
            with self.create(place, resumable=True) as writer:
                writer.write([encode(record) for record in records])
                with pytest.raises(
                    FieldError, match=rf"^label {label} is not one of the {len(classes)} classes \(0 to "
                ):
                    writer.finish(classes=tuple(classes))
            self.check_unreadable(place)
            with self.create(place, resume=True) as writer:
                assert writer.finish().length == 3
