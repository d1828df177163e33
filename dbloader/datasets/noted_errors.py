"""Name the record in the errors of its sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._describe import add_note, stop_iteration_error

if TYPE_CHECKING:
    from dbloader.datasets.base import RecordDataset
    from dbloader.records.record import Record


class NotedErrors:  # not a @contextmanager: it is entered once per sample, and costs a third as much
    """Notes the record on any error raised inside."""

    __slots__ = ("dataset", "record")

    def __init__(self, dataset: RecordDataset, record: Record) -> None:
        self.dataset = dataset
        self.record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StopIteration):
            raise stop_iteration_error(self.dataset._describe(self.record)) from error
        if isinstance(error, Exception):
            add_note(error, f"in {self.dataset._describe(self.record)}")
