"""Writers that fail or are killed."""

from __future__ import annotations

import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import Record
from dbloader.errors import StoreFullError
from dbloader.records.record import encode
from dbloader.stores.write_buffer import Committer
from tests.contracts.backend import Backend
from tests.contracts.records import make_records, write, write_one_by_one
from tests.support.children import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dbloader.stores.writer import Writer


def commit_with(patch: pytest.MonkeyPatch, replace: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Let every commit run another function in place of its own."""
    begin = Committer.begin
    patch.setattr(Committer, "begin", lambda self, commit, *arguments: begin(self, replace(commit), *arguments))


def fail_full(*arguments: object) -> None:
    raise StoreFullError("no room is left")


def write_and_die(place: str, records: list[Record], commits: int, *, stored: bool) -> None:
    """Write records with a commit each, and kill the process before or after one of them is stored."""
    numbers = itertools.count(1)

    def dying(store: Callable[..., None]) -> Callable[..., None]:
        def store_and_die(*arguments: Any) -> None:
            number = next(numbers)
            if number == commits and not stored:
                os.kill(os.getpid(), signal.SIGKILL)
            store(*arguments)
            if number == commits:
                os.kill(os.getpid(), signal.SIGKILL)

        return store_and_die

    with pytest.MonkeyPatch.context() as patch:
        commit_with(patch, dying)
        write(place, records, resumable=True)


class FailingContract(Backend):
    """What a failed writer leaves for the next."""

    def test_a_writer_that_is_killed_before_its_first_commit_may_still_overwrite_when_resumed(
        self, tmp_path: Path
    ) -> None:
        place = self.store(tmp_path, make_records(2, seed=1))

        def begin() -> None:
            with self.create(place, overwrite=True, resumable=True):
                os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(begin) == -signal.SIGKILL
        with self.open(place) as store:
            assert len(store) == 2
        records = make_records(5, seed=2)
        with self.create(place, resume=True) as writer:
            assert writer.resumed
            writer.check_settings({"quality": 90})
            write_one_by_one(writer, records)
            writer.finish()
        self.check_documents(place, records)

    def test_records_that_cannot_be_made_are_not_written(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)

        def failing() -> Iterator[Any]:
            yield encode(Record(name="a"))
            raise ZeroDivisionError("of the source")

        def write() -> None:
            with self.create(place, resumable=True) as writer:
                writer.write([encode(Record(name="before"))], position=1)
                writer.commit()
                writer.write(failing(), position=2)

        with pytest.raises(ZeroDivisionError, match="of the source"):
            write()
        with self.create(place, resume=True) as writer:
            assert (writer.length, writer.position) == (1, 1)

    def test_after_a_commit_that_failed_no_later_record_is_stored(
        self, tmp_path: Path, many_commits: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Otherwise the store would lack the records of the failed commit, and nobody would know.
        place = self.place(tmp_path)
        records = make_records(6)
        uses: list[Callable[[Writer], object]] = [
            lambda writer: write_one_by_one(writer, records),
            lambda writer: writer.commit(),
            lambda writer: writer.finish(),
            lambda writer: None,
        ]

        def write(use: Callable[[Writer], object]) -> None:
            with self.create(place, resume=True, resumable=True) as writer:
                write_one_by_one(writer, records[:2])
                writer.commit()
                with monkeypatch.context() as patched:
                    commit_with(patched, lambda *_: fail_full)
                    write_one_by_one(writer, records[:3])
                    with pytest.raises(StoreFullError, match="no room is left"):
                        writer.commit()
                use(writer)  # there is room again

        for use in uses:
            with pytest.raises(StoreFullError, match="no room is left"):
                write(use)
            self.check_unreadable(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == writer.position == 2
            write_one_by_one(writer, records)
            manifest = writer.finish()
        assert manifest.length == 6
        self.check_documents(place, records)

    def test_the_first_error_is_the_one_that_is_raised(
        self, tmp_path: Path, many_commits: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write() -> None:
            with self.create(self.place(tmp_path)) as writer:
                commit_with(monkeypatch, lambda *_: fail_full)
                writer.write([encode(Record(name="a"))])
                raise ZeroDivisionError("of the caller")

        with pytest.raises(ZeroDivisionError, match="of the caller"):
            write()

    @pytest.mark.slow
    @pytest.mark.parametrize(("commits", "stored"), [(1, False), (1, True), (9, False), (20, True)])
    def test_what_a_killed_writer_committed_is_resumed(
        self, tmp_path: Path, commits: int, stored: bool, many_commits: None
    ) -> None:
        records = make_records(20)
        whole, place = self.place(tmp_path, "whole"), self.place(tmp_path)
        with self.create(whole) as writer:
            write_one_by_one(writer, records)
            expected = writer.finish(created="then")
        assert in_child(lambda: write_and_die(place, records, commits, stored=stored)) == -signal.SIGKILL
        self.check_unreadable(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == writer.position == (commits if stored else commits - 1)
            write_one_by_one(writer, records)
            assert writer.finish(created="then") == expected
        self.check_same(place, whole)
