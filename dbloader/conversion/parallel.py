"""Worker threads convert files ahead of the writer, in order and in bounded memory."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import ImageFile

from dbloader.conversion.file_to_record import FileResult
from dbloader.conversion.memory_budget import MemoryBudget
from dbloader.sources.base import Entry, Loaded, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import numpy as np

    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.file_to_record import FileConverter
    from dbloader.sources.base import Source

    Hold = Callable[[int], object]

Result = TypeVar("Result")

TASK_FILES = 16
"""Files of one task: enough that handing it to a thread costs nothing, few enough that all threads have work."""

MEMORY_LIMIT = 96 * 2**20
"""Bytes of files and pixels that all tasks together may hold ahead of the writer."""

# Events of files whose bytes may not be those of the source.
_BAD = {"rejected", "damaged", "repaired"}

# Least number of tasks ahead of the writer, so that the threads have work while it is busy.
_TASKS_AHEAD = 8

# Pillow's settings are those of the whole process: its first conversion changes them, and its last one restores them.
_settings, _settings_lock = ExitStack(), threading.Lock()
_conversions = 0


def convert_in_order(
    converter: FileConverter, source: Source, files: FileList, order: range | np.ndarray[Any, Any], workers: int
) -> Iterator[list[FileResult]]:
    """Yield the results of the items at the positions in ``order``, in that order, one task's at a time."""

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
                break  # the conversion has ended: nothing would write the result
            if isinstance(item, Problem):
                results.append(FileResult.rejected(item, item))
                continue
            result = convert_file(item, next(contents), hold)
            if source.asks_again and not _BAD.isdisjoint(result.events):
                result = convert_file(item, next(iter(source.load([item], hold))), hold)
            results.append(result)
        return results

    return work_in_order(convert, len(order), workers)


def work_in_order(
    work: Callable[[slice, Hold, MemoryBudget], list[Result]], count: int, workers: int
) -> Iterator[list[Result]]:
    """Yield what a function returns for each part of ``count`` positions, in order; threads call it ahead.

    The function calls ``hold`` with the number of bytes that it takes.
    """
    budget = MemoryBudget(MEMORY_LIMIT)
    executor = ThreadPoolExecutor(workers, thread_name_prefix="dbloader-convert")
    running: deque[tuple[int, Future[list[Result]]]] = deque()
    try:
        with _strict_pillow():
            for task in range(-(-count // TASK_FILES)):
                if len(running) > max(_TASKS_AHEAD, 2 * workers):
                    yield from _oldest(running, budget)
                part = slice(task * TASK_FILES, min((task + 1) * TASK_FILES, count))
                running.append((task, executor.submit(work, part, partial(budget.take, task), budget)))
            while running:
                yield from _oldest(running, budget)
    finally:
        budget.close()
        executor.shutdown(cancel_futures=True)


def _oldest(running: deque[tuple[int, Future[list[Result]]]], budget: MemoryBudget) -> Iterator[list[Result]]:
    task, future = running.popleft()
    yield future.result()
    budget.give_back(task)


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Let Pillow report truncated files but not warn of odd EXIF and palettes, while any conversion runs."""
    global _conversions
    with _settings_lock:
        if not _conversions:
            _settings.callback(setattr, ImageFile, "LOAD_TRUNCATED_IMAGES", ImageFile.LOAD_TRUNCATED_IMAGES)
            _settings.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module="PIL")
            ImageFile.LOAD_TRUNCATED_IMAGES = False  # many training scripts set it, and no damage would be found
        _conversions += 1
    try:
        yield
    finally:
        with _settings_lock:
            _conversions -= 1
            if not _conversions:
                _settings.close()
