"""Whether files are better prepared one by one than by several threads."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Result = TypeVar("_Result")

# Seconds of work on a file, with Python's lock for the most part; less is not done sooner by two threads on two cores.
_QUICK = 200e-6
# Times its work, and seconds on top of it, that a file may take and not count as waited for. (Python's lock may be
# another thread's, and the processor: of 930 tasks the median file took 1.0 times its work, in 99 of 100 at most 1.5.)
_WAITED, _WAITED_S = 1.3, 20e-6
# Files of a task after which it may be known already that it takes long.
_FEW = 3
# Tasks for each thread that are handed over before one is timed again: at first, and at the most.
_HANDED_OVER, _MOST_HANDED_OVER = 4, 256


class Pace:
    """Says who should do the next task: the thread that consumes what becomes of it, or one of several others.

    Opening, reading and closing a file each let go of Python's lock, for which threads then wait in turn. Where files
    are in the system's cache and not decoded, so that little else is to be done, two threads prepared 20,000
    photographs in 1.5 s, one in 1.3 s and the consuming one alone in 0.9 s. But where files are waited for, or decoded,
    threads do so at the same time. So a task is done alone and timed, and so is the next if its files were quick, by
    the median; otherwise what is left of it and some more are handed over before one is timed again, each time more.

    Args:
        workers: The other threads.
        waits: Whether it is known that files are waited for: then all tasks are handed over.

    Attributes:
        alone: Whether the next task is one to be timed (``timed``), not handed over (``handed_over``).
    """

    def __init__(self, workers: int, *, waits: bool) -> None:
        self.alone = not waits
        self._workers = workers
        self._waits = waits
        self._to_hand_over, self._more = 0, _HANDED_OVER

    def handed_over(self) -> None:
        """Count a task that was handed over."""
        self._to_hand_over -= 1
        self.alone = not self._waits and self._to_hand_over <= 0

    def timed(self, results: Iterator[_Result]) -> list[_Result]:
        """Return a task's results, each of which is made when it is asked for, and learns how long they took.

        Where the first few took long, these are all that it asks for.
        """
        taken: list[_Result] = []
        durations, works = [], []
        began, worked = time.perf_counter(), time.thread_time()
        for result in results:
            now, work = time.perf_counter(), time.thread_time()
            durations.append(now - began)
            works.append(work - worked)
            began, worked = now, work
            taken.append(result)
            if len(taken) == _FEW and not _are_quick(durations, works):
                break
        if taken:
            self._learn(quick=_are_quick(durations, works))
        return taken

    def _learn(self, *, quick: bool) -> None:
        self.alone = quick
        if quick:
            self._more = _HANDED_OVER
        else:
            self._to_hand_over = self._more * self._workers
            self._more = min(2 * self._more, _MOST_HANDED_OVER)


def _are_quick(durations: list[float], works: list[float]) -> bool:
    """Return whether files that took so many seconds, of them so many of work, are better done alone."""
    duration, work = median(durations), median(works)
    return work < _QUICK and duration < _WAITED * work + _WAITED_S
