"""Convert the files of a list, and write their records and the lines of the report into a store."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader.conversion.file_to_record import FileResult
from dbloader.conversion.parallel import work_in_order
from dbloader.errors import ConversionError, SourceError
from dbloader.sources.base import Entry, Loaded, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.file_to_record import FileConverter
    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.conversion.settings import Settings
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Source
    from dbloader.stores.writer import Writer

# A conversion ends after so many unreadable files in a row. Fewer may be on one bad part of a disk.
_UNREADABLE_IN_A_ROW = 8

# Events of files that a source is asked for again, as their bytes may have changed on the way.
_SUSPECT = {"rejected", "damaged", "repaired"}

# What to do about a file that ends the conversion, about an error in the list of files, and in place of both.
_REMEDIES = "fix the file and resume (--resume)", "fix it and begin again", "resume with --on-{} reject"
_REMEDIES_IN_PARTS = (
    "fix the file and run the same command again",
    "fix it and begin again with --overwrite",
    "begin again with --overwrite and --on-{} reject",
)


class FileWriter:
    """Converts files of a list, and writes them into a store.

    Args:
        writer: Of the store.
        settings: Of the conversion.
        source: The opened source that the list was made of.
        in_parts: Whether the store is a part, which is made whole and never resumed. The messages depend on it.

    Attributes:
        bytes_read: Bytes of the files read so far.
        first_rejected: Name of the first rejected file, and the reason; "" if there is none.
    """

    def __init__(self, writer: Writer, settings: Settings, source: Source, *, in_parts: bool = False) -> None:
        self._writer = writer
        self._settings = settings
        self._source = source
        self._in_parts = in_parts
        self._held_back: list[FileResult] = []
        self.bytes_read = 0
        self.first_rejected = ""

    def write(
        self,
        files: FileList,
        order: range | np.ndarray[Any, Any],
        workers: int,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Convert the files at the positions in ``order``, in that order, with this many threads.

        Raises:
            ConversionError: A file is rejected, and the settings demand an error then.
            SourceError: The file system seems to fail for all files.
        """
        for batch in _convert_in_order(self._settings.converter, self._source, files, order, workers):
            self._write(self._without_unreadable(batch))
            self.bytes_read += sum(done.nbytes for done in batch)
            self.first_rejected = self.first_rejected or next(_rejected(batch), "")
            progress()
        self._write(self._held_back)

    def _without_unreadable(self, batch: list[FileResult]) -> list[FileResult]:
        """Return the results to write, without unreadable files at the end.

        Those are written once a later file is readable. If no later file is, a resumed conversion reads them again.

        Raises:
            SourceError: The file system seems to fail for all files.
        """
        batch, in_a_row = [*self._held_back, *batch], 0
        for done in batch:
            in_a_row = in_a_row + 1 if done.unreadable else 0
            if in_a_row == _UNREADABLE_IN_A_ROW or (in_a_row and not os.access(self._source.root, os.R_OK)):
                how = "run the same command again" if self._in_parts else "resume (--resume)"
                raise SourceError(
                    f"{next(_rejected([done]))} ({counted(in_a_row, 'file')} in a row): is the disk of "
                    f"{self._source.place} there? When it is, {how}; if it is damaged, leave these files out and begin "
                    "again"
                )
        end = len(batch) - in_a_row
        self._held_back = batch[end:]
        return batch[:end]

    def _write(self, batch: list[FileResult]) -> None:
        for done in batch:
            kind = "bad" if done.bad else "damaged"
            if "rejected" in done.events and kind in self._settings.fail_on:
                # A Problem is part of the list of files, which a resumed conversion compares.
                again = isinstance(done.item, Problem)
                remedies = _REMEDIES_IN_PARTS if self._in_parts else _REMEDIES
                remedy = f"{remedies[again]}, or {remedies[2].format(kind)}"
                raise ConversionError(f"{next(_rejected([done]))}; {remedy}")
        self._writer.write(
            _pop_records(batch),
            events=[
                {"name": done.item.name, "event": event, "reason": reason}
                for done in batch
                for event, reason in done.events.items()
            ],
            outcome=Counter(name for done in batch for name in (*done.events, *done.changes)),
            position=self._writer.position + len(batch),
            depths=Counter(done.depth for done in batch if done.depth),
        )


def _convert_in_order(
    converter: FileConverter, source: Source, files: FileList, order: range | np.ndarray[Any, Any], workers: int
) -> Iterator[list[FileResult]]:
    """Yield the results of the files at the positions in ``order``, one task's at a time."""

    def convert_file(item: Entry, data: bytes | Loaded | Problem, hold: Hold) -> FileResult:
        if isinstance(data, Problem):
            return FileResult.rejected(item, data)
        return converter.convert(*(data if isinstance(data, Loaded) else (item, data)), hold, source.file_fields)

    def convert(part: slice, hold: Hold, budget: MemoryBudget) -> list[FileResult]:
        items = [files[position] for position in order[part]]
        contents = source.load([item for item in items if isinstance(item, Entry)], hold)
        results = []
        for item in items:
            if budget.closed:
                break
            if isinstance(item, Problem):
                results.append(FileResult.rejected(item, item))
                continue
            result = convert_file(item, next(contents), hold)
            if source.asks_again and not _SUSPECT.isdisjoint(result.events):
                result = convert_file(item, next(iter(source.load([item], hold))), hold)
            results.append(result)
        return results

    return work_in_order(convert, len(order), workers)


def _pop_records(batch: list[FileResult]) -> Iterator[EncodedRecord]:
    """Yield the records, and free the memory of each one as soon as it is written."""
    for done in batch:
        record, done.record = done.record, None
        if record is not None:
            yield record


def _rejected(batch: list[FileResult]) -> Iterator[str]:
    return (f"{done.item.name}: {done.events['rejected']}" for done in batch if "rejected" in done.events)
