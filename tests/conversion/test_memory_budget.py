"""The bound on the bytes that a conversion holds ahead of its writer."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from dbloader.conversion.memory_budget import MemoryBudget

WAIT_S = 30.0
LIMIT = 100


def taking(budget: MemoryBudget, task: int, nbytes: int) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes from the budget, and the event that it has."""
    taken = threading.Event()

    def take() -> None:
        budget.take(task, nbytes)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, taken


def is_waiting(budget: MemoryBudget) -> bool:
    """Whether a thread waits for room; it is the only one that could be."""
    with budget._changed:
        return bool(budget._changed._waiters)  # type: ignore[attr-defined]


def wait_for_waiter(budget: MemoryBudget, thread: threading.Thread) -> None:
    while thread.is_alive() and not is_waiting(budget):
        thread.join(0.001)
    assert thread.is_alive()


def test_what_fits_is_taken_at_once() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(3, LIMIT - 1)
    budget.take(7, 1)


def test_a_task_waits_for_room_until_the_oldest_has_given_back() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(0, LIMIT)
    thread, taken = taking(budget, 2, 1)
    wait_for_waiter(budget, thread)
    assert not taken.is_set()
    budget.give_back(0)
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)


def test_the_oldest_task_never_waits() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(1, LIMIT)
    budget.take(0, 10 * LIMIT)
    budget.take(0, 10 * LIMIT)


def test_a_task_that_waits_goes_on_when_it_becomes_the_oldest() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(0, 1)
    thread, taken = taking(budget, 1, 10 * LIMIT)
    wait_for_waiter(budget, thread)
    budget.give_back(0)
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)


def test_what_a_task_takes_adds_up_and_is_given_back_together() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(0, 50)
    budget.take(0, 50)
    thread, taken = taking(budget, 1, 1)
    wait_for_waiter(budget, thread)
    budget.give_back(0)
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)
    budget.take(2, LIMIT - 1)


def test_a_task_can_give_back_a_part_early() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(0, 60)
    budget.take(1, 40)
    thread, taken = taking(budget, 2, 30)
    wait_for_waiter(budget, thread)
    budget.take(1, -30)
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)
    budget.take(0, 10 * LIMIT)
    budget.take(1, -10)  # does not wait, although there is no room


def test_a_task_that_took_nothing_gives_nothing_back() -> None:
    budget = MemoryBudget(LIMIT)
    budget.give_back(0)
    budget.take(1, 2 * LIMIT)  # it is the oldest now


def test_closing_lets_every_task_go_on() -> None:
    budget = MemoryBudget(LIMIT)
    budget.take(0, LIMIT)
    waiting = [taking(budget, task, LIMIT) for task in (1, 2, 3)]
    budget.close()
    assert budget.closed
    for thread, taken in waiting:
        assert taken.wait(WAIT_S)
        thread.join(WAIT_S)


@pytest.mark.parametrize("seed", range(8))
def test_tasks_in_any_order_never_lock_and_only_the_oldest_exceeds_the_limit(seed: int) -> None:
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
