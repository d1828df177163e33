"""Who prepares a conversion's files: the thread that writes what becomes of them, or several others."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from imagefolders import plant_photos

from dbloader.conversion.pace import Pace
from dbloader.conversion.prepare import Prepared
from dbloader.conversion.spool import Spool
from dbloader.conversion.tasks import prepare_in_order
from dbloader.sources import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dbloader.conversion.prepare import Preparation
    from dbloader.sources import Entry

SLOW_S = 0.002
FILES = 16  # of a task
WORKERS = 4


def wait() -> None:
    time.sleep(SLOW_S)


def work() -> None:
    end = time.thread_time() + SLOW_S
    while time.thread_time() < end:
        pass


def quick() -> None:
    pass


def task(*kinds: Callable[[], None]) -> Iterator[int]:
    for number, kind in enumerate(kinds):
        kind()
        yield number


def handed_over(pace: Pace) -> int:
    """Hands tasks over until one is to be timed, and gives their number."""
    count = 0
    while not pace.alone:
        pace.handed_over()
        count += 1
    return count


def test_tasks_of_quick_files_are_done_alone() -> None:
    pace = Pace(waits=False)
    for _ in range(100):
        assert pace.alone
        assert pace.timed(task(*[quick] * FILES)) == [*range(FILES)]


@pytest.mark.parametrize("slow", [wait, work])
def test_tasks_of_slow_files_are_handed_over_and_one_is_timed_ever_more_rarely(slow: Callable[[], None]) -> None:
    pace, counts = Pace(waits=False), []
    for _ in range(9):
        pace.timed(task(slow, slow, slow))
        assert not pace.alone
        counts.append(handed_over(pace))
    assert counts == [64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]


def test_quick_files_after_slow_ones_are_done_alone_again() -> None:
    pace = Pace(waits=False)
    for _ in range(2):
        pace.timed(task(wait, wait))
        assert handed_over(pace) == 64
        pace.timed(task(*[quick] * FILES))
        assert pace.alone


def test_some_slow_files_among_many_quick_ones_do_not_count() -> None:
    pace = Pace(waits=False)
    pace.timed(task(wait, *[quick] * FILES, work))
    assert pace.alone


def test_a_task_without_files_tells_nothing() -> None:
    pace = Pace(waits=False)
    assert pace.timed(iter(())) == []
    assert pace.alone


def test_all_tasks_are_handed_over_where_it_is_known_that_files_are_waited_for() -> None:
    pace = Pace(waits=True)
    for _ in range(1000):
        assert not pace.alone
        pace.handed_over()


class Watched:
    """Prepares nothing, and knows which threads it was asked by, and how many of them at the same time."""

    def __init__(self, kind: Callable[[], None]) -> None:
        self.threads: set[threading.Thread] = set()
        self.most = 0
        self._now = 0
        self._kind = kind
        self._lock = threading.Lock()

    def prepare(self, entry: Entry, _hold: Callable[[int], object]) -> Prepared:
        with self._lock:
            self.threads.add(threading.current_thread())
            self._now += 1
            self.most = max(self.most, self._now)
        self._kind()
        with self._lock:
            self._now -= 1
        return Prepared(reason=entry.name)


def prepared(folder: Path, kind: Callable[[], None]) -> Watched:
    """Has 20 tasks prepared, checks that all come in order, and gives what prepared them."""
    files, watched = scan(plant_photos(folder, FILES)), Watched(kind)
    with Spool(files, None, lambda _: None) as spool:
        order = np.tile(np.arange(FILES), 20)
        batches = prepare_in_order(cast("Preparation", watched), files, spool, order, WORKERS)
        names = [done.prepared.reason for batch in batches for done in batch]
        assert names == [spool[position].name for position in order.tolist()]
    return watched


def test_the_calling_thread_prepares_quick_files(tmp_path: Path) -> None:
    assert prepared(tmp_path, quick).threads == {threading.current_thread()}


def test_several_threads_wait_for_slow_files_at_the_same_time(tmp_path: Path) -> None:
    watched = prepared(tmp_path, wait)
    assert watched.most == WORKERS
    assert len(watched.threads) == WORKERS + 1  # the calling one, for a task that was timed
