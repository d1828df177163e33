"""Conversion threads use bounded memory, raise errors, and end."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from dbloader._parallel import MemoryBudget
from dbloader.conversion import convert_files
from dbloader.conversion.convert import convert
from dbloader.conversion.file_to_record import FileResult
from dbloader.conversion.settings import Settings
from dbloader.sources.base import Entry
from tests.support.images import plant_photos

WAIT_S = 30.0
LIMIT = 100


@pytest.mark.parametrize("seed", range(2))
def test_tasks_never_deadlock_and_only_the_oldest_exceeds_the_memory_limit(seed: int) -> None:
    generator = random.Random(seed)
    count, threads = 120, 6
    sizes = [[generator.randrange(2 * LIMIT) for _ in range(generator.randrange(4))] for _ in range(count)]
    budget, ledger = MemoryBudget(LIMIT), threading.Lock()
    held: dict[int, int] = {}
    oldest = 0
    too_much: list[dict[int, int]] = []

    def run(task: int) -> None:
        for nbytes in sizes[task]:
            budget.take(task, nbytes)
            with ledger:
                held[task] = held.get(task, 0) + nbytes
                if sum(size for other, size in held.items() if other > oldest) > LIMIT:
                    too_much.append(dict(held))

    with ThreadPoolExecutor(threads) as executor:
        futures = [executor.submit(run, task) for task in range(count)]
        try:
            for task, future in enumerate(futures):
                future.result(WAIT_S)
                with ledger:
                    held.pop(task, None)
                    oldest = task + 1
                budget.give_back(task)
        finally:
            budget.close()
        assert not wait(futures, WAIT_S).not_done
    assert too_much == []


def test_no_thread_begins_another_file_after_an_error(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_photos(root, 300)
    workers, seen, lock, all_begun, closed = 4, [], threading.Lock(), threading.Event(), threading.Event()

    def convert_file(_: Settings, entry: Entry, *__: Any) -> FileResult:
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

    def close_and_signal(budget: MemoryBudget) -> None:
        close(budget)
        closed.set()

    monkeypatch.setattr(MemoryBudget, "close", close_and_signal)
    monkeypatch.setattr(convert_files, "convert_file", convert_file)
    with pytest.raises(MemoryError, match="no more of it"):
        convert(root, place, workers=workers)
    assert not place.exists()
    assert len(seen) <= workers + 1  # the failed thread may begin one more file
