"""Run an iterator ahead of its consumer, in a background thread.

The consumer has a ``BackgroundIterator``, which refers to a ``BackgroundThread``. The thread does not refer to the
iterator. So the iterator can be garbage-collected while the thread waits, and the iterator's finalizer ends the thread.
A finalizer can run at any point of either thread. If a finalizer ran inside ``Condition.wait``, the waiting thread
could miss the wake-up and never end. So finalizers take no lock. Both threads wake each other only through a
``SimpleQueue``, whose ``put`` may be called at any point (it is reentrant).
"""

import atexit
import enum
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from traceback import format_exception_only
from typing import Generic, NamedTuple, TypeVar

from typing_extensions import override

from dbloader._describe import cut
from dbloader.batches.timed import now
from dbloader.errors import LoaderError
from dbloader.loading.stats import Clock

CLOSE_WAIT_S = 10.0  # torch can take 5 s to notice a dead DataLoader worker
EXIT_WAIT_S = 2.0  # a thread that is still in C++ code when the interpreter ends can abort the process

T = TypeVar("T")


class _End(enum.Enum):
    END = "no further item"


class _Failure(NamedTuple):
    error: BaseException


class BackgroundThread(threading.Thread, Generic[T]):
    """The thread that iterates the source, and everything that the thread shares with the consumer."""

    def __init__(
        self, source: Iterator[T], depth: int, clock: Clock | None = None, on_start: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name="dbloader-background", daemon=True)
        self.stopped = False
        self.clock = clock or Clock()
        self._reason: str | None = None
        self._on_start = on_start
        self._pid, self._start_lock = os.getpid(), threading.Lock()
        self._source = [source]  # run() pops and closes the source; if the thread has not started, stop() does
        self._items: SimpleQueue[T | _Failure | _End] = SimpleQueue()
        self._bounded = depth > 0
        self._room: SimpleQueue[None] = SimpleQueue()  # one entry for each item that may be produced
        for _ in range(depth):
            self._room.put(None)

    def ensure_started(self) -> None:
        """Start the thread, unless it was started or stopped before."""
        if self.ident is not None or self.stopped:
            return
        with self._start_lock:  # several threads may use the iterator
            if self.ident is None:
                on_start, self._on_start = self._on_start, None
                if on_start is not None:
                    on_start()
                # Register it last: the last function runs first at exit, before multiprocessing ends the workers.
                atexit.unregister(end_all_threads)
                atexit.register(end_all_threads)
                self.start()

    @override
    def run(self) -> None:
        try:
            source = self._source.pop()
        except IndexError:  # stop() was called first
            return
        last: _Failure | _End = _End.END
        try:
            while self._wait_for_room():
                self._items.put(next(source))  # not kept in a variable, which would keep the item alive
        except StopIteration:
            pass
        except BaseException as error:
            last = _Failure(error)
        try:
            _close(source)
        except BaseException as error:
            if self.stopped:
                raise  # no consumer is left to receive the error, so threading.excepthook reports it
            if isinstance(last, _Failure):
                error.__context__ = last.error
            last = _Failure(error)
        del source  # free the source's workers and open files before the consumer sees the end
        self._items.put(last)
        del last  # otherwise the error's traceback and this frame would be a reference cycle
        if self.stopped:
            self._drop_items()

    def _wait_for_room(self) -> bool:
        if self._bounded:
            began = now()
            self._room.get()
            self.clock.stats.blocked_s += now() - began
        return not self.stopped

    def take(self) -> T:
        """Wait for the next item, in the consumer's thread. Raise StopIteration at the end.

        Call ``make_room`` when the item has been received. Before that, the thread does not begin another item.
        """
        if self._pid != os.getpid():
            raise LoaderError(f"this iterator belongs to process {self._pid}: call iter() after the fork")
        self.ensure_started()
        asked = self.clock.start_waiting()
        item = _End.END if self.stopped else self._items.get()
        self.clock.stop_waiting(asked)
        if item is not _End.END and not isinstance(item, _Failure):
            self.clock.receive()
            return item
        if self._reason is not None:
            raise LoaderError(self._reason)
        if not self.stopped:
            self.wait()  # the thread ends right after its last item; a stopped thread may stay busy in its source
        try:
            raise StopIteration if item is _End.END else item.error
        finally:
            del item  # otherwise the error's traceback and this frame would be a reference cycle

    def make_room(self) -> None:
        """Let the thread produce one more item, in place of an item that the consumer has received."""
        if self._bounded:
            self._room.put(None)

    def stop(self, reason: str | None = None) -> None:
        """Ask the thread to end, without waiting. Finalizers and forked processes may call this, even several times.

        Afterwards ``take`` raises a LoaderError with the reason, or StopIteration if there is no reason.
        """
        if self._pid != os.getpid():
            return
        if not self.stopped:
            self._reason = reason
            self.stopped = True
        self._drop_items()
        self._room.put(None)
        try:
            source = self._source.pop()
        except IndexError:  # run() or an earlier stop() has popped the source
            return
        _close(source)

    def stop_after(self, error: BaseException) -> None:
        """Stop the thread after an error or StopIteration in ``next()``. Later calls of ``take`` name the error."""
        line = format_exception_only(error)[0].splitlines()[0]  # unlike str(error), this never raises an error
        what = cut(line.removeprefix(f"{type(error).__module__}."), 200)
        ended = isinstance(error, StopIteration)
        self.stop(None if ended else f"an error ended this iterator ({what}): call iter() again")

    def _drop_items(self) -> None:
        """Free the remaining items, and wake a consumer that waits for an item."""
        try:
            while True:
                self._items.get_nowait()
        except Empty:
            self._items.put(_End.END)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread ends, and return whether it has ended. In the thread itself, return True at once."""
        if not self.is_alive() or self is threading.current_thread():
            return True
        self.join(timeout_s)
        return not self.is_alive()

    def close(self, reason: str | None = None) -> None:
        """Stop the thread and wait for its end. Warn if that takes longer than ``CLOSE_WAIT_S``."""
        self.stop(reason)
        if not self.wait(CLOSE_WAIT_S):
            warnings.warn(
                f"the source has not returned an item for {CLOSE_WAIT_S:g} s; the background thread ends when it does",
                RuntimeWarning,
                3,
            )


def _close(source: Iterator[object]) -> None:
    if hasattr(source, "close"):
        source.close()


def end_all_threads() -> None:
    """Stop all background threads when the interpreter exits, and wait at most ``EXIT_WAIT_S`` for their end."""
    deadline = time.monotonic() + EXIT_WAIT_S
    threads = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.wait(max(0.0, deadline - time.monotonic()))


class BackgroundIterator(Iterator[T]):
    """Iterates over a source in a background thread, ahead of the consumer. Items stay in order.

    The thread starts with the first ``next()``. Only the thread uses the source. At the end, the thread calls the
    source's ``close``, if there is one. If the source raises an error, ``next()`` first returns the items before the
    error, and then raises the error with its traceback. Any exception from ``next()``, even Ctrl-C, ends the iteration:
    later calls raise a LoaderError, because a StopIteration would look like the end of the epoch.

    The thread ends after the last item, after ``close()``, or when nothing refers to this object, for example after
    ``break``. The thread first finishes its current item, because nothing can interrupt the source. Only ``close()``
    (for at most 10 s) and the exit of the interpreter (2 s) wait for this item. An error of this item is lost. If
    closing the source raises an error, ``threading.excepthook`` gets it.

    Args:
        source: The items.
        depth: Largest number of items ahead of the consumer, including the item in production. 0 means no limit.
        clock: Measures how long the consumer and the thread wait.
        on_start: Called once, in the consumer's thread, before the thread starts.

    Raises:
        LoaderError: From ``next()`` after an error, or in a forked child of the process that made the iterator.
    """

    def __init__(
        self,
        source: Iterable[T],
        depth: int = 1,
        clock: Clock | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.thread = BackgroundThread(iter(source), depth, clock, on_start)
        weakref.finalize(self, self.thread.stop).atexit = False  # at exit, end_all_threads stops the thread

    @override
    def __next__(self) -> T:
        try:
            item = self.thread.take()
            self.thread.make_room()
        except BaseException as error:
            self.thread.stop_after(error)
            raise
        return item

    def close(self) -> None:
        """End the thread. Wait for the item in production, and warn if that takes longer than ``CLOSE_WAIT_S``."""
        self.thread.close()
