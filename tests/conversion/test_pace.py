"""Who prepares a conversion's files: the thread that writes what becomes of them, or several others."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from typing_extensions import override

import dbloader.conversion.pace as pace_module
import dbloader.conversion.parallel as tasks_module
from dbloader.conversion.file_list import FileList
from dbloader.conversion.pace import Pace, _are_quick
from dbloader.conversion.parallel import prepare_in_order
from dbloader.conversion.prepare import Prepared
from dbloader.sources.base import Entry, Source
from dbloader.sources.folder import scan
from tests.support.images import plant_photos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


SLOW_S = 0.002
FILES = 16  # of a task
WORKERS = 4


class Clock:
    """In place of the module ``time``, which a busy machine would make unsure."""

    def __init__(self) -> None:
        self.passed = self.worked = 0.0

    def perf_counter(self) -> float:
        return self.passed

    def thread_time(self) -> float:
        return self.worked


clock = Clock()


@pytest.fixture(autouse=True)
def _sure_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "time", clock)


def wait() -> None:
    clock.passed += SLOW_S
    time.sleep(SLOW_S)


def work() -> None:
    clock.passed += SLOW_S
    clock.worked += SLOW_S


def quick() -> None:
    clock.passed += SLOW_S / 1000
    clock.worked += SLOW_S / 1000


def task(*kinds: Callable[[], None]) -> Iterator[int]:
    for number, kind in enumerate(kinds):
        kind()
        yield number


def handed_over(pace: Pace) -> int:
    """Hand tasks over until one is to be timed, and return their number."""
    count = 0
    while not pace.alone:
        pace.handed_over()
        count += 1
    return count


def test_tasks_of_quick_files_are_done_alone() -> None:
    pace = Pace(WORKERS, waits=False)
    for _ in range(100):
        assert pace.alone
        assert pace.timed(task(*[quick] * FILES)) == [*range(FILES)]


@pytest.mark.parametrize("slow", [wait, work])
def test_tasks_of_slow_files_are_handed_over_and_one_is_timed_ever_more_rarely(slow: Callable[[], None]) -> None:
    pace, counts = Pace(WORKERS, waits=False), []
    for _ in range(8):
        pace.timed(task(slow, slow))
        assert not pace.alone
        counts.append(handed_over(pace))
    assert counts == [WORKERS * tasks for tasks in (4, 8, 16, 32, 64, 128, 256, 256)]


def test_of_a_task_of_slow_files_only_a_few_are_done_alone() -> None:
    pace, results = Pace(WORKERS, waits=False), task(*[wait] * FILES)
    assert pace.timed(results) == [0, 1, 2]
    assert [*results] == [*range(3, FILES)]


def test_quick_files_after_slow_ones_are_done_alone_again() -> None:
    pace = Pace(WORKERS, waits=False)
    for _ in range(2):
        pace.timed(task(wait, wait))
        assert handed_over(pace) == 4 * WORKERS
        pace.timed(task(*[quick] * FILES))
        assert pace.alone


def test_some_slow_files_among_many_quick_ones_do_not_count() -> None:
    pace = Pace(WORKERS, waits=False)
    pace.timed(task(wait, *[quick] * FILES, work))
    assert pace.alone


def test_a_task_without_files_tells_nothing() -> None:
    pace = Pace(WORKERS, waits=False)
    assert pace.timed(iter(())) == []
    assert pace.alone


def test_all_tasks_are_handed_over_where_it_is_known_that_files_are_waited_for() -> None:
    pace = Pace(WORKERS, waits=True)
    for _ in range(1000):
        assert not pace.alone
        pace.handed_over()


@pytest.mark.parametrize(
    ("duration_us", "work_us", "quick"),
    [(190, 190, True), (260, 190, True), (275, 190, False), (210, 210, False), (45, 20, True), (50, 20, False)],
)
def test_files_are_quick_that_neither_work_nor_wait_for_long(duration_us: int, work_us: int, *, quick: bool) -> None:
    assert _are_quick([1, duration_us / 1e6, 0], [1, work_us / 1e6, 0]) is quick


class Watched:
    """Prepares nothing, and knows which threads it was asked by, and how many of them at the same time."""

    def __init__(self, kinds: Iterable[Callable[[], None]], nbytes: int = 0) -> None:
        self.threads: set[threading.Thread] = set()
        self.most = 0
        self._now = 0
        self._kinds = iter(kinds)
        self._nbytes = nbytes
        self._lock = threading.Lock()

    def prepare(self, entry: Entry, hold: Callable[[int], object], _data: bytes | None = None) -> Prepared:
        hold(self._nbytes)
        with self._lock:
            kind = next(self._kinds)
            self.threads.add(threading.current_thread())
            self._now += 1
            self.most = max(self.most, self._now)
        kind()
        with self._lock:
            self._now -= 1
        return Prepared(reason=entry.name)


class Asked(Source):
    """Gives files that it reads itself."""

    reads = True

    def __init__(self) -> None:
        super().__init__(Path(), ())

    @override
    def entries(self) -> Iterator[Entry]:
        return (Entry(f"{number}.jpg", b"", 0, {}) for number in range(FILES))

    @override
    def read(self, entries: Sequence[Entry]) -> list[bytes | None]:
        return [b"" for _ in entries]


def check_prepared(watched: Watched, files: Source, tasks: int = 20) -> None:
    """Has a source's files prepared again and again, and checks that all come in order."""
    with FileList(files, None, lambda _: None) as spool:
        order = np.tile(np.arange(FILES), tasks)
        np.random.default_rng(1).shuffle(order)
        batches = prepare_in_order(cast("Any", watched), files, spool, order, WORKERS)
        names = [done.prepared.reason for batch in batches for done in batch]
        assert names == [spool[position].name for position in order.tolist()]


@pytest.fixture
def files(tmp_path: Path) -> Source:
    return scan(plant_photos(tmp_path, FILES))


def test_the_calling_thread_prepares_quick_files(files: Source) -> None:
    watched = Watched(itertools.repeat(quick))
    check_prepared(watched, files)
    assert watched.threads == {threading.current_thread()}


def test_several_threads_wait_for_slow_files_at_the_same_time(files: Source) -> None:
    watched = Watched(itertools.repeat(wait))
    check_prepared(watched, files)
    assert watched.most == WORKERS
    assert len(watched.threads) == WORKERS + 1  # the calling one, for a few that were timed


def test_threads_prepare_the_files_of_a_source_that_reads_them_itself() -> None:
    watched = Watched(itertools.repeat(quick))
    check_prepared(watched, Asked())
    assert threading.current_thread() not in watched.threads


def test_all_come_in_order_and_none_waits_for_ever_where_some_files_are_slow(
    files: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "_HANDED_OVER", 1)
    monkeypatch.setattr(tasks_module, "_HELD_BYTES", 4 * FILES)  # of four tasks
    tasks = 100
    kinds = random.Random(1).choices((quick, wait), (4, 1), k=tasks * FILES // 32)
    watched = Watched((kind for kind in kinds for _ in range(32)), nbytes=1)
    check_prepared(watched, files, tasks)
    assert 1 < watched.most <= WORKERS
    assert threading.current_thread() in watched.threads
