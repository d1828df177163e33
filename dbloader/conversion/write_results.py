"""Write what became of files into a store: records, and lines of the report."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader.conversion.parallel import convert_in_order
from dbloader.errors import ConversionError, SourceError
from dbloader.sources.base import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import numpy as np

    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.file_to_record import FileConverter, FileResult
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Source
    from dbloader.stores.writer import Writer

# Fewer may lie on one bad part of a disk.
_UNREADABLE_IN_A_ROW = 8
# What to do about a file that ends the conversion, about a problem of the list of files, and instead.
_OF_ONE_FILE = "fix the file and resume (--resume)", "fix it and begin again", "resume with --on-{} reject"
_OF_PARTS = (
    "fix the file and run the same command again",
    "fix it and begin again with --overwrite",
    "begin again with --overwrite and --on-{} reject",
)


class FileWriter:
    """Converts files of a list, and writes them into a store.

    Attributes:
        bytes_read: Bytes of the files read so far.
        first_rejected: The first file that was rejected, and why; "" without one.
    """

    def __init__(
        self,
        writer: Writer,
        converter: FileConverter,
        source: Source,
        fail_on: Collection[str],
        *,
        in_parts: bool = False,
    ) -> None:
        self._writer = writer
        self._converter = converter
        self._source = source
        self._fail_on = fail_on  # "bad" or "damaged" files, of which the first ends the conversion
        self._in_parts = in_parts  # of which each is made whole, and not resumed
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
        """Convert the files at some positions of a list, in that order.

        Raises:
            ConversionError: A file was rejected that the conversion must fail on.
        """
        for batch in convert_in_order(self._converter, self._source, files, order, workers):
            self._write(self._without_unreadable(batch))
            self.bytes_read += sum(done.nbytes for done in batch)
            self.first_rejected = self.first_rejected or next(_rejected(batch), "")
            progress()
        self._write(self._held_back)

    def _without_unreadable(self, batch: list[FileResult]) -> list[FileResult]:
        """Return results to write, without the last ones, if the file system has failed for those.

        They wait until another file can be read: if none can, a resumed conversion reads them again.

        Raises:
            SourceError: The file system fails for all files, as it seems.
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
            if "rejected" in done.events and kind in self._fail_on:
                # A problem is part of the list of files, which a resumed conversion compares.
                again = isinstance(done.item, Problem)
                remedies = _OF_PARTS if self._in_parts else _OF_ONE_FILE
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


def _pop_records(batch: list[FileResult]) -> Iterator[EncodedRecord]:
    """Yield the records; each one's memory is free as soon as its document is made."""
    for done in batch:
        record, done.record = done.record, None
        if record is not None:
            yield record


def _rejected(batch: list[FileResult]) -> Iterator[str]:
    return (f"{done.item.name}: {done.events['rejected']}" for done in batch if "rejected" in done.events)
