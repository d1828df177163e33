"""One writer at a time."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from dbloader.errors import StoreExistsError, StoreLockedError
from dbloader.records.record import encode
from tests.contracts.backend import Backend
from tests.contracts.records import WAIT_S, make_records, write_one_by_one
from tests.support.children import from_child

if TYPE_CHECKING:
    from pathlib import Path


class LockingContract(Backend):
    """Who may write to a place."""

    def test_a_store_that_appears_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        place, elsewhere = self.place(tmp_path), self.place(tmp_path, "elsewhere")
        theirs = make_records(3, seed=1)
        with self.create(place, resumable=True) as writer:
            write_one_by_one(writer, make_records(2))
            self.write(elsewhere, theirs)
            self.move(elsewhere, place)
            with pytest.raises(StoreExistsError, match="exists already; overwrite"):
                writer.finish()
        self.check_documents(place, theirs)
        # One that is resumed learns it at once, not after hours of work.
        with pytest.raises(StoreExistsError, match="has been made by somebody else meanwhile; move it away and resume"):
            self.write_nothing(place, resume=True, resumable=True)
        self.remove(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == 2
            writer.finish()

    def test_a_second_writer_is_refused_in_this_process_and_in_another(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place) as writer:
            for options in ({}, {"resume": True}, {"overwrite": True}):
                error = from_child(lambda: self.write_nothing(place, **options))  # noqa: B023 - called here
                assert isinstance(error, StoreLockedError)
                assert "another process is writing" in str(error)
                with pytest.raises(StoreLockedError, match=r"is writing .*store.* now"):
                    self.write_nothing(place, **options)
            writer.write([encode(record) for record in make_records(2)])
            writer.finish()
        with self.open(place) as store:
            assert len(store) == 2
        assert from_child(lambda: self.write_nothing(place, overwrite=True)) is None

    def test_a_process_that_was_forked_meanwhile_does_not_keep_the_place(self, tmp_path: Path) -> None:
        # A DataLoader worker, say, that outlives the writer it was forked beside.
        place = self.place(tmp_path)
        context = multiprocessing.get_context("fork")
        may_end = context.Event()
        process = context.Process(target=may_end.wait)
        try:
            with self.create(place, resumable=True) as writer:
                write_one_by_one(writer, make_records(3))
                writer.commit()
                process.start()
            with self.create(place, resume=True) as writer:
                assert writer.length == 3
        finally:
            may_end.set()
            process.join(WAIT_S)
            process.close()
