"""Errors about one record, which name the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._describe import add_note, stop_iteration_error
from dbloader.errors import DamagedImageError

if TYPE_CHECKING:
    from dbloader.datasets.base import RecordDataset
    from dbloader.records.record import Record


def describe_record(record: Record, root: str) -> str:
    """Return the index and the name of a record and the place of its store, for messages."""
    return f"record {record.index} ({record.name or 'without a name'}) of {root}"


def check_whole(record: Record, root: str) -> None:
    """Raise DamagedImageError if the image of a record was damaged when it was stored."""
    if record.damaged is not None:
        raise DamagedImageError(
            f"{describe_record(record, root)} was stored damaged: {record.damaged}; "
            "convert without on_damaged='keep', or pass decode=None to get its bytes",
        )


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
            raise stop_iteration_error(describe_record(self.record, self.dataset.root)) from error
        if isinstance(error, Exception):
            add_note(error, f"in {describe_record(self.record, self.dataset.root)}")
