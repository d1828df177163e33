"""Running an iterator ahead of its consumer, in a background thread.

Consumer and thread share one ``BackgroundThread``, which holds no reference to the consumer: it can be
garbage-collected while the thread waits, and its finalizer then ends the thread. A finalizer may run at any point of
either thread, also between two lines of ``Condition.wait``, where its wake-up would be lost and the thread never end.
So both directions are a ``SimpleQueue``, whose ``put`` may be called from there, and no finalizer takes a lock.
"""

import atexit
import enum
import functools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from typing_extensions import Self, override

from dbloader.batches.timed import now
from dbloader.errors import LoaderError
from dbloader.loading.clock import Clock

CLOSE_WAIT_S = 10.0  # torch can take 5 s to notice a dead DataLoader worker
EXIT_WAIT_S = 2.0  # C++ code that its thread leaves after the interpreter's end can abort the process

T = TypeVar("T")
P = ParamSpec("P")


class _End(enum.Enum):
    END = "no further item"


class _Failure(NamedTuple):
    error: BaseException


class BackgroundThread(threading.Thread, Generic[T]):
    """The thread that runs a source ahead, and all that it shares with its consumer.

    Attributes:
        stopped: Nobody will take another item. Never unset.
        why: Where the consumer cannot know the reason, and must be told.
        clock: What both sides have spent their time on.
        prepare: Called by the consumer once, right before the thread starts.
    """

    def __init__(self, source: Iterator[T], depth: int, clock: Clock | None = None) -> None:
        super().__init__(name="dbloader-background", daemon=True)
        self.stopped = False
        self.why: str | None = None
        self.clock = clock or Clock()
        self.prepare: Callable[[], None] | None = None
        self._pid, self._begin_lock = os.getpid(), threading.Lock()
        self._source = [source]  # whoever pops it closes it: the thread or, before there is one, stop()
        self._items: SimpleQueue[T | _Failure | _End] = SimpleQueue()
        self._bounded = depth > 0
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each item that may be produced
        for _ in range(depth):
            self._room.put(None)

    def begin(self) -> None:
        """Start the thread unless it was started."""
        if self.ident is not None or self.stopped:
            return
        with self._begin_lock:  # consumers may share the iterator
            if self.ident is None:
                prepare, self.prepare = self.prepare, None
                if prepare is not None:
                    prepare()
                # Last in, first out: before the exit function of multiprocessing, which ends the workers.
                atexit.unregister(_end_all)
                atexit.register(_end_all)
                self.start()

    @override
    def run(self) -> None:
        try:
            source = self._source.pop()
        except IndexError:  # stopped before it began
            return
        outcome: _Failure | _End = _End.END
        try:
            while self._wait_for_room():
                self._items.put(next(source))  # kept in no variable, which would outlive the consumer's
        except StopIteration:
            pass
        except BaseException as error:
            outcome = _Failure(error)
        try:
            _close(source)
        except BaseException as error:
            if self.stopped:
                raise  # no consumer is left to receive it: threading.excepthook reports it
            if isinstance(outcome, _Failure):
                error.__context__ = outcome.error
            outcome = _Failure(error)
        del source  # first, so that a consumer that has seen the end finds none of its workers and files left
        self._items.put(outcome)
        del outcome  # an error's traceback holds this frame: a cycle otherwise
        if self.stopped:
            self._discard()

    def _wait_for_room(self) -> bool:
        if self._bounded:
            began = now()
            self._room.get()
            self.clock.blocked += now() - began
        return not self.stopped

    def take(self) -> T:
        """Wait for the next item, in the consumer's thread; StopIteration where there is none."""
        if self._pid != os.getpid():
            raise LoaderError(f"iterator of process {self._pid}, inherited through a fork: call iter() here")
        self.begin()
        asked = self.clock.asked()
        item = _End.END if self.stopped else self._items.get()
        self.clock.answered(asked)
        if item is not _End.END and not isinstance(item, _Failure):
            if self._bounded:
                self._room.put(None)
            self.clock.received()
            return item
        if self.why is not None:
            raise LoaderError(self.why)
        if not self.stopped:
            self.wait()  # for a thread that has said its last word; a stopped one may still be in its source
        try:
            raise StopIteration if item is _End.END else item.error
        finally:
            del item  # likewise a cycle

    def stop(self, why: str | None = None) -> None:
        """Tell the thread to end; wait for nothing. Harmless in a finalizer, twice, and in a forked child."""
        if self._pid != os.getpid():
            return
        if not self.stopped:
            self.why = why
            self.stopped = True
        self._discard()
        self._room.put(None)
        try:
            source = self._source.pop()
        except IndexError:  # the thread has it
            return
        _close(source)

    def _discard(self) -> None:
        """Free the items that nobody will take, and leave the end for whoever still waits."""
        try:
            while True:
                self._items.get_nowait()
        except Empty:
            self._items.put(_End.END)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the thread has ended, after at most this long. It does not wait for itself."""
        if not self.is_alive() or self is threading.current_thread():
            return True
        self.join(timeout_s)
        return not self.is_alive()

    def close(self, why: str | None = None) -> None:
        """Stop the thread and wait for its end, or warn after ``CLOSE_WAIT_S``."""
        self.stop(why)
        if not self.wait(CLOSE_WAIT_S):
            warnings.warn(f"the source blocks for {CLOSE_WAIT_S:g} s; its thread ends after that", RuntimeWarning, 3)


def _close(source: Iterator[object]) -> None:
    if hasattr(source, "close"):
        source.close()


def _end_all() -> None:
    """End all threads while the interpreter is still whole."""
    deadline = time.monotonic() + EXIT_WAIT_S
    runs = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]
    for run in runs:
        run.stop()
    for run in runs:
        run.wait(max(0.0, deadline - time.monotonic()))


class BackgroundIterator(Iterator[T]):
    """The items of a source, in order, produced ahead in a background thread.

    The thread starts with the first ``next()``. It alone uses the source, and closes it at its end, if it has a
    ``close``. What the source raises, of whatever kind, comes out of ``next()`` at its place with its traceback.
    Anything but an item that comes out of ``next()``, Ctrl-C included, ends the iteration, as in a generator.

    The thread ends with the source, with ``close()``, and with the last reference to this object: so after ``break``,
    which waits for nothing. It first finishes the item in production, as a thread cannot be interrupted; the
    interpreter's exit waits 2 s for that. Nobody is left for errors then: that item's are dropped, those of the
    source's clean-up go to ``threading.excepthook``.

    Args:
        source: Used by the thread alone from now on.
        depth: Most items ahead of the consumer, the one in production included; 0 or less is no limit.
        clock: Counts the times of both sides; None for one of its own.

    Raises:
        LoaderError: From ``next()`` in a process that was forked from the iterator's.
    """

    def __init__(self, source: Iterable[T], depth: int = 1, clock: Clock | None = None) -> None:
        self.run = BackgroundThread(iter(source), depth, clock)
        weakref.finalize(self, self.run.stop).atexit = False  # _end_all does that, and waits

    @override
    def __next__(self) -> T:
        try:
            return self._receive(self.run.take())
        except BaseException:
            self.run.stop()
            raise

    def _receive(self, item: T) -> T:
        """The last step of each item, in the consumer's thread."""
        return item

    def close(self) -> None:
        """End the thread, and wait up to ``CLOSE_WAIT_S`` for the item in production (then RuntimeWarning)."""
        self.run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BackgroundGenerator(BackgroundIterator[T]):
    """The prefetch_generator package's class, by name and arguments; its thread starts at once."""

    def __init__(self, generator: Iterable[T], max_prefetch: int = 1) -> None:
        super().__init__(generator, max_prefetch)
        self.run.begin()

    def next(self) -> T:
        """The next item, as the built-in ``next()`` gives it."""
        return next(self)


def background(
    max_prefetch: int = 1,
) -> Callable[[Callable[P, Iterable[T]]], Callable[P, BackgroundGenerator[T]]]:
    """Make a generator function return BackgroundGenerators: ``@background(max_prefetch=3)``."""

    def decorate(function: Callable[P, Iterable[T]]) -> Callable[P, BackgroundGenerator[T]]:
        @functools.wraps(function)
        def start(*args: P.args, **kwargs: P.kwargs) -> BackgroundGenerator[T]:
            return BackgroundGenerator(function(*args, **kwargs), max_prefetch)

        return start

    return decorate
