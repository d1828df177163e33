"""Call a function in threads, yield its results in order, and limit the memory of results that wait for the caller."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from PIL import ImageFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    Hold = Callable[[int], object]

Result = TypeVar("Result")

MEMORY_LIMIT = 96 * 2**20
"""All tasks together may hold this many bytes of files and pixels, including results that the caller still uses."""

# A conversion divides its files into tasks for threads, with this number of files in one task. With larger tasks, some
# threads could lack work. With smaller tasks, handing tasks to threads would cost time.
TASK_FILES = 16

# M_MMAP_THRESHOLD of malloc.h; see mallopt(3).
_M_MMAP_THRESHOLD = -3

# Pillow's settings are global. The first running conversion changes them, and the last to end restores them.
_pillow_settings, _pillow_lock = ExitStack(), threading.Lock()
_pillow_users = 0


def max_tasks(workers: int) -> int:
    """Return how many tasks there may be at once: running, waiting for a thread, or waiting to be written."""
    return max(9, 2 * workers + 1)  # fewer than 9 would leave threads idle while results are written


def work_in_order(
    work: Callable[[slice, Hold], list[Result]], count: int, workers: int, task_files: int = TASK_FILES
) -> Iterator[list[Result]]:
    """Divide the positions from 0 to ``count`` - 1 into tasks, call a function for each, and yield results in order.

    Args:
        work: The function. A thread calls ``work`` with a slice of the positions and a function ``hold``. Before
            allocating memory, ``work`` must call ``hold`` with the number of bytes. If the result is no longer needed,
            ``hold`` raises CancelledError.
        count: Number of positions.
        workers: Number of threads.
        task_files: Number of positions in one task.
    """
    budget = MemoryBudget(MEMORY_LIMIT)
    executor = ThreadPoolExecutor(workers, thread_name_prefix="dbloader-convert")
    running: deque[tuple[int, Future[list[Result]]]] = deque()
    try:
        with _strict_pillow():
            for task in range(-(-count // task_files)):
                if len(running) >= max_tasks(workers):
                    yield from _oldest(running, budget)
                part = slice(task * task_files, min((task + 1) * task_files, count))
                running.append((task, executor.submit(work, part, partial(budget.take, task))))
            while running:
                yield from _oldest(running, budget)
    finally:
        budget.close()
        executor.shutdown(cancel_futures=True)


def _oldest(running: deque[tuple[int, Future[list[Result]]]], budget: MemoryBudget) -> Iterator[list[Result]]:
    task, future = running.popleft()
    yield future.result()
    budget.give_back(task)


class MemoryBudget:
    """A limit on the bytes that all running tasks use together.

    Tasks are numbered in the order in which their results are yielded. A task waits until enough bytes are free. Only
    the oldest task never waits, and may exceed the limit: later tasks give back their bytes only after this task ends.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, int] = {}
        self._oldest = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, task: int, nbytes: int) -> None:
        """Wait until ``nbytes`` are free, and count them as used by the task. A negative number gives bytes back."""
        with self._changed:
            if nbytes > 0:
                self._changed.wait_for(
                    lambda: task == self._oldest or self._closed or sum(self._held.values()) + nbytes <= self._limit
                )
                if self._closed:
                    raise CancelledError
            self._held[task] = self._held.get(task, 0) + nbytes
            if nbytes < 0:
                self._changed.notify_all()

    def give_back(self, task: int) -> None:
        """Give back all bytes of the oldest task. The next task becomes the oldest."""
        with self._changed:
            self._held.pop(task, None)
            self._oldest = task + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel all tasks: ``take`` raises CancelledError, even if it is already waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@contextmanager
def reserved(hold: Hold, nbytes: int) -> Iterator[None]:
    """Call ``hold`` with a number of bytes before a ``with`` block, and with the negative number after the block."""
    if nbytes:
        hold(nbytes)
    try:
        yield
    finally:
        if nbytes:
            hold(-nbytes)


def return_large_blocks() -> None:
    """Make glibc return freed blocks of 4 MiB or more to the system, because MemoryBudget counts them as free.

    By default, glibc keeps blocks of up to 32 MiB for each thread. With 12 threads that decoded WebP images and a
    budget of 96 MiB, a process used 1,150 MB by default, and 245 MB with this setting.
    """
    with suppress(AttributeError, OSError):  # other C libraries than glibc lack this function
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 4 * 2**20)


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Make Pillow raise errors for truncated files, and hide its warnings about odd EXIF and palettes."""
    global _pillow_users
    with _pillow_lock:
        if not _pillow_users:
            _pillow_settings.callback(setattr, ImageFile, "LOAD_TRUNCATED_IMAGES", ImageFile.LOAD_TRUNCATED_IMAGES)
            _pillow_settings.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module="PIL")
            ImageFile.LOAD_TRUNCATED_IMAGES = False  # many training scripts set this to True, which hides damage
        _pillow_users += 1
    try:
        yield
    finally:
        with _pillow_lock:
            _pillow_users -= 1
            if not _pillow_users:
                _pillow_settings.close()
