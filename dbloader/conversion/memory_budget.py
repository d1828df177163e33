"""A bound on the bytes that tasks running ahead hold together."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class MemoryBudget:
    """Bytes that numbered tasks may hold, whose results are consumed in the order of their numbers.

    A task waits until there is room for what it wants; only the oldest one never waits, since all others would wait
    for it. So the bound is exceeded by one task's bytes at most, and nothing can lock.

    Args:
        limit: Bytes.

    Attributes:
        closed: Whether no task is wanted any more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, int] = {}
        self._oldest = 0
        self.closed = False
        self._changed = threading.Condition()

    def take(self, task: int, nbytes: int) -> None:
        """Wait for room and takes it, in addition to what the task holds; a negative number gives back so much."""
        with self._changed:
            if nbytes > 0:
                self._changed.wait_for(
                    lambda: task == self._oldest or self.closed or sum(self._held.values()) + nbytes <= self._limit,
                )
            self._held[task] = self._held.get(task, 0) + nbytes
            if nbytes < 0:
                self._changed.notify_all()

    def give_back(self, task: int) -> None:
        """Take back all that the oldest task holds; the next becomes the oldest."""
        with self._changed:
            self._held.pop(task, None)
            self._oldest = task + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let every task go on, so that it can end."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


@contextmanager
def held(hold: Callable[[int], object], nbytes: int) -> Iterator[None]:
    """Hold bytes for the time of a block: says so before, and return them back after it, whatever happens in it."""
    if nbytes:
        hold(nbytes)
    try:
        yield
    finally:
        if nbytes:
            hold(-nbytes)
