"""Measure how much of a slow source's time background loading hides, and what it costs.

python scripts/bench/overlap.py BENCH [--batches 100] [--rounds 5]      (BENCH is not used: all is made in memory)
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler
from typing_extensions import override

from dbloader import PrefetchLoader
from dbloader.batches.fetchers import create_fetcher
from dbloader.loading.threads import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

EACH_S = 0.020
BATCH = 64


class Source:
    """Batches that each take some time, as if read from a disk."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        for number in range(self.batches):
            time.sleep(EACH_S)
            yield number


class Samples(Dataset[torch.Tensor]):
    """Samples in memory: only the cost of the loader itself is measured."""

    def __init__(self, samples: int, shape: tuple[int, ...]) -> None:
        self.samples = samples
        self.sample = torch.zeros(shape, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.samples

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self.sample] * len(indices)


def epoch(loader: Iterable[Any], work_s: float = 0) -> float:
    """Return the seconds of an epoch, with a consumer that works ``work_s`` seconds with each batch."""
    begun = time.perf_counter()
    for _ in loader:
        if work_s:
            time.sleep(work_s)
    return time.perf_counter() - begun


def after_the_first(loader: Iterable[Any]) -> float:
    """Return the seconds from the first batch to the end, which excludes the start of workers."""
    iterator = iter(loader)
    next(iterator)
    return epoch(iterator)


def overlap(batches: int, rounds: int) -> None:
    source = Source(batches)
    contenders: dict[str, Callable[[], float]] = {
        "the source alone": lambda: epoch(source),
        "the consumer alone": lambda: epoch(range(batches), EACH_S),
        "both in turn": lambda: epoch(source, EACH_S),
        "both, through `PrefetchLoader`": lambda: epoch(PrefetchLoader(source), EACH_S),
    }
    seconds = in_turn(contenders, rounds)
    one = max(seconds["the source alone"], seconds["the consumer alone"])
    print(
        f"\n{batches} batches, {1000 * EACH_S:.0f} ms each for the source and for the consumer, medians of {rounds}:\n"
    )
    print("| epoch | seconds | / the slower of them alone |")
    print("| --- | ---: | ---: |")
    for name, median in seconds.items():
        print(f"| {name} | {median:.2f} | {median / one:.2f} |")


def overhead(batches: int, rounds: int) -> None:
    """Print the cost of a batch that takes no time to make: 64 images of 3 x 224 x 224 bytes, and 64 of one byte."""
    print(f"\nBatches of {BATCH} samples that take no time, medians of {rounds}:\n")
    print("| loader | ms a batch of 3 x 224 x 224 bytes | ms a batch of 1 byte |")
    print("| --- | ---: | ---: |")
    columns = [in_turn(engines(batches, shape), rounds) for shape in ((3, 224, 224), (1,))]
    for name in columns[0]:
        cells = [f"{1000 * column[name] / (batches - 1):.2f}" for column in columns]
        print(f"| {name} | {' | '.join(cells)} |")


def engines(batches: int, shape: tuple[int, ...]) -> dict[str, Callable[[], float]]:
    samples = Samples(batches * BATCH, shape)

    def order() -> BatchSampler:
        return BatchSampler(SequentialSampler(samples), BATCH, drop_last=False)

    def threads(workers: int) -> ThreadLoader:
        return ThreadLoader(create_fetcher(samples), order(), workers, dataset=samples, prefetch_factor=2)

    def processes(workers: int) -> DataLoader[Any]:
        return DataLoader(samples, batch_sampler=order(), num_workers=workers)

    return {
        "DataLoader, no workers": lambda: after_the_first(processes(0)),
        "PrefetchLoader(DataLoader), no workers": lambda: after_the_first(PrefetchLoader(processes(0))),
        "PrefetchLoader(ThreadLoader), 2 threads": lambda: after_the_first(PrefetchLoader(threads(2))),
        "DataLoader, 2 processes": lambda: after_the_first(processes(2)),
        "PrefetchLoader(DataLoader), 2 processes": lambda: after_the_first(PrefetchLoader(processes(2))),
    }


def in_turn(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender; they take turns."""
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            runs[name].append(run())
    return {name: statistics.median(some) for name, some in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what loading in the background costs a training.")
    parser.add_argument("bench", nargs="?")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    overlap(options.batches, options.rounds)
    overhead(options.batches, options.rounds)


if __name__ == "__main__":
    main()
