"""Threads have bounded memory, raise errors, and end."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from dbloader.conversion.convert import convert
from dbloader.conversion.file_to_record import FileConverter, FileResult
from dbloader.conversion.parallel import MemoryBudget, reserved
from tests.support.images import plant_photos

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dbloader.sources.base import Entry

WAIT_S = 30.0
LIMIT = 100


class Watched(threading.Condition):
    """A condition that sets an event when a thread waits."""

    waits = threading.Event()

    @override
    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    monkeypatch.setattr(threading, "Condition", Watched)
    return MemoryBudget(LIMIT)


def check_waits(budget: MemoryBudget, task: int, nbytes: int, make_room: Callable[[], object]) -> None:
    """Check that a task gets bytes only after room was made for them."""
    Watched.waits.clear()
    thread = threading.Thread(target=budget.take, args=[task, nbytes])
    thread.start()
    while thread.is_alive() and not Watched.waits.is_set():
        thread.join(0.001)
    assert thread.is_alive()
    make_room()  # takes the lock, which the thread has released by waiting
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_task_waits_until_the_oldest_has_given_back_its_bytes(budget: MemoryBudget) -> None:
    budget.take(0, 50)
    budget.take(0, 50)
    check_waits(budget, 2, 1, lambda: budget.give_back(0))
    budget.take(3, LIMIT - 1)


def test_waiting_task_continues_when_it_becomes_the_oldest(budget: MemoryBudget) -> None:
    budget.take(0, 1)
    check_waits(budget, 1, 10 * LIMIT, lambda: budget.give_back(0))


def test_task_can_give_back_a_part_early(budget: MemoryBudget) -> None:
    budget.take(0, 60)
    budget.take(1, 40)
    check_waits(budget, 2, 30, lambda: budget.take(1, -30))
    budget.take(0, 10 * LIMIT)
    budget.take(1, -10)  # does not wait, although there is no room


def test_bytes_are_reserved_for_a_block_even_if_it_raises() -> None:
    held: list[int] = []
    with pytest.raises(ValueError, match="no"), reserved(held.append, 7):
        raise ValueError("no")
    assert held == [7, -7]


def test_closing_lets_all_tasks_continue(budget: MemoryBudget) -> None:
    budget.take(0, LIMIT)
    check_waits(budget, 1, LIMIT, budget.close)
    assert budget.closed
    budget.take(2, LIMIT)


@pytest.mark.parametrize("seed", range(2))
def test_tasks_never_deadlock_and_only_the_oldest_exceeds_the_limit(seed: int) -> None:
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
