"""Whatever makes the batches, and however far ahead: the same batches, errors and endings. And threads as workers."""

import collections
import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from dbloader.batches.base import BatchFetcher
from dbloader.batches.create import create_fetcher
from dbloader.batches.timed import TimedBatch
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.threads import ThreadLoader
from dbloader.sampling import ShuffleSampler
from tests.support.loaders import Numbers, fail_at_7, numbers, process_loader

WAIT_S = 20.0  # for what is on its way; only a broken test waits so long


class Engine(NamedTuple):
    """A way to make batches, and how far ahead of the consumer; depth None is the loader itself."""

    kind: str
    workers: int
    depth: int | None

    def make(self, dataset: Any, **options: Any) -> Any:
        if self.kind == "threads":
            loader: Any = ThreadLoader(dataset, num_workers=self.workers, timed=self.depth is not None, **options)
        elif self.kind == "processes":
            loader = DataLoader(dataset, num_workers=self.workers, **options)
        else:  # as create_loader has them
            loader = process_loader(dataset, num_workers=self.workers, **options)
        return loader if self.depth is None else PrefetchLoader(loader, depth=self.depth)


ENGINES = [
    *(Engine("processes", workers, depth) for workers, depth in ((0, 0), (2, 2))),
    *(Engine("made", workers, depth) for workers, depth in ((0, 2), (2, 0))),
    *(Engine("threads", workers, depth) for workers, depth in ((0, 2), (2, None), (2, 0), (2, 2))),
]


def name_of(engine: Engine) -> str:
    return f"{engine.kind}-{engine.workers}-{'bare' if engine.depth is None else engine.depth}"


of_each_engine = pytest.mark.parametrize("engine", ENGINES, ids=name_of)


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


# What holds for all


@of_each_engine
def test_every_epoch_has_all_batches_in_order(engine: Engine) -> None:
    loader = engine.make(Numbers(23), batch_size=4)
    expected = [list(range(23))[at : at + 4] for at in range(0, 23, 4)]
    assert numbers(loader) == expected
    assert numbers(loader) == expected
    assert len(loader) == 6


@of_each_engine
def test_an_empty_dataset_gives_empty_epochs(engine: Engine) -> None:
    loader = engine.make(Numbers(0), batch_size=4)
    assert list(loader) == list(loader) == []


@of_each_engine
@pytest.mark.parametrize("batch_size", [1, 5])
def test_an_error_comes_at_its_place_and_ends_the_epoch(engine: Engine, batch_size: int) -> None:
    iterator = iter(engine.make(Numbers(20, fail_at_7), batch_size=batch_size))
    received: list[int] = []
    with pytest.raises(KeyError, match="no record 7"):
        received.extend(number for batch in iterator for number in batch.tolist())
    assert received == list(range(7 // batch_size * batch_size))
    assert next(iterator, "ended") == "ended"


@of_each_engine
@pytest.mark.parametrize("where", ["sample", "collate_fn"])
def test_stop_iteration_in_a_sample_or_batch_is_an_error_and_no_short_epoch(engine: Engine, where: str) -> None:
    options: dict[str, Any] = {"collate_fn": stop_collating} if where == "collate_fn" else {}
    loader = engine.make(Numbers(20, stop_at_7 if where == "sample" else int), batch_size=2, **options)
    with pytest.raises(LoaderError, match="StopIteration was raised in the making of a sample or batch"):
        list(loader)


@of_each_engine
def test_an_error_of_the_sampler_comes_after_the_batches_before_it(engine: Engine) -> None:
    def order() -> Iterator[list[int]]:
        for begin in range(0, 16, 2):
            yield [begin, begin + 1]
        raise ValueError("of the sampler")

    iterator = iter(engine.make(Numbers(20), batch_sampler=Once(order)))
    received: list[list[int]] = []
    with pytest.raises(ValueError, match="of the sampler"):
        received.extend(batch.tolist() for batch in iterator)
    if engine.kind == "threads" or not engine.workers:  # torch asks its sampler far ahead, and does not wait with that
        assert len(received) == 8


class Once:
    batch_size = 2

    def __init__(self, make: Callable[[], Iterator[list[int]]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[list[int]]:
        return self.make()

    def __len__(self) -> int:
        return 9


@pytest.mark.slow
@of_each_engine
def test_leaving_epochs_early_leaves_neither_thread_nor_process(engine: Engine) -> None:
    loader = engine.make(Numbers(50), batch_size=2)
    times = 2 if engine.workers and engine.kind != "threads" else 300
    for number in range(times):
        for seen, _ in enumerate(loader):
            if seen == number % 4:
                break
    if engine.depth:
        loader.close()
        assert not ours()
    end_of(ours())
    # Processes and files are counted by the fixture of all tests.


# Not over workers that stay between epochs: there a new iterator ends the one before (test_prefetch.py).
@pytest.mark.parametrize("engine", [each for each in ENGINES if each.kind != "made" or not each.workers], ids=name_of)
def test_two_iterators_run_side_by_side(engine: Engine) -> None:
    loader = engine.make(Numbers(6), batch_size=2)
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [([at, at + 1], [at, at + 1]) for at in (0, 2, 4)]


@of_each_engine
def test_loaders_in_front_of_each_other_can_be_left_and_entered_again(engine: Engine) -> None:
    loader: Any = engine.make(Numbers(12), batch_size=2)
    for depth in range(3):
        loader = PrefetchLoader(loader, depth=depth % 2)
    received = [batch.batch if isinstance(batch, TimedBatch) else batch for batch in itertools.islice(loader, 2)]
    assert [batch.tolist() for batch in received] == [[0, 1], [2, 3]]
    assert numbers(loader) == [[at, at + 1] for at in range(0, 12, 2)]
    loader.close()
    end_of(ours())


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.depth is not None], ids=name_of)
def test_samples_and_batches_are_counted_as_they_are_received(engine: Engine) -> None:
    loader = engine.make(Numbers(10), batch_size=4)
    iterator = iter(loader)
    counts = []
    for _ in iterator:
        stats = loader.stats()
        counts.append((stats.batches, stats.samples))
    assert counts == [(1, 4), (2, 8), (3, 10)]
    assert loader.stats().num_workers == engine.workers
    assert (loader.stats().work is None) == (engine.kind == "processes")


def test_a_killed_worker_of_several_is_an_error_within_seconds() -> None:
    loader = Engine("made", 2, 2).make(Numbers(200, pid_or_die), batch_size=1)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)"):
        collections.deque(loader, maxlen=0)


def pid_or_die(index: int) -> int:
    if index == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.slow
def test_ctrl_c_reaches_a_consumer_that_waits_for_a_dataset_that_hangs() -> None:
    code = """
import threading
import torch
from torch.utils.data import DataLoader, Dataset
from dbloader import PrefetchLoader
from dbloader.loading.threads import ThreadLoader
go_on = threading.Event()
class Hanging(Dataset):
    def __len__(self): return 10
    def __getitem__(self, index):
        print("waiting", flush=True)
        go_on.wait()
        return index
threads = ThreadLoader(Hanging(), num_workers=1)
alone = DataLoader(Hanging())
for loader in (threads, PrefetchLoader(threads), PrefetchLoader(threads, depth=0), PrefetchLoader(alone)):
    iterator = iter(loader)
    try:
        next(iterator)
    except KeyboardInterrupt:
        print("interrupted", list(iterator), flush=True)
go_on.set()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted []\n"
        output, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert set(output.split()) <= {"waiting"}


# Threads as workers


def test_the_threads_have_ended_when_the_end_or_an_error_is_seen_and_after_close() -> None:
    assert len(list(ThreadLoader(Numbers(9), num_workers=3))) == 9
    assert not ours()
    with pytest.raises(KeyError, match="no record 7"):
        list(ThreadLoader(Numbers(9, fail_at_7), num_workers=3))
    assert not ours()
    iterator: Any = iter(ThreadLoader(Numbers(9), num_workers=3))
    next(iterator)
    assert ours()
    iterator.close()
    assert not ours()
    assert list(iterator) == []


def test_the_threads_begin_with_the_first_batch_and_are_as_many_as_were_asked_for() -> None:
    barrier = threading.Barrier(3)

    def meet(index: int) -> int:
        barrier.wait(WAIT_S)
        return index

    iterator = iter(ThreadLoader(Numbers(9, meet), batch_size=3, num_workers=3, timed=False))
    assert not ours()
    assert numbers(iterator) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]  # one batch is made by three threads at once


def test_an_iterator_in_a_cycle_is_collected_without_waiting_for_its_threads() -> None:
    asked, may_go_on = threading.Event(), threading.Event()

    def wait_at_5(index: int) -> int:
        if index == 5:
            asked.set()
            may_go_on.wait(WAIT_S)
        return index

    holder: list[Any] = [iter(ThreadLoader(Numbers(9, wait_at_5), num_workers=1, prefetch_factor=7))]
    holder.append(holder)
    next(holder[0])
    assert asked.wait(WAIT_S)
    del holder
    gc.collect()  # would wait for ever
    assert ours()
    may_go_on.set()
    end_of(ours())


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_batches_are_begun_ahead_than_asked_for(ahead: int) -> None:
    class Counting(BatchFetcher):
        begun = 0

        def __init__(self) -> None:
            self.dataset = Numbers()
            self.maker = create_fetcher(self.dataset)

        def begin(self, indices: Sequence[int], submit: Any, size: int) -> Any:
            self.begun += 1
            return self.maker.begin(indices, submit, size)

    maker = Counting()
    iterator = iter(ThreadLoader(Numbers(20), num_workers=2, prefetch_factor=ahead, _fetcher=maker))
    assert maker.begun == 0
    for taken in range(1, 10):
        next(iterator)
        assert maker.begun == taken + ahead


def test_the_order_is_taken_with_iter() -> None:
    sampler = ShuffleSampler(range(20))
    loader = ThreadLoader(Numbers(20), sampler=sampler, timed=False)
    expected = list(ShuffleSampler(range(20)))
    iterator = iter(loader)
    sampler.set_epoch(5)
    assert [batch.item() for batch in iterator] == expected


def test_shuffling_is_torchs() -> None:
    def order(loader: Any) -> list[Any]:
        torch.manual_seed(7)
        return numbers(loader)

    shuffled = order(ThreadLoader(Numbers(20), 4, shuffle=True, num_workers=2, timed=False))
    assert shuffled == order(DataLoader(Numbers(20), 4, shuffle=True))
    own = [torch.Generator().manual_seed(3) for _ in range(2)]
    first = numbers(ThreadLoader(Numbers(20), 4, shuffle=True, generator=own[0], timed=False))
    assert first == numbers(DataLoader(Numbers(20), 4, shuffle=True, generator=own[1]))


def test_a_batch_tells_what_it_took_and_how_many_samples_it_has() -> None:
    batch = next(iter(ThreadLoader(Numbers(5), 4, num_workers=2, timed=True)))
    assert type(batch) is TimedBatch
    assert batch.batch.tolist() == [0, 1, 2, 3]
    assert batch.samples == 4
    assert batch.work.read > 0
    assert batch.work.collate == batch.serial > 0


def test_a_loader_of_threads_can_be_pickled() -> None:
    loader = ThreadLoader(Numbers(5), 2, num_workers=2, drop_last=True, timed=False)
    iterator = iter(loader)
    next(iterator)
    clone = pickle.loads(pickle.dumps(loader))  # noqa: S301
    assert numbers(clone) == [[0, 1], [2, 3]]
    assert (clone.batch_size, clone.num_workers, clone.drop_last, len(clone)) == (2, 2, True, 2)


def test_workers_compute_alone_and_nobody_else_does() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        loader = ThreadLoader(Numbers(8, lambda _: torch.get_num_threads()), 2, num_workers=2)
        assert numbers(loader) == [[1, 1]] * 4
        with ThreadPoolExecutor(1) as another:
            assert another.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_pinned_memory_is_only_asked_for_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not ThreadLoader(Numbers(), pin_memory=True).pin_memory
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert ThreadLoader(Numbers(), pin_memory=True).pin_memory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: "no"}, f"^{name} must be True.* or .*, got 'no'$")
            for name in ("shuffle", "pin_memory", "drop_last")
        ),
        ({"timed": "no"}, "^timed must be True or False, got 'no'$"),
        ({"num_workers": True}, "^num_workers must be an int, got True$"),
        ({"prefetch_factor": 1.5}, "^prefetch_factor must be an int, got 1.5$"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1, got 0"),
        ({"batch_size": None}, "batch_size must be an int, got None: threads make whole batches"),
        ({"batch_size": 0}, "batch_size should be a positive integer"),
        ({"shuffle": True, "sampler": [1]}, "sampler option is mutually exclusive with shuffle"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ThreadLoader(Numbers(), **options)


def test_a_dataset_without_indices_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    with pytest.raises(OptionError, match="the dataset must have samples at indices, got the iterable Stream"):
        ThreadLoader(Stream())
