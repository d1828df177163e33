"""What is measured, and what is said of it: with a clock that the tests turn."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dbloader.batches.create import create_fetcher
from dbloader.batches.dataset import BatchDataset, pass_batch
from dbloader.batches.timed import TimedBatch, Work
from dbloader.device import Preparation
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.stats import Stats
from dbloader.loading.threads import ThreadLoader


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
    for module in ("clock", "iteration", "background"):
        monkeypatch.setattr(f"dbloader.loading.{module}.now", turned)
    return turned


NONE = Work()


class Made:
    """A loader of timed batches that takes its time."""

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


# Measuring


def test_each_second_is_counted_where_it_went(clock: Turned) -> None:
    def prepare(images: torch.Tensor) -> torch.Tensor:
        clock.turn(0.5)
        return images

    made = Made(clock, [5.0, 2.0, 3.0], Work(0.25, 1.0, 0.5))
    loader = PrefetchLoader(made, depth=0, preparation=Preparation(prepare))
    for number, _ in enumerate(loader):
        clock.turn(7.0 if number < 2 else 1.0)
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.steps, stats.ahead) == (3, 12, 3, 3)
    assert (stats.first_s, stats.waited_s, stats.computed_s) == (5.5, 6.0, 15.0)
    assert (stats.produced_s, stats.copied_s, stats.blocked_s) == (10.0, 1.5, 0.0)
    assert stats.work == Work(0.75, 3.0, 1.5)
    assert stats.seconds == 21.0
    assert stats.waiting == 6 / 21
    assert stats.samples_per_s == 12 / 21
    assert loader.waited == 11.5


def test_an_epoch_that_is_not_finished_counts_what_was_received_and_not_what_was_made() -> None:
    loader = PrefetchLoader(ThreadLoader(range(100), 4, num_workers=2, timed=True), depth=10)
    iterator = iter(loader)
    for received in range(1, 4):
        next(iterator)
        stats = loader.stats()
        assert (stats.batches, stats.samples, stats.steps) == (received, 4 * received, received - 1)
        assert stats.ahead >= received
    loader.close()


def test_before_and_after_nothing_there_are_no_shares() -> None:
    stats = PrefetchLoader([]).stats()
    assert (stats.batches, stats.samples, stats.waiting, stats.samples_per_s, stats.work) == (0, None, 0.0, None, None)
    assert str(stats) == "too few batches to tell: take at least two"


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
def test_the_samples_of_any_batch_are_counted_where_it_shows_them(batch: Any, samples: int | None) -> None:
    loader: PrefetchLoader[Any] = PrefetchLoader([batch])
    list(loader)
    assert loader.stats().samples == samples


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_what_the_workers_measure_arrives(kind: str) -> None:
    data = list(torch.arange(40.0).reshape(20, 2))
    if kind == "threads":
        source: Any = ThreadLoader(data, 4, num_workers=2, timed=True)
    else:
        made = BatchDataset(create_fetcher(data, transform=torch.neg))
        source = DataLoader(made, 4, num_workers=2, collate_fn=pass_batch)
    loader = PrefetchLoader(source)
    list(loader)
    stats = loader.stats()
    assert stats.work is not None
    assert stats.work.read > 0
    assert stats.work.decode > 0
    assert stats.work.collate > 0
    assert (stats.serial_s > 0) == (kind == "threads")  # each process collates for itself
    assert (stats.num_workers, stats.depth, stats.ahead) == (2, 2, 5)


def test_a_timed_batch_is_pinned_as_what_is_in_it() -> None:
    class Pinned:
        def pin_memory(self, device: Any = None) -> str:
            return "pinned"

    batch = TimedBatch(Pinned(), Work(1.0), 3, 0.5)
    assert batch.pin_memory() == TimedBatch("pinned", Work(1.0), 3, 0.5)


# The verdict


def said(**changes: Any) -> str:
    """The verdict on 10 batches, waited for during 5 s of 10, of two workers."""
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
DECODING = "decoding is 80 % of making a batch; "


def test_data_that_keeps_up_is_all_that_is_said() -> None:
    assert said(waited_s=0.05, computed_s=4.95) == "waited for data 1.0 % of the time: the data keeps up"
    assert said(waited_s=0.0) == "waited for data 0.0 % of the time: the data keeps up"
    assert "keeps up" not in said(waited_s=0.2, computed_s=9.8)


def test_the_number_of_workers_is_that_which_does_the_work_in_the_consumers_time() -> None:
    assert said() == HALF + DECODING + "about 4 workers instead of 2 would keep up"
    assert said(work=Work(1.0, 16.0, 3.1)).endswith("about 5 workers instead of 2 would keep up")
    assert said(num_workers=0).endswith("about 4 workers instead of 0 would keep up")


def test_work_done_ahead_for_batches_not_yet_received_needs_no_more_workers() -> None:
    assert said(ahead=20, work=Work(2.0, 32.0, 6.0)) == said()


def test_the_batch_that_the_consumer_works_with_does_not_count_as_done() -> None:
    assert said(steps=9, computed_s=4.5, waited_s=4.5) == said()


def test_without_the_workers_own_times_it_is_told_by_the_speed_they_had() -> None:
    assert said(work=None) == HALF + "about 4 workers instead of 2 would keep up"
    assert said(work=None, num_workers=0) == HALF + "about 2 workers instead of 0 would keep up"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (Work(16.0, 1.0, 3.0), "reading is 80 %"),
        (Work(1.0, 3.0, 16.0), "collating is 80 %"),
        (Work(1.0, 16.0, 3.0), "decoding is 80 %"),
    ],
)
def test_the_hardest_work_is_named(work: Work, words: str) -> None:
    assert said(work=work).startswith(f"{HALF}{words} of making a batch; ")


def test_more_workers_than_processors_are_not_advised_without_a_word() -> None:
    expected = "about 4 workers instead of 2 would keep up, but this process has 3 CPUs: make the images cheaper"
    assert expected in said(cpus=3)
    assert "has 1 CPU:" in said(cpus=1)
    assert "CPU" not in said(cpus=4)


def test_enough_workers_that_do_not_keep_up_are_held_up_by_something_else() -> None:
    assert said(num_workers=4) == HALF + DECODING + (
        "4 workers should keep up: the CPUs may be busy with other things, or the batches of very different cost"
    )
    assert "1 worker should keep up" in said(num_workers=1, work=Work(1.0, 3.0, 0.0))


def test_the_background_thread_is_blamed_only_where_no_number_of_workers_would_help() -> None:
    copying = "sending and preparing a batch takes the background thread longer than the consumer needs for one"
    assert said(copied_s=6.0, produced_s=4.0).endswith(f"; {copying}")
    assert said(copied_s=6.0, produced_s=20.0).endswith(f"; {copying}")  # both; the workers alone would not do
    assert copying not in said(copied_s=4.9, produced_s=4.0)  # with free batches it would keep up
    assert said(copied_s=9.0, ahead=20, work=None).endswith("about 4 workers instead of 2 would keep up")
    reading = "reading and collating a batch takes the background thread longer than the consumer needs for one"
    assert said(serial_s=5.0, copied_s=0.0).endswith(f"; {reading}")
    assert said(num_workers=None, copied_s=6.0).endswith(f"; {copying}")


def test_work_of_the_background_thread_is_not_for_the_workers() -> None:
    assert said(serial_s=4.0, copied_s=0.5).endswith("about 4 workers instead of 2 would keep up")
    assert said(serial_s=4.0, copied_s=0.5, work=Work(1.0, 14.0, 3.0)).endswith(
        "about 3 workers instead of 2 would keep up"
    )


def test_where_nothing_runs_ahead_that_is_said_first() -> None:
    assert said(depth=0) == HALF + DECODING + (
        "with depth=0 the next batch is asked for only when the one before is done with"
    )


def test_a_consumer_that_only_takes_batches_measures_them() -> None:
    assert said(waited_s=9.9, computed_s=0.1) == (
        "waited for data 99 % of the time; decoding is 80 % of making a batch; "
        "the consumer only takes the batches, so this is how fast the data comes"
    )


def test_of_a_loader_that_is_no_data_loader_workers_are_not_spoken_of() -> None:
    assert said(num_workers=None, work=None) == HALF + "what is in front of this loader is too slow"
