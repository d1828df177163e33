"""The promises of every writer. Each backend's tests inherit this class."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import FieldError, StoreError, StoreExistsError, StoreFullError, StoreLockedError
from dbloader.records.columns import CHUNK
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from dbloader.stores.writer import Writer
from tests.contracts.backend import Backend
from tests.contracts.records import (
    WAIT_S,
    documents_of,
    make_records,
    small_records,
    stored,
    write_nothing,
    write_one_by_one,
    write_partial,
)
from tests.support.children import from_child


def fail_full(*arguments: object) -> None:
    raise StoreFullError("no room is left")


class WritingContract(Backend):
    """What a place contains over time, locks, and unfinished stores."""

    def test_manifest_counts_the_records(self, tmp_path: Path) -> None:
        records = make_records(50)
        place = self.place(tmp_path)
        before = datetime.now(UTC).replace(microsecond=0)
        with create_store(place) as writer:
            writer.write([encode(record) for record in records], outcome={"repaired": 2})
            writer.write([], outcome={"repaired": 1, "rejected": 4})
            manifest = writer.finish(classes=("a", "b", "c"), source={"path": "/ü", "shuffle": None})
        with self.open(place) as store:
            assert store.manifest == manifest
        labels = Counter(record.label for record in records if record.label is not None)
        assert (manifest.length, manifest.named, manifest.classes) == (50, 49, ("a", "b", "c"))
        assert (manifest.label_counts, manifest.labelled) == (dict(sorted(labels.items())), labels.total())
        assert manifest.outcome == {"repaired": 3, "rejected": 4}
        assert manifest.source == {"path": "/ü", "shuffle": None}
        assert before <= datetime.fromisoformat(manifest.created) <= datetime.now(UTC)

    @pytest.mark.parametrize(
        "values", [{"classes": ["a", 3]}, {"classes": ["\ud800"]}, {"source": {"path": b"x"}}, {"created": 3}]
    )
    def test_finish_refuses_values_that_a_manifest_cannot_store(self, tmp_path: Path, values: dict[str, Any]) -> None:
        place = self.place(tmp_path)
        with create_store(place) as writer, pytest.raises(FieldError, match=r"cannot be finished: "):
            writer.finish(**values)
        self.check_unreadable(place)

    @pytest.mark.parametrize(("label", "classes"), [(3, "abc"), (-1, "abc"), (2**62, "a")])
    def test_finish_refuses_a_label_without_a_class(self, tmp_path: Path, label: int, classes: str) -> None:
        place = self.place(tmp_path)
        records = [Record(name="a", label=0), Record(name="b", label=label), Record(name="c")]
        with create_store(place, resumable=True) as writer:
            writer.write([encode(record) for record in records])
            with pytest.raises(FieldError, match=rf"^label {label} is none of the classes \(0 to "):
                writer.finish(classes=tuple(classes))
        self.check_unreadable(place)
        with create_store(place, resume=True) as writer:
            assert writer.finish().length == 3

    # The content of the place

    @pytest.mark.parametrize("finishes", [False, True])
    def test_finished_store_replaces_another_and_unfinished_store_does_not(
        self, tmp_path: Path, many_commits: None, finishes: bool
    ) -> None:
        place = self.place(tmp_path)
        old, new = make_records(4, seed=1), make_records(9, seed=2)
        with create_store(place, overwrite=True) as writer:
            self.check_unreadable(place)
            writer.write([encode(record) for record in old])
            writer.commit()
            self.check_unreadable(place)
            writer.finish()
        there = self.what_is_at(place)
        with create_store(place, overwrite=True) as writer:
            writer.write([encode(record) for record in new])
            writer.commit()
            self.check_documents(place, old)
            if finishes:
                writer.finish()
            self.check_documents(place, new if finishes else old)
        assert self.what_is_at(place) == there

    @pytest.mark.parametrize("fails", [False, True])
    def test_writer_that_does_not_finish_leaves_nothing(self, tmp_path: Path, fails: bool) -> None:
        place = self.place(tmp_path)
        with suppress(ZeroDivisionError), create_store(place) as writer:
            writer.write([encode(record) for record in make_records(5)])
            writer.commit()
            if fails:
                raise ZeroDivisionError
        assert self.what_is_at(place) == []
        write_nothing(place, resumable=True)  # without a commit
        assert self.what_is_at(place) == []
        write_partial(place, make_records(3))
        write_nothing(place, resume=True)
        assert self.what_is_at(place) == []

    def test_finished_writer_writes_nothing_more(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        record = encode(Record(name="a"))
        with create_store(place) as writer:
            writer.write([record])
            writer.finish()
            uses: list[Callable[[], object]] = [lambda: writer.write([record]), writer.commit, writer.finish]
            for use in uses:
                with pytest.raises(StoreError, match="is finished: nothing more can be written to it"):
                    use()
        with self.open(place) as store:
            assert len(store) == 1

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({}, StoreExistsError, "exists already; overwrite"),
            ({"resumable": True}, StoreExistsError, "exists already; overwrite"),
            ({"resume": True}, StoreExistsError, "is already finished: there is nothing to resume"),
            ({"overwrite": "no"}, TypeError, "^overwrite must be True or False, got 'no'$"),
        ],
    )
    def test_finished_store_is_refused_without_overwrite(
        self, tmp_path: Path, options: Any, error: type[Exception], message: str
    ) -> None:
        place = self.store(tmp_path, make_records(2))
        there = self.what_is_at(place)
        with pytest.raises(error, match=message):
            write_nothing(place, **options)
        assert self.what_is_at(place) == there

    @pytest.mark.parametrize("resume", [False, True])
    def test_file_that_is_not_a_store_is_never_replaced(self, tmp_path: Path, resume: bool) -> None:
        place = self.place(tmp_path)
        if resume:
            self.write(place, make_records(2))
            write_partial(place, make_records(3), overwrite=True)
            self.remove(place)
        self.put_something_else(place)
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
            create_store(place, overwrite=not resume, resume=resume, resumable=True) as writer,
        ):
            writer.finish()
        assert self.what_is_at(place) == there

    # Locks

    def test_store_that_another_writer_published_is_not_replaced(self, tmp_path: Path) -> None:
        place, elsewhere = self.place(tmp_path), self.place(tmp_path, "elsewhere")
        theirs = make_records(3, seed=1)
        with create_store(place, resumable=True) as writer:
            write_one_by_one(writer, make_records(2))
            self.write(elsewhere, theirs)
            self.move(elsewhere, place)
            with pytest.raises(StoreExistsError, match="exists already; overwrite"):
                writer.finish()
        self.check_documents(place, theirs)
        # A resumed writer raises the error at once, not after hours of work.
        with pytest.raises(StoreExistsError, match="since this conversion began: move that store away, then resume"):
            write_nothing(place, resume=True, resumable=True)
        self.remove(place)
        with create_store(place, resume=True) as writer:
            assert writer.length == 2
            writer.finish()

    def test_second_writer_is_refused_in_this_and_in_another_process(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with create_store(place) as writer:
            for options in ({}, {"resume": True}, {"overwrite": True}):
                error = from_child(lambda: write_nothing(place, **options))  # noqa: B023 - called here
                assert isinstance(error, StoreLockedError)
                assert "another process is writing" in str(error)
                with pytest.raises(StoreLockedError, match=r"is writing .*store.* now"):
                    write_nothing(place, **options)
            writer.write([encode(record) for record in make_records(2)])
            writer.finish()
        with self.open(place) as store:
            assert len(store) == 2
        assert from_child(lambda: write_nothing(place, overwrite=True)) is None

    def test_forked_process_does_not_keep_the_lock(self, tmp_path: Path) -> None:
        # A DataLoader worker can outlive the writer.
        place = self.place(tmp_path)
        context = multiprocessing.get_context("fork")
        may_end = context.Event()
        process = context.Process(target=may_end.wait)
        try:
            with create_store(place, resumable=True) as writer:
                write_one_by_one(writer, make_records(3))
                writer.commit()
                process.start()
            with create_store(place, resume=True) as writer:
                assert writer.length == 3
        finally:
            may_end.set()
            process.join(WAIT_S)
            process.close()

    # Resuming

    def test_unfinished_store_is_refused_without_resume_or_overwrite(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        write_partial(place, make_records(3))
        there = self.what_is_at(place)
        assert there
        self.check_unreadable(place)
        with pytest.raises(StoreExistsError, match=r"unfinished .*: resume \(--resume\) .* overwrite \(--overwrite\)"):
            write_nothing(place)
        assert self.what_is_at(place) == there
        records = make_records(2, seed=2)
        self.write(place, records, overwrite=True)
        with self.open(place) as store:
            assert stored(store, range(2)) == documents_of(records)
            assert list(store.events()) == []

    @pytest.mark.parametrize("cuts", [[0, 0, 3], [5, 6, 7, 19], [20]])
    def test_resumed_store_equals_an_uninterrupted_store(
        self, tmp_path: Path, cuts: list[int], many_commits: None
    ) -> None:
        records = make_records(20)
        place, whole = self.place(tmp_path), self.place(tmp_path, "whole")
        for number, cut in enumerate(cuts):
            with create_store(place, resume=number > 0, resumable=True) as writer:
                assert writer.resumed == (number > 0)
                assert writer.length == writer.position == (cuts[number - 1] if number else 0)
                write_one_by_one(writer, records[:cut])
                writer.commit()
        self.check_resumes(place, whole, records)

    @pytest.mark.parametrize("cut", [CHUNK - 1, CHUNK])
    def test_store_resumed_within_a_chunk_of_columns_is_complete(self, tmp_path: Path, cut: int) -> None:
        small = small_records(CHUNK + 10)
        for number in (0, cut - 1, cut):
            small[number].fields = {"score": number / 2, "late": number} if number else {"score": 0}
        records = [encode(record) for record in small]
        place = self.place(tmp_path)
        with create_store(place, resumable=True) as writer:
            for start in range(0, cut, 1000):  # several commits in the first chunk
                writer.write(records[start : min(start + 1000, cut)])
                writer.commit()
        with create_store(place, resume=True) as writer:
            assert writer.length == cut
            writer.write(records[cut:])
            manifest = writer.finish()
        with self.open(place) as store:
            assert store.verify() == manifest.digest
            assert store.column("crc32").tolist() == [record.crc32 for record in records]
            assert store.column("score")[[0, 1, cut]].tolist()[::2] == [0, cut / 2]
            assert store.column("late")[[0, cut]].tolist() == [-(2**63), cut]
            assert store.name(cut) == f"{cut}.jpg"
            assert store.find(f"{cut}.jpg") == cut

    @pytest.mark.parametrize(("begun", "overwrite"), [(True, False), (True, True), (False, True)])
    def test_resumed_writer_overwrites_if_any_of_its_runs_was_allowed_to(
        self, tmp_path: Path, begun: bool, overwrite: bool
    ) -> None:
        place = self.store(tmp_path, make_records(2, seed=1))
        records = make_records(5, seed=2)
        if begun:
            write_partial(place, records[:3], overwrite=True)
        with create_store(place, overwrite=overwrite, resume=True) as writer:
            assert (writer.resumed, writer.length) == (begun, 3 * begun)
            write_one_by_one(writer, records)
            writer.finish()
        self.check_documents(place, records)

    @pytest.mark.parametrize(
        ("now", "named"),
        [
            ({"quality": 90}, r"another quality \(95, now 90\)"),
            ({"source": None}, r"another source \(abc, now None\)"),
            ({"seed": 3}, r"another seed \(None, now 3\)"),
        ],
    )
    def test_resuming_with_other_settings_is_refused(self, tmp_path: Path, now: dict[str, Any], named: str) -> None:
        place = self.place(tmp_path)
        # Settings are compared as they are stored, and a stored tuple becomes a list.
        settings = {"quality": 95, "source": "abc", "size": (3, 4), "factor": np.float64(0.5), "nested": {"a": (1,)}}
        with create_store(place, resumable=True) as writer:
            writer.check_settings(settings)
            write_one_by_one(writer, make_records(3))
            writer.commit()
        there = self.what_is_at(place)
        with (
            pytest.raises(
                StoreExistsError, match=rf"was begun with {named}: resume with the same value, or begin again"
            ),
            create_store(place, resume=True, resumable=True) as writer,
        ):
            writer.check_settings(settings | now)
        assert self.what_is_at(place) == there
        with create_store(place, resume=True) as writer:
            writer.check_settings(settings)
            writer.finish()

    def test_writer_commits_after_commit_bytes_or_two_seconds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commits = []  # numbers of records
        record = encode(Record(image=bytes(2**20)))
        now = 100.0
        monkeypatch.setattr("dbloader.stores.writer.time", SimpleNamespace(monotonic=lambda: now))
        count = self.commit_bytes // 2**20
        with create_store(self.place(tmp_path)) as writer:
            monkeypatch.setattr(writer, "_store", lambda commit, _: commits.append(len(commit.documents)))
            for _ in range(count):
                writer.write([record])
            now += 1.9
            writer.write([record])
            now += 0.2
            writer.write([record])
        assert commits == [count, 2]

    # Failures

    def test_records_of_a_failing_source_are_not_written(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)

        def failing() -> Iterator[Any]:
            yield encode(Record(name="a"))
            raise ZeroDivisionError("of the source")

        def write() -> None:
            with create_store(place, resumable=True) as writer:
                writer.write([encode(Record(name="before"))], position=1)
                writer.commit()
                writer.write(failing(), position=2)

        with pytest.raises(ZeroDivisionError, match="of the source"):
            write()
        with create_store(place, resume=True) as writer:
            assert (writer.length, writer.position) == (1, 1)

    def test_nothing_is_stored_after_a_failed_commit(
        self, tmp_path: Path, many_commits: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A later commit would leave out the records of the failed commit.
        place = self.place(tmp_path)
        records = make_records(6)
        uses: list[Callable[[Writer], object]] = [
            lambda writer: write_one_by_one(writer, records),
            lambda writer: writer.commit(),
            lambda writer: writer.finish(),
            lambda writer: None,
        ]

        def write(use: Callable[[Writer], object]) -> None:
            with create_store(place, resume=True, resumable=True) as writer:
                write_one_by_one(writer, records[:2])
                writer.commit()
                with monkeypatch.context() as patched:
                    patched.setattr(writer, "_store", fail_full)
                    write_one_by_one(writer, records[:3])
                    with pytest.raises(StoreFullError, match="no room is left"):
                        writer.commit()
                use(writer)  # the disk has room again

        for use in uses:
            with pytest.raises(StoreFullError, match="no room is left"):
                write(use)
            self.check_unreadable(place)
        with create_store(place, resume=True) as writer:
            assert writer.length == writer.position == 2
            write_one_by_one(writer, records)
            assert writer.finish().length == 6
        self.check_documents(place, records)

    def check_resumes(self, place: str, whole: str, records: list[Record], begun: int | None = None) -> None:
        """Finish a store, and check that it equals a store written without interruption."""
        with create_store(whole) as writer:
            write_one_by_one(writer, records)
            expected = writer.finish(created="then")
        with create_store(place, resume=True) as writer:
            assert begun is None or writer.length == writer.position == begun
            write_one_by_one(writer, records)
            assert writer.finish(created="then") == expected
        self.check_same(place, whole)
