"""Whether files are better prepared one by one than by several threads."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_Result = TypeVar("_Result")

# Seconds of work, most of it with Python's lock, that threads do not do sooner together.
_QUICK = 200e-6
# Times its work, and seconds, that a file may take and not count as waited for: the lock may be another's, too.
_WAITED, _WAITED_S = 2, 20e-6
# Tasks that are handed over before one is timed again, at first, and at the most.
_HANDED_OVER, _MOST_HANDED_OVER = 64, 4096


class Pace:
    """Says who should do the next task: the thread that consumes what becomes of it, or one of several others.

    Opening, reading and closing a file each let go of Python's lock, for which threads then wait in turn. Where files
    are in the system's cache and not decoded, so that little else is to be done, two threads prepared 20,000
    photographs in 1.5 s, one in 1.3 s and the consuming one alone in 0.9 s. But where files are waited for, or decoded,
    threads do so at the same time. So a task is done alone and timed; as long as most of its files were quick, so is
    the next; otherwise some are handed over before one is timed again, each time more.

    Args:
        waits: Whether it is known that files are waited for: then all tasks are handed over.

    Attributes:
        alone: Whether the next task is one to be timed (``timed``), not handed over (``handed_over``).
    """

    def __init__(self, *, waits: bool) -> None:
        self.alone = not waits
        self._waits = waits
        self._to_hand_over, self._more = 0, _HANDED_OVER

    def handed_over(self) -> None:
        """Counts a task that was handed over."""
        self._to_hand_over -= 1
        self.alone = not self._waits and self._to_hand_over <= 0

    def timed(self, results: Iterable[_Result]) -> list[_Result]:
        """Gives the results of a task, each of which is made when it is asked for, and learns how long each took."""
        taken: list[_Result] = []
        durations, works = [], []
        began, worked = time.perf_counter(), time.thread_time()
        for result in results:
            now, work = time.perf_counter(), time.thread_time()
            durations.append(now - began)
            works.append(work - worked)
            began, worked = now, work
            taken.append(result)
        if taken:
            self._judge(median(durations), median(works))
        return taken

    def _judge(self, duration: float, work: float) -> None:
        self.alone = work < _QUICK and duration < _WAITED * work + _WAITED_S
        if self.alone:
            self._more = _HANDED_OVER
        else:
            self._to_hand_over = self._more
            self._more = min(2 * self._more, _MOST_HANDED_OVER)
