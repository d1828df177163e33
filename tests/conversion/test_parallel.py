"""Worker threads convert files ahead of the writer: errors come out, and threads end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from dbloader.conversion.convert import convert
from dbloader.conversion.file_to_record import FileConverter, FileResult
from dbloader.conversion.parallel import MemoryBudget
from tests.support.images import plant_photos

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.sources.base import Entry


def test_no_thread_begins_another_file_after_an_error(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_photos(root, 300)
    workers, seen, lock, all_begun, closed = 4, [], threading.Lock(), threading.Event(), threading.Event()

    def convert_file(_: FileConverter, entry: Entry, *__: Any) -> FileResult:
        with lock:
            seen.append(entry.name)
            if len(seen) == workers:
                all_begun.set()
        assert all_begun.wait(60)
        if entry.name == "cat/0000.jpg":
            raise MemoryError("no more of it")
        assert closed.wait(60)
        return FileResult(entry)

    close = MemoryBudget.close

    def close_and_tell(budget: MemoryBudget) -> None:
        close(budget)
        closed.set()

    monkeypatch.setattr(MemoryBudget, "close", close_and_tell)
    monkeypatch.setattr(FileConverter, "convert", convert_file)
    with pytest.raises(MemoryError, match="no more of it"):
        convert(root, place, workers=workers)
    assert not place.exists()
    assert len(seen) <= workers + 1  # the thread that failed may have begun before the others were told
