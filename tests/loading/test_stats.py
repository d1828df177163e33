"""The statistics of a loader count each second once. The tests control the clock."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dbloader.batches.timed import TimedBatch, Work
from dbloader.device import Preparation
from dbloader.loading.checkpoint import Position
from dbloader.loading.iteration import Iteration
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.stats import Stats
from tests.support.loaders import process_loader, thread_loader


class Turned:
    """A clock that stands still until a test turns it."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def turn(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Turned:
    turned = Turned()
    for module in ("stats", "iteration", "background"):
        monkeypatch.setattr(f"dbloader.loading.{module}.now", turned)
    return turned


NONE = Work()


class Made:
    """A loader of timed batches that takes a given time for each batch."""

    def __init__(self, clock: Turned, seconds: list[float], work: Work = NONE, samples: int = 4) -> None:
        self.clock = clock
        self.seconds = seconds
        self.work = work
        self.samples = samples
        self.num_workers = 2

    def __iter__(self) -> Iterator[TimedBatch]:
        for seconds in self.seconds:
            self.clock.turn(seconds)
            yield TimedBatch(torch.zeros(self.samples, 2), self.work, self.samples)


def one_of(loader: Made, preparation: Preparation | None = None) -> Iteration:
    return Iteration(lambda: (iter(loader), Position()), None, preparation, None, counts_samples=True)


def in_turn(iteration: Iteration) -> Iterator[Any]:
    """Yield the batches of an iteration. Make each batch in this thread when it is asked for."""
    iteration.start()
    while True:
        asked = iteration.clock.start_waiting()
        batch = next(iteration, None)
        iteration.clock.stop_waiting(asked)
        if batch is None:
            return
        iteration.clock.receive()
        yield iteration.receive(batch)


def test_stats_can_be_pickled(clock: Turned) -> None:
    loader = PrefetchLoader(Made(clock, [1.0, 1.0], Work(0.25, 1.0, 0.5)))
    list(loader)
    stats = loader.stats()
    assert pickle.loads(pickle.dumps(stats)) == stats  # noqa: S301


def test_each_second_is_counted_exactly_once(clock: Turned) -> None:
    def prepare(images: torch.Tensor) -> torch.Tensor:
        clock.turn(0.5)
        return images

    made = Made(clock, [5.0, 2.0, 3.0], Work(0.25, 1.0, 0.5))
    iteration = one_of(made, Preparation(prepare))
    for number, _ in enumerate(in_turn(iteration)):
        clock.turn(7.0 if number < 2 else 1.0)
    stats = iteration.clock.stats
    assert (stats.batches, stats.samples, stats.steps, stats.ahead) == (3, 12, 3, 3)
    assert (stats.first_s, stats.waited_s, stats.computed_s) == (5.5, 6.0, 15.0)
    assert (stats.produced_s, stats.copied_s, stats.blocked_s) == (10.0, 1.5, 0.0)
    assert stats.work == Work(0.75, 3.0, 1.5)
    assert stats.seconds == 21.0
    assert stats.waiting == 6 / 21
    assert stats.samples_per_s == 12 / 21


def test_unfinished_step_does_not_count_in_samples_per_second(clock: Turned) -> None:
    iteration = one_of(Made(clock, [5.0, 1.0, 1.0], samples=20))
    rates = []
    for _ in in_turn(iteration):
        rates.append(iteration.clock.stats.samples_per_s)
        clock.turn(3.0)
    assert rates == [None, 20 / 4, 40 / 8]
    assert iteration.clock.stats.samples_per_s == 60 / 11


def test_stats_of_an_empty_loader_have_no_shares() -> None:
    stats = PrefetchLoader([]).stats()
    assert (stats.batches, stats.samples, stats.waiting, stats.samples_per_s, stats.work) == (0, None, 0.0, None, None)
    assert str(stats) == "too few batches to measure: take at least two"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 3), 5),
        ([torch.zeros(5, 3), torch.zeros(7)], 5),
        ({"name": ["a", "b"], "scale": torch.zeros(1), "image": torch.zeros(2, 3)}, 2),
        ({"name": ["a", "b"], "scale": torch.tensor(1.0), "pixels": torch.zeros(2, 3)}, 2),
        (([], ({"deep": torch.zeros(6)},)), 6),
        (torch.tensor(3), None),
        (["a", "b"], None),
    ],
)
def test_samples_are_counted_in_batches_of_any_type(batch: Any, samples: int | None) -> None:
    loader: PrefetchLoader[Any] = PrefetchLoader([batch])
    list(loader)
    assert loader.stats().samples == samples


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_work_of_all_workers_is_counted(kind: str) -> None:
    data = list(torch.arange(40.0).reshape(20, 2))
    if kind == "threads":
        source: Any = thread_loader(data, 4, num_workers=2)
    else:
        source = process_loader(data, 4, num_workers=2, transform=torch.neg)
    loader = PrefetchLoader(source)
    list(loader)
    stats = loader.stats()
    assert stats.work is not None
    assert stats.work.read > 0
    assert stats.work.decode > 0
    assert stats.work.collate > 0
    assert (stats.serial_s > 0) == (kind == "threads")  # each process collates its own batches
    assert (stats.num_workers, stats.depth, stats.ahead) == (2, 2, 5)


def said(**changes: Any) -> str:
    """Return the verdict on 10 batches of two workers. The consumer waited for 5 s of 10 s."""
    facts: dict[str, Any] = {
        "batches": 10,
        "samples": 640,
        "steps": 10,
        "first_s": 3.0,
        "waited_s": 5.0,
        "computed_s": 5.0,
        "ahead": 10,
        "produced_s": 9.0,
        "copied_s": 0.5,
        "blocked_s": 0.0,
        "work": Work(1.0, 16.0, 3.0),
        "serial_s": 0.0,
        "num_workers": 2,
        "depth": 2,
        "cpus": 8,
    }
    return str(Stats(**{**facts, **changes}))


HALF = "waited for data 50 % of the time; "
DECODING = f"{HALF}decoding is 80 % of making a batch; "
MORE = "about 4 workers instead of 2 would keep up"
BUSY = "should keep up: the CPUs may be busy with other programs, or some batches may take much longer than others"
SLOW_THREAD = "a batch takes longer than a training step, and more workers would not help"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        # The loader keeps up.
        ({"waited_s": 0.05, "computed_s": 4.95}, "waited for data 1.0 % of the time: the data keeps up"),
        (
            {"waited_s": 0.2, "computed_s": 9.8, "work": None},
            "waited for data 2.0 % of the time; about 3 workers instead of 2 would keep up",
        ),
        # The verdict names the work that takes longest.
        ({"work": Work(16.0, 1.0, 3.0)}, f"{HALF}reading is 80 % of making a batch; {MORE}"),
        ({"work": Work(1.0, 3.0, 16.0)}, f"{HALF}collating is 80 % of making a batch; {MORE}"),
        # Steps of a transform that are not fused are named, even if they do not take longest.
        (
            {"work": Work(1.0, 12.0, 3.0, steps=4.0)},
            f"{HALF}decoding is 60 % and the transform, where not fused, is 20 % of making a batch; {MORE}",
        ),
        (
            {"work": Work(1.0, 3.0, 4.0, steps=12.0)},
            f"{HALF}the transform, where not fused, is 60 % of making a batch; {MORE}",
        ),
        # The advised number of workers does the work in the time that the consumer needs.
        ({"num_workers": 0}, f"{DECODING}about 4 workers instead of 0 would keep up"),
        ({"work": Work(1.0, 16.0, 3.1)}, f"{DECODING}about 5 workers instead of 2 would keep up"),
        # Work for prefetched batches and the unfinished step are not counted.
        ({"ahead": 20, "work": Work(2.0, 32.0, 6.0)}, f"{DECODING}{MORE}"),
        ({"steps": 9, "computed_s": 4.5, "waited_s": 4.5}, f"{DECODING}{MORE}"),
        # Work of the background thread is not counted as work of the workers.
        ({"serial_s": 4.0, "work": Work(0.0, 14.4, 3.6)}, f"{DECODING}about 3 workers instead of 2 would keep up"),
        # Without worker times, the verdict is computed from the speed of the loader.
        ({"work": None}, f"{HALF}{MORE}"),
        # There should be enough workers, but they do not keep up.
        ({"num_workers": 4}, f"{DECODING}4 workers {BUSY}"),
        # The machine has fewer CPUs than the advised number of workers.
        ({"cpus": 3}, f"{DECODING}{MORE}, but this process has 3 CPUs: make the images cheaper to decode"),
        # The background thread is too slow, so more workers would not help.
        ({"copied_s": 6.0, "produced_s": 4.0}, f"{DECODING}sending and preparing {SLOW_THREAD}"),
        ({"serial_s": 5.0, "copied_s": 0.0}, f"{DECODING}reading and collating {SLOW_THREAD}"),
        # The background thread is fast enough.
        ({"copied_s": 4.9, "produced_s": 4.0}, f"{DECODING}{MORE}"),
        # The consumer only receives the batches.
        (
            {"waited_s": 9.9, "computed_s": 0.1, "work": None},
            "waited for data 99 % of the time; the consumer only takes the batches, so this measures the loader alone",
        ),
        # The other kind of workers is faster.
        ({"advice": "pass worker_type"}, f"{DECODING}{MORE}; pass worker_type"),
        (
            {"waited_s": 0.05, "computed_s": 4.95, "advice": "pass"},
            "waited for data 1.0 % of the time: the data keeps up",
        ),
        # The loader has no workers.
        ({"num_workers": None, "work": None}, f"{HALF}the wrapped loader is too slow"),
    ],
)
def test_verdict_names_what_takes_longest_and_a_remedy(changes: dict[str, Any], verdict: str) -> None:
    assert said(**changes) == verdict
