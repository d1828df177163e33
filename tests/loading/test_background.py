"""The background thread delivers all items in order, and leaves nothing behind."""

import functools
import gc
import itertools
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dbloader.errors import LoaderError
from dbloader.loading.background import BackgroundIterator, BackgroundThread
from dbloader.loading.compat import BackgroundGenerator
from tests.support.children import in_child, run_program

WAIT_S = 20.0  # only a failing test waits this long


class StrangeError(BaseException):
    pass


class Source(Iterator[int]):
    """An iterator that counts its items and, on request, blocks or fails in close()."""

    def __init__(self, length: int, close_error: BaseException | None = None) -> None:
        self.length = length
        self.close_error = close_error
        self.produced = 0
        self.closed_in: list[threading.Thread] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.asked = threading.Event()

    def __next__(self) -> int:
        self.asked.set()
        self.may_go_on.wait(WAIT_S)
        if self.produced == self.length:
            raise StopIteration
        self.produced += 1
        return self.produced - 1

    def close(self) -> None:
        self.closed_in.append(threading.current_thread())
        if self.close_error is not None:
            raise self.close_error


def blocked_source() -> Source:
    source = Source(5)
    source.may_go_on.clear()
    return source


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]


@pytest.mark.parametrize("depth", [1, 7, 1000, 0, -1])
def test_items_arrive_in_order_at_any_depth(depth: int) -> None:
    assert list(BackgroundIterator(range(100), depth)) == list(range(100))


def test_thread_ends_before_the_consumer_sees_the_end() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # otherwise the thread often ends before the consumer's thread runs
    try:
        for _ in range(300):
            assert list(BackgroundIterator([1])) == [1]
            assert not threads()
    finally:
        sys.setswitchinterval(interval)


def test_items_that_look_like_ends_or_errors_are_delivered() -> None:
    items = [None, StopIteration, StopIteration(), ValueError("item"), ..., False, ()]
    assert list(BackgroundIterator(items)) == items


@pytest.mark.parametrize(
    ("kind", "position"),
    [(ValueError, 0), (KeyError, 3), (KeyboardInterrupt, 3), (SystemExit, 3), (GeneratorExit, 3), (StrangeError, 5)],
)
def test_error_is_raised_after_earlier_items_with_its_traceback(kind: type[BaseException], position: int) -> None:
    error = kind("of the source")

    def produce() -> Iterator[int]:
        yield from range(position)
        raise error

    iterator = BackgroundIterator(produce(), depth=2)
    assert list(itertools.islice(iterator, position)) == list(range(position))
    with pytest.raises(kind, match="of the source") as caught:
        next(iterator)
    assert caught.value is error
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "produce"
    for _ in range(2):  # a StopIteration would look like the end
        with pytest.raises(LoaderError, match=rf"^an error ended this iterator \({kind.__name__}: .*\): call iter\(\)"):
            next(iterator)
    assert not threads()


class WithoutTextError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_error_without_a_text_ends_the_iteration() -> None:
    def fail(number: int) -> int:
        raise WithoutTextError

    iterator = BackgroundIterator(map(fail, range(2)))
    with pytest.raises(WithoutTextError):  # match= would ask for the text
        next(iterator)
    with pytest.raises(
        LoaderError, match=r"^an error ended this iterator \(WithoutTextError: .*\): call iter\(\) again$"
    ):
        next(iterator)


@pytest.mark.parametrize("depth", [1, 3])
def test_source_runs_ahead_by_at_most_the_depth(depth: int) -> None:
    change = threading.Condition()
    produced = taken = furthest = 0

    def produce() -> Iterator[int]:
        nonlocal produced, furthest
        for number in range(50):
            with change:
                produced += 1
                furthest = max(furthest, produced - taken)
                change.notify_all()
            yield number

    def reached(target: int) -> bool:
        return produced >= target

    for _ in BackgroundIterator(produce(), depth):
        with change:
            taken += 1
            target = min(taken + depth, 50)
            assert change.wait_for(functools.partial(reached, target), WAIT_S)
    assert furthest <= depth + 1  # one more than `depth`, because `taken` is counted after an item is taken


def test_keeping_an_error_does_not_keep_its_source_alive() -> None:
    def produce() -> Iterator[int]:
        yield 1
        raise ValueError("of the source")

    source = produce()
    freed = weakref.ref(source)
    iterator = BackgroundIterator(source)
    del source
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="of the source") as kept:
        next(iterator)
    assert freed() is None
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("taken", [1, 5, 6], ids=["early", "after the last", "at the end"])
def test_source_is_closed_once_in_its_thread(taken: int) -> None:
    source = Source(5)
    iterator = BackgroundIterator(source, depth=3)
    assert len(list(itertools.islice(iterator, taken))) == min(taken, 5)
    iterator.close()
    iterator.close()
    assert source.closed_in == [iterator.thread]


def test_abandoned_iterator_in_a_cycle_ends_its_thread() -> None:
    holder: list[Any] = [BackgroundIterator(itertools.count())]
    holder.append(holder)
    next(holder[0])
    thread = holder[0].thread
    del holder
    gc.collect()
    assert thread.wait(WAIT_S)


def test_close_waits_for_the_item_being_made_and_drops_its_error() -> None:
    asked, closing = threading.Event(), threading.Event()

    def produce() -> Iterator[int]:
        yield 1
        asked.set()
        closing.wait(WAIT_S)
        raise ValueError("of an item that nobody wants")

    iterator = BackgroundIterator(produce())
    assert next(iterator) == 1
    assert asked.wait(WAIT_S)
    iterator.thread.stop()
    closing.set()
    iterator.close()
    assert not threads()
    assert list(iterator) == []


def test_close_warns_about_a_blocked_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.loading.background.CLOSE_WAIT_S", 0.01)
    source = blocked_source()
    generator = BackgroundGenerator(source)
    assert source.asked.wait(WAIT_S)
    with pytest.warns(RuntimeWarning, match=r"the source has not returned an item for 0.01 s") as caught:
        generator.close()
    assert caught[0].filename == __file__
    assert list(generator) == []
    source.may_go_on.set()
    assert generator.thread.wait(WAIT_S)
    assert source.closed_in == [generator.thread]


def test_close_wakes_a_consumer_that_waits_in_another_thread() -> None:
    source = blocked_source()
    iterator = BackgroundIterator(source)
    received: list[int] = []
    consumer = threading.Thread(target=lambda: received.extend(iterator))
    consumer.start()
    assert source.asked.wait(WAIT_S)
    iterator.thread.stop()
    consumer.join(WAIT_S)
    assert not consumer.is_alive()
    assert received == []
    source.may_go_on.set()
    assert iterator.thread.wait(WAIT_S)


def test_cleanup_error_after_break_goes_to_the_excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda report: reports.append(report.exc_value))
    error = ValueError("in the clean-up")
    iterator = BackgroundIterator(Source(5, close_error=error))
    next(iterator)
    iterator.close()
    assert reports == [error]


def test_cleanup_error_at_the_end_is_raised_after_the_last_item() -> None:
    iterator = BackgroundIterator(Source(2, close_error=ValueError("in the clean-up")))
    assert list(itertools.islice(iterator, 2)) == [0, 1]
    with pytest.raises(ValueError, match="in the clean-up"):
        next(iterator)


@pytest.mark.slow
def test_interpreter_exits_with_a_blocked_iterator_and_closes_other_sources() -> None:
    code = """
import itertools, threading
import dbloader.loading.background
from dbloader.loading.compat import BackgroundGenerator
dbloader.loading.background.EXIT_WAIT_S = 1
blocking = threading.Event()
def block():
    blocking.set()
    threading.Event().wait()
    yield 1
def produce():
    try:
        for number in itertools.count():
            print("busy", end="")
            yield number
    finally:
        print(" closed ", end="")
blocked = BackgroundGenerator(block())
iterators = [BackgroundGenerator(BackgroundGenerator(produce())) for _ in range(20)]
print(*[next(iterator) for iterator in iterators])
blocking.wait()
"""
    stdout, stderr = run_program(sys.executable, "-W", "error", "-c", code)
    assert (stdout.count(" closed "), stderr) == (20, "")


def test_inherited_iterator_raises_in_a_forked_process() -> None:
    source = Source(50)
    holder = [BackgroundIterator(source, depth=2)]
    assert next(holder[0]) == 0

    def use() -> None:
        with pytest.raises(LoaderError, match=f"iterator belongs to process {os.getppid()}: call iter"):
            next(holder[0])
        holder[0].close()
        holder.clear()
        gc.collect()
        assert list(BackgroundIterator(range(5))) == [0, 1, 2, 3, 4]
        assert source.closed_in == []

    assert in_child(use) == 0
    assert list(holder[0]) == list(range(1, 50))
