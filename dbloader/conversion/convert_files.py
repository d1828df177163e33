"""Convert the files of a list into the records of a store."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader._parallel import TASK_FILES, work_in_order
from dbloader.conversion.file_to_record import FileResult, convert_file
from dbloader.errors import ConversionError, SourceError
from dbloader.sources.base import Entry, Loaded, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    import numpy as np

    from dbloader._parallel import Hold
    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.settings import Settings
    from dbloader.sources.base import Source
    from dbloader.stores.writer import Writer

# After this many unreadable files in a row, the conversion ends, because the whole disk seems to fail.
_UNREADABLE_IN_A_ROW = 8

# Number of files in a task if pixels are stored: a small number, because the oldest task may exceed MEMORY_LIMIT.
_RAW_TASK_FILES = 4

# After one of these events, a file in object storage is read again, because the network may have corrupted its bytes.
_SUSPECT = {"rejected", "damaged", "repaired"}


class FileWriter:
    """Converts files of a list, and writes their records and report lines into a store.

    Args:
        writer: Writer of the store.
        settings: Settings of the conversion.
        source: The source that listed the files. It must be open.
        known: Contains results of files to leave out: the store has an equal record, or has rejected the file before.

    Attributes:
        bytes_read: Bytes of the files read so far.
        first_rejected: Name of the first rejected file, and the reason; "" if no file is rejected.
        left_out: Number of ``known`` files that are left out, by the reason: "unchanged" or "rejected".
    """

    def __init__(self, writer: Writer, settings: Settings, source: Source, known: Container[FileResult] = ()) -> None:
        self._writer = writer
        # If new shards are added to a store, the settings already map the source's labels to the store's labels.
        own = source.label_table if settings.labels is None else settings.labels
        self._settings = replace(settings, labels=own)
        self._source = source
        self._known = known
        # The store of a shard is not resumable. If it fails, the shard is made again from its beginning.
        self._again = "convert again with resume (--resume)" if writer.resumable else "run the same command again"
        self._held_back: list[FileResult] = []
        self.bytes_read = 0
        self.first_rejected = ""
        self.left_out = Counter[str]()

    def write(
        self,
        files: FileList,
        order: range | np.ndarray[Any, Any],
        workers: int,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Convert files in ``workers`` threads. ``order`` contains positions in ``files``, in the order of the records.

        Raises:
            ConversionError: A file is bad or damaged, and ``on_bad`` or ``on_damaged`` is ``"fail"``.
            SourceError: The file system seems to fail for all files.
        """

        def convert(part: slice, hold: Hold) -> list[FileResult]:
            return self._convert([files[position] for position in order[part]], hold)

        task_files = _RAW_TASK_FILES if self._settings.images.raw else TASK_FILES
        for batch in work_in_order(convert, len(order), workers, task_files):
            self._write(self._without_unreadable(batch))
            self.bytes_read += sum(done.nbytes for done in batch)
            self.first_rejected = self.first_rejected or next((_reason(done) for done in batch if done.rejected), "")
            progress()
        self._write(self._held_back)

    def _convert(self, items: list[Entry | Problem], hold: Hold) -> list[FileResult]:
        """Read and convert the files of one task. Runs in a thread."""
        contents = self._source.load([item for item in items if isinstance(item, Entry)], hold)
        results = []
        for item in items:
            if isinstance(item, Problem):
                results.append(FileResult.problem(item, item))
                continue
            result = self._convert_file(item, next(contents), hold)
            if self._source.asks_again and not _SUSPECT.isdisjoint(result.events):
                result = self._convert_file(item, next(iter(self._source.load([item], hold))), hold)
            results.append(result)
        return results

    def _convert_file(self, item: Entry, data: bytes | Loaded | Problem, hold: Hold) -> FileResult:
        if isinstance(data, Problem):
            return FileResult.problem(item, data)
        if isinstance(data, Loaded):
            item, data = data
        return convert_file(self._settings, item, data, hold, self._source.file_fields, self._source.target)

    def _without_unreadable(self, batch: list[FileResult]) -> list[FileResult]:
        """Return the results to write now. Unreadable files at the end of the batch wait for a later call.

        These files are reported as rejected when a later file can be read or the list ends. If the conversion fails
        before that, a resumed conversion reads them again.

        Raises:
            SourceError: The file system seems to fail for all files.
        """
        batch, in_a_row = [*self._held_back, *batch], 0
        for done in batch:
            in_a_row = in_a_row + 1 if done.unreadable else 0
            if in_a_row == _UNREADABLE_IN_A_ROW or (in_a_row and not os.access(self._source.root, os.R_OK)):
                raise SourceError(
                    f"{_reason(done)} ({counted(in_a_row, 'file')} in a row): check the disk of {self._source.place}; "
                    f"when it works, {self._again}; or remove these files from the source and begin again"
                )
        end = len(batch) - in_a_row
        self._held_back = batch[end:]
        return batch[:end]

    def _write(self, batch: list[FileResult]) -> None:
        for done in batch:
            kind, action = ("bad", self._settings.on_bad) if done.bad else ("damaged", self._settings.on_damaged)
            if done.rejected and action == "fail":
                raise ConversionError(f"{_reason(done)}; {self._remedy(done, kind)}")
        for done in batch:
            if done in self._known:
                self.left_out["rejected" if done.rejected else "unchanged"] += 1
                done.record, done.events, done.changes, done.depth = None, {}, (), ""
            differs = self._source.differs(done.item) if isinstance(done.item, Entry) else None
            if differs:
                done.events["mismatched"] = "did not match the server's MD5 over two connections (normal with KMS keys)"
            elif differs is not None:
                done.changes += ("unchecked",)
            record, done.record = done.record, None  # keep no reference, so a commit frees the record's memory
            self._writer.write(
                [] if record is None else [record],
                events=[{"name": done.item.name, "event": event, "reason": why} for event, why in done.events.items()],
                outcome=dict.fromkeys((*done.events, *done.changes), 1),
                position=self._writer.position + 1,
                depths={done.depth: 1} if done.depth else {},
            )

    def _remedy(self, done: FileResult, kind: str) -> str:
        """Return what the user can do about a file that ends the conversion."""
        choose, afresh = self._again, "begin again with overwrite (--overwrite)"
        if not self._writer.resumable:  # the writer makes a shard of a plan, and only a new plan can change the options
            choose = afresh = "plan again (dbloader plan --overwrite)"
        # A Problem is an entry of the file list. Fixing its cause changes the list, so the conversion cannot resume.
        fix = f"fix it and {afresh}" if isinstance(done.item, Problem) else f"fix the file and {self._again}"
        return f"{fix}, or choose on_{kind}='reject' (--on-{kind} reject) and {choose}"


def _reason(done: FileResult) -> str:
    return f"{done.item.name}: {done.events['rejected']}"
