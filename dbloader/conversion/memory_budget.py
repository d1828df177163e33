"""A bound on the bytes that tasks running ahead hold together."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# From malloc.h; see mallopt(3).
_M_MMAP_THRESHOLD = -3


class MemoryBudget:
    """Bytes that numbered tasks may hold, whose results are consumed in the order of their numbers.

    A task waits until there is room for what it asks for. The oldest task never waits, since all others wait for it:
    so the limit is exceeded by one task's bytes at most, and there is no deadlock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, int] = {}
        self._oldest = 0
        self.closed = False
        self._changed = threading.Condition()

    def take(self, task: int, nbytes: int) -> None:
        """Wait for room and take it, in addition to what the task holds; a negative number gives back as much."""
        with self._changed:
            if nbytes > 0:
                self._changed.wait_for(
                    lambda: task == self._oldest or self.closed or sum(self._held.values()) + nbytes <= self._limit
                )
            self._held[task] = self._held.get(task, 0) + nbytes
            if nbytes < 0:
                self._changed.notify_all()

    def give_back(self, task: int) -> None:
        """Give back all that the oldest task holds; the next one becomes the oldest."""
        with self._changed:
            self._held.pop(task, None)
            self._oldest = task + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let every task continue, so that it can end."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


@contextmanager
def reserved(hold: Callable[[int], object], nbytes: int) -> Iterator[None]:
    """Call ``hold`` with a number of bytes before a block, and with its negative after the block."""
    if nbytes:
        hold(nbytes)
    try:
        yield
    finally:
        if nbytes:
            hold(-nbytes)


def return_large_blocks() -> None:
    """Make glibc return freed blocks of 4 MiB and more to the system, so that the budget bounds the process.

    By default it keeps blocks of up to 32 MiB for each thread. 12 threads that decoded WebP images within a budget of
    96 MiB peaked at 1,150 MB then, and at 245 MB with this.
    """
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 4 * 2**20)
