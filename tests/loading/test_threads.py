"""All kinds of workers produce the same batches, errors and endings."""

import gc
import itertools
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from dbloader.batches.base import BatchFetcher
from dbloader.batches.fetchers import create_fetcher
from dbloader.errors import LoaderError
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.threads import PartSize, ThreadLoader
from tests.support.loaders import Numbers, batches_of, fail_at_7, numbers, process_loader, thread_loader

WAIT_S = 20.0  # only a failing test waits this long


class Engine(NamedTuple):
    """A way to make batches."""

    kind: str
    workers: int

    def make(self, dataset: Any, **options: Any) -> Any:
        kinds: dict[str, Any] = {"torch": DataLoader, "processes": process_loader, "threads": thread_loader}
        return PrefetchLoader(kinds[self.kind](dataset, num_workers=self.workers, **options))


ENGINES = [
    Engine("torch", 0),
    Engine("torch", 2),
    Engine("processes", 2),
    Engine("threads", 0),
    Engine("threads", 2),
]
of_each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: "-".join(map(str, engine)))


def stop_at_7(index: int) -> int:
    if index == 7:
        raise StopIteration
    return index


def stop_collating(_: list[int]) -> list[int]:
    raise StopIteration


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dbloader")]


def end_of(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread


@of_each_engine
def test_every_epoch_has_all_batches_in_order(engine: Engine) -> None:
    loader = engine.make(Numbers(23), batch_size=4)
    expected = [list(range(23))[at : at + 4] for at in range(0, 23, 4)]
    assert numbers(loader) == expected
    counts: list[tuple[int, int | None]] = []
    for batch in loader:
        assert batch.tolist() == expected[len(counts)]
        counts.append((loader.stats().batches, loader.stats().samples))
    assert counts == [(1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (6, 23)]
    assert len(loader) == 6
    assert loader.stats().num_workers == engine.workers
    assert (loader.stats().work is None) == (engine.kind == "torch")
    empty = engine.make(Numbers(0), batch_size=4)
    assert list(empty) == list(empty) == []


@of_each_engine
def test_error_is_raised_after_earlier_batches_and_ends_the_epoch(engine: Engine) -> None:
    iterator = iter(engine.make(Numbers(20, fail_at_7), batch_size=5))
    received: list[int] = []
    with pytest.raises(KeyError, match="no record 7"):
        received.extend(number for batch in iterator for number in batch.tolist())
    assert received == [0, 1, 2, 3, 4]
    with pytest.raises(LoaderError, match=r"^an error ended this iterator \(KeyError: .*\): call iter\(\) again$"):
        next(iterator)


@of_each_engine
@pytest.mark.parametrize("where", ["sample", "collate_fn"])
def test_stop_iteration_of_a_sample_does_not_shorten_the_epoch(engine: Engine, where: str) -> None:
    options: dict[str, Any] = {"collate_fn": stop_collating} if where == "collate_fn" else {}
    loader = engine.make(Numbers(20, stop_at_7 if where == "sample" else int), batch_size=2, **options)
    with pytest.raises(LoaderError, match="StopIteration was raised while a sample or batch was made"):
        list(loader)


class Once:
    """A batch sampler that can be iterated only once."""

    batch_size = 2

    def __init__(self, make: Callable[[], Iterator[list[int]]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[list[int]]:
        return self.make()

    def __len__(self) -> int:
        return 9


@of_each_engine
def test_sampler_error_is_raised_after_earlier_batches(engine: Engine) -> None:
    def order() -> Iterator[list[int]]:
        for begin in range(0, 16, 2):
            yield [begin, begin + 1]
        raise ValueError("of the sampler")

    iterator = iter(engine.make(Numbers(20), batch_sampler=Once(order)))
    received: list[list[int]] = []
    with pytest.raises(ValueError, match="of the sampler"):
        received.extend(batch.tolist() for batch in iterator)
    if engine.kind == "threads" or not engine.workers:  # torch reads batches of its sampler far ahead
        assert len(received) == 8


@pytest.mark.slow
@of_each_engine
def test_abandoned_epochs_leave_no_thread_and_no_process(engine: Engine) -> None:
    """The leak fixture that every test uses checks processes and files."""
    loader = engine.make(Numbers(50), batch_size=2)
    for number in range(2 if engine.workers and engine.kind != "threads" else 100):
        for seen, _ in enumerate(loader):
            if seen == number % 4:
                break
    loader.close()
    assert not ours()


@of_each_engine
def test_nested_loaders_can_be_stopped_and_iterated_again(engine: Engine) -> None:
    loader: Any = engine.make(Numbers(12), batch_size=2)
    for _ in range(3):
        loader = PrefetchLoader(loader, depth=1)
    assert numbers(itertools.islice(loader, 2)) == [[0, 1], [2, 3]]
    assert numbers(loader) == [[at, at + 1] for at in range(0, 12, 2)]
    loader.close()
    end_of(ours())


@pytest.mark.slow
def test_ctrl_c_interrupts_waiting_for_a_hanging_dataset() -> None:
    code = """
import threading
import torch
from torch.utils.data import DataLoader, Dataset
from dbloader import PrefetchLoader
from dbloader.errors import LoaderError
from tests.support.loaders import thread_loader
go_on = threading.Event()
def rest(iterator):
    try:
        return list(iterator)
    except LoaderError as error:
        return error
class Hanging(Dataset):
    def __len__(self): return 10
    def __getitem__(self, index):
        print("waiting", flush=True)
        go_on.wait()
        return index
threads = thread_loader(Hanging(), num_workers=1)
alone = DataLoader(Hanging())
for loader in (threads, PrefetchLoader(threads), PrefetchLoader(alone)):
    iterator = iter(loader)
    try:
        next(iterator)
    except KeyboardInterrupt:
        print("interrupted", rest(iterator), flush=True)
go_on.set()
"""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = "an error ended this iterator (KeyboardInterrupt): call iter() again"
        for after in ("[]", ended, ended):
            assert process.stdout.readline() == "waiting\n"
            # A blocked main thread misses a signal that another thread receives; then a user presses Ctrl-C again.
            for _ in range(3):
                process.send_signal(signal.SIGINT)
                if select.select([process.stdout], [], [], 10)[0]:
                    break
            else:
                process.send_signal(signal.SIGABRT)  # print where all threads are, and end
                pytest.fail(process.communicate()[1])
            assert process.stdout.readline() == f"interrupted {after}\n"
        output, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert set(output.split()) <= {"waiting"}


def test_threads_start_at_the_first_batch_and_divide_it() -> None:
    barrier = threading.Barrier(3)

    def meet(index: int) -> int:
        barrier.wait(WAIT_S)
        return index

    iterator = iter(thread_loader(Numbers(9, meet), 3, num_workers=3))
    assert not ours()
    assert numbers(batches_of(iterator)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_threads_end_after_the_last_batch_an_error_or_close() -> None:
    assert len(list(thread_loader(Numbers(9), num_workers=3))) == 9
    assert not ours()
    with pytest.raises(KeyError, match="no record 7"):
        list(thread_loader(Numbers(9, fail_at_7), num_workers=3))
    assert not ours()
    iterator: Any = iter(thread_loader(Numbers(9), num_workers=3))
    next(iterator)
    assert ours()
    iterator.close()
    assert not ours()
    assert list(iterator) == []


def test_garbage_collected_iterator_does_not_wait_for_its_threads() -> None:
    asked, may_go_on = threading.Event(), threading.Event()

    def wait_at_5(index: int) -> int:
        if index == 5:
            asked.set()
            may_go_on.wait(WAIT_S)
        return index

    holder: list[Any] = [iter(thread_loader(Numbers(9, wait_at_5), num_workers=1, prefetch_factor=7))]
    holder.append(holder)
    next(holder[0])
    assert asked.wait(WAIT_S)
    del holder
    gc.collect()  # would wait forever
    assert ours()
    may_go_on.set()
    end_of(ours())


@pytest.mark.parametrize("ahead", [1, 5])
def test_threads_begin_only_prefetched_batches(ahead: int) -> None:
    class Counting(BatchFetcher):
        def __init__(self) -> None:
            self.begun: list[Sequence[int]] = []
            self.dataset = Numbers()
            self.maker = create_fetcher(self.dataset)

        def begin(self, indices: Sequence[int], submit: Any, size: int, read: bool = True, slot: Any = None) -> Any:
            self.begun.append(indices)
            return self.maker.begin(indices, submit, size, read, slot)

    maker = Counting()
    iterator = iter(ThreadLoader(maker, [[n] for n in range(20)], 2, dataset=maker.dataset, prefetch_factor=ahead))
    assert not maker.begun
    for taken in range(1, 10):
        next(iterator)
        assert len(maker.begun) == taken + ahead


def test_prefetched_batches_after_a_late_sample_are_all_made() -> None:
    """While one sample is slow, three later batches are made in parts of two samples."""
    made: list[int] = []
    rest_made = threading.Event()

    def late_at_0(index: int) -> int:
        if index == 0:
            assert rest_made.wait(WAIT_S), made
        else:
            made.append(index)
            if len(made) == 4 * 4 - 2:  # sample 1 is missing, because the same thread makes it after sample 0
                rest_made.set()
        return index

    iterator: Any = iter(thread_loader(Numbers(40, late_at_0), 4, num_workers=2, prefetch_factor=3))
    assert next(iterator).batch.tolist() == [0, 1, 2, 3]
    assert sorted(made[:14]) == [*range(2, 16)]
    assert numbers(batches_of(iterator)) == [[*range(at, at + 4)] for at in range(4, 40, 4)]


def test_only_worker_threads_compute_with_one_core() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        loader = thread_loader(Numbers(8, lambda _: torch.get_num_threads()), 2, num_workers=2)
        assert numbers(batches_of(loader)) == [[1, 1]] * 4
        with ThreadPoolExecutor(1) as another:
            assert another.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_parts_get_smaller_only_while_workers_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 10)
    monkeypatch.setattr("dbloader.loading.threads.now", lambda: next(seconds))
    size = PartSize(2, 32)

    def after(idle_s: float) -> int:
        size.adapt(idle_s)
        return size.most

    assert [after(1.1) for _ in range(7)] == [16, 8, 4, 2, 1, 1, 1]
    sizes = [after(0.9) for _ in range(99)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 32)
