"""Files become records: in threads ahead of the writer, in bounded memory; or one by one, where they are quick."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.conversion.machine import strict_pillow
from dbloader.conversion.memory_budget import MemoryBudget
from dbloader.conversion.pace import Pace
from dbloader.conversion.prepare import Prepared
from dbloader.sources.base import Entry, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    import numpy as np

    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.prepare import FilePreparer
    from dbloader.sources.base import Source

# Files of one task: enough that handing it to a thread costs nothing, few enough that all threads have work.
_TASK_FILES = 16
# Of these, files that a source is asked for at once: up to 16 MiB each are held before the budget can know.
_READ_FILES = 4
# Bytes of files, and of pixels where those are held, that all tasks together may hold ahead of the writer.
_HELD_BYTES = 96 * 2**20
# Tasks that may be ahead of the writer, so that the threads have work while it is busy.
_TASKS_AHEAD = 8


class Done(NamedTuple):
    """An item of the source and what became of it."""

    item: Entry | Problem
    prepared: Prepared


def prepare_in_order(
    preparation: FilePreparer,
    files: Source,
    spool: FileList,
    order: np.ndarray[Any, Any],
    workers: int,
) -> Iterator[list[Done]]:
    """Yield what became of the items at the positions in ``order``, in that order, some at a time.

    Args:
        preparation: What is done with each.
        files: Their source.
        spool: The source's items.
        order: Positions in the spool: int64, shape (items,).
        workers: Threads; the calling one prepares files too where that is quicker (`Pace`).
    """
    budget = MemoryBudget(_HELD_BYTES)

    def prepared(task: int) -> Iterator[Done]:
        items = spool.items(order[task * _TASK_FILES : (task + 1) * _TASK_FILES].tolist())
        contents = _contents(files, [item for item in items if isinstance(item, Entry)])
        hold = partial(budget.take, task)
        for item in items:
            if budget.closed:
                break  # nobody will write it
            if isinstance(item, Problem):
                yield Done(item, Prepared(outcome="rejected", reason=item.reason, bad=True))
            elif contents is None:
                yield Done(item, preparation.prepare(item, hold))
            elif (data := next(contents)) is None:
                yield Done(item, Prepared(outcome="rejected", reason="is not in the collection", bad=True))
            else:
                yield Done(item, preparation.prepare(item, hold, data))

    executor = ThreadPoolExecutor(workers, thread_name_prefix="dbloader-convert")
    running: deque[tuple[int, Future[list[Done]]]] = deque()
    pace = Pace(workers, waits=files.reads)  # which asks a server
    try:
        with strict_pillow():
            for task in range(-(-len(order) // _TASK_FILES)):
                while running and (pace.alone or len(running) > max(_TASKS_AHEAD, 2 * workers)):
                    yield from _oldest(running, budget)
                results = prepared(task)
                taken = pace.timed(results) if pace.alone else []
                if pace.alone:
                    yield taken
                    budget.give_back(task)
                else:
                    running.append((task, executor.submit(_joined, taken, results)))
                    pace.handed_over()
            while running:
                yield from _oldest(running, budget)
    finally:
        budget.close()
        executor.shutdown(cancel_futures=True)


def _joined(taken: list[Done], results: Iterator[Done]) -> list[Done]:
    return [*taken, *results]


def _contents(files: Source, entries: list[Entry]) -> Iterator[bytes | None] | None:
    """Yield the bytes of files that the source reads itself, some at a time."""
    if not files.reads:
        return None
    blocks = (entries[start : start + _READ_FILES] for start in range(0, len(entries), _READ_FILES))
    return chain.from_iterable(map(files.read, blocks))


def _oldest(running: deque[tuple[int, Future[list[Done]]]], budget: MemoryBudget) -> Iterator[list[Done]]:
    task, future = running.popleft()
    yield future.result()
    budget.give_back(task)
