"""Measure how fast images of a store can be loaded on this machine, and what limits the speed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Literal

import numpy as np

from dbloader._machine import cpu_count
from dbloader._options import real_number, whole_number
from dbloader.batches.fetchers import create_fetcher
from dbloader.batches.timed import Work
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.crops import RandomResizedCrop
from dbloader.errors import OptionError
from dbloader.loading.create import choose_workers, create_loader
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

_REMEDIES = {
    "reading the store": "Faster storage helps, or a local copy (dbloader copy) that is read into memory first "
    "(cat FILE > /dev/null).",
    "decoding on this CPU": "More CPUs help, or images that are cheaper to decode (dbloader convert --short-side or "
    "--tile).",
    "copying images into batches": "Smaller images (--size) help.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The speed of one way to load images.

    ``name`` is ``"reading"``, ``"reading + decoding"``, or the workers of a loader, such as ``"worker threads: 2"``.
    ``rounds`` are the measured speeds in images per second, and ``images_per_s`` is their median.
    """

    name: str
    images_per_s: float
    rounds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The speed of a store on this machine.

    Attributes:
        images: Number of records that have an image.
        image_bytes: Average size of a stored image, in bytes.
        limit: The task on which the workers of the fastest loader spend most of their time.
        limit_share: Fraction of the workers' time that this task takes, 0 to 1.
        verdict: Which loader is fastest, what limits its speed, and what would help. If the default of
            `create_loader` is not the fastest loader, the verdict names this default.
    """

    place: str
    images: int
    image_bytes: float
    cpus: int
    measurements: tuple[Measurement, ...]
    limit: str
    limit_share: float
    verdict: str


class EndlessShuffle:
    """Endless indices in random order: no measurement reaches the end of an epoch."""

    def __init__(self, indices: npt.NDArray[np.int64]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(0)
        while True:
            yield from map(int, rng.permutation(self.indices))


def measure(
    place: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    size: int = 224,
    workers: Sequence[int] | None = None,
    seconds: float = 2.0,
    rounds: int = 3,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Benchmark:
    """Measure how fast the images of a store can be read, decoded, and loaded in batches for training.

    Reading and decoding are measured in this thread. `create_loader` makes the loaders for training (random crops,
    uint8, on the CPU), with threads and with processes. All measurements read records in random order. They take turns,
    so other programs on the machine disturb all of them equally.

    Args:
        place: The store.
        batch_size: Images in a batch.
        size: Height and width of the images in a batch, in pixels.
        workers: Numbers of threads and processes to try; None means 1, half the number of CPUs, and the number of CPUs.
        seconds: Shortest duration of each measurement, without the start of the workers.
        rounds: Number of times that each measurement is made.
        progress: Called with the number of finished measurements and the number of all measurements.

    Raises:
        OptionError: An option is out of range, or no record of the store has an image.
        TypeError: An option is not a number.
        StoreError: There is no store, or it cannot be read.
        DamagedImageError: An image cannot be decoded.
    """
    for name, value in (("batch_size", batch_size), ("size", size), ("rounds", rounds)):
        whole_number(name, value, 1)
    real_number("seconds", seconds, above=True)
    if workers is not None and not workers:
        raise OptionError(f"workers must be one or more numbers, got {workers}")
    cpus = cpu_count()
    counts = {1, max(1, cpus // 2), cpus} if workers is None else {whole_number("workers", n, 1) for n in workers}
    # Load only the image, because a record may have no label.
    with StoreDataset(open_store(place), decode=RandomResizedCrop(size), fields=("image",)) as dataset:
        nbytes = dataset.store.column("nbytes")
        order = EndlessShuffle(np.flatnonzero(nbytes))
        images = len(order.indices)
        if not images:
            raise OptionError(f"{dataset.root}: no record has an image, so there is nothing to measure")
        contenders: dict[str, Callable[[], tuple[float, Work]]] = {
            "reading": partial(_run_calls, dataset.records, order, batch_size, seconds),
            "reading + decoding": partial(_run_calls, dataset.__getitems__, order, batch_size, seconds),
        }
        for count in sorted(counts):
            for kind in ("threads", "processes"):
                run = partial(_run_loader, dataset, order, kind, count, batch_size, seconds)
                contenders[f"worker {kind}: {count}"] = run
        default = choose_workers(create_fetcher(dataset), max(counts))
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        work = dict.fromkeys(contenders, Work())
        for done, name in enumerate([*contenders] * rounds):
            progress(done, rounds * len(contenders))
            images_per_s, worked = contenders[name]()
            rates[name].append(images_per_s)
            work[name] += worked
        progress(rounds * len(contenders), rounds * len(contenders))
    measurements = [
        Measurement(name=name, images_per_s=median(some), rounds=tuple(some)) for name, some in rates.items()
    ]
    fastest = max(measurements[2:], key=lambda one: one.images_per_s)
    advice = "" if default in fastest.name else f"Pass worker_type to create_loader, which uses {default} here. "
    limit, share = find_limit(work[fastest.name])
    remedy = _REMEDIES[limit] if max(counts) >= cpus else f"Try more workers: this machine has {cpus} CPUs."
    return Benchmark(
        place=dataset.root,
        images=images,
        image_bytes=float(nbytes.sum()) / images,
        cpus=cpus,
        measurements=tuple(measurements),
        limit=limit,
        limit_share=share,
        verdict=f"The fastest loader gives {fastest.images_per_s:,.0f} images/s ({fastest.name}). {advice}"
        f"The limit is {limit}: {share:.0%} of the workers' time. {remedy}",
    )


def find_limit(work: Work) -> tuple[str, float]:
    """Return the task on which the workers spend most of their time, and the fraction of this time, 0 to 1."""
    seconds, limit = max(zip((work.read, work.decode, work.collate), _REMEDIES, strict=True))
    return limit, seconds / work.total


def _run_calls(
    take: Callable[[list[int]], object], order: EndlessShuffle, batch_size: int, seconds: float
) -> tuple[float, Work]:
    indices = iter(order)
    return _repeat(lambda: take([*islice(indices, batch_size)]), batch_size, seconds), Work()


def _run_loader(
    dataset: StoreDataset,
    order: EndlessShuffle,
    kind: Literal["threads", "processes"],
    count: int,
    batch_size: int,
    seconds: float,
) -> tuple[float, Work]:
    with create_loader(
        dataset,
        batch_size=batch_size,
        is_training=True,
        device=None,
        normalize=None,
        sampler=order,
        num_workers=count,
        worker_type=kind,
    ) as loader:
        batches = iter(loader)
        # Processes finish batches almost at the same time, so batches arrive in groups. Each step takes one group.
        # The first batches are not measured, because some workers make them while other workers still start.
        for _ in range(1 + count):
            next(batches)
        images_per_s = _repeat(lambda: [next(batches) for _ in range(count)], count * batch_size, seconds)
        return images_per_s, loader.stats().work or Work()


def _repeat(take: Callable[[], object], images: int, seconds: float) -> float:
    """Call ``take`` for some seconds, and return the images per second. Each call loads ``images`` images."""
    calls, begun = 0, time.perf_counter()
    while True:
        take()
        calls += 1
        if (elapsed := time.perf_counter() - begun) >= seconds:
            return calls * images / elapsed
