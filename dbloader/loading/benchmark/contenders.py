"""The ways to get images that take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch.utils.data import DataLoader, RandomSampler

from dbloader.batches.timed import now
from dbloader.decoding.full import DecodeTensor
from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.loading.benchmark.images import LONG, EndlessShuffle, TimedRun
from dbloader.loading.create import create_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.loading.benchmark.folder import FolderDataset
    from dbloader.loading.benchmark.images import Images
    from dbloader.loading.benchmark.report import Kind


class Contender(NamedTuple):
    """One way to get images.

    Attributes:
        name: In words.
        kind: As in Measurement.
        workers: As in Measurement.
        run: Measures it for some seconds at least.
    """

    name: str
    kind: Kind
    workers: int
    run: Callable[[float], TimedRun]


def take(batches: Iterator[Any], batch_size: int, workers: int, seconds: float) -> TimedRun:
    """Take batches and does nothing with them.

    Worker processes give theirs in turn, one each, almost at once: so they are counted in rounds of one from each.
    """
    burst, started = max(1, workers), now()
    next(batches)
    first_s = now() - started
    for _ in range(burst):  # some were made while the last worker was starting
        next(batches)
    count, begun = 0, now()
    while True:
        for _ in range(burst):
            next(batches)
        count += burst * batch_size
        if (elapsed := now() - begun) >= seconds:
            return TimedRun(count, elapsed, first_s=first_s)


def run_loader(
    images: Images, workers: int, kind: Literal["threads", "processes"], batch_size: int, size: int, seconds: float
) -> TimedRun:
    """Measure the batches of `create_loader`, as a training on this machine's processors gets them."""
    with create_loader(
        images.decoded_by(RandomResizedCrop(size)),
        batch_size=batch_size,
        input_size=size,
        is_training=True,
        transform=None,
        device=None,
        mean=None,
        std=None,
        sampler=EndlessShuffle(images.indices),
        num_workers=workers,
        workers=kind,
    ) as loader:
        run = take(iter(loader), batch_size, workers, seconds)
        return run._replace(work=loader.stats().work)


def run_folder(dataset: FolderDataset, workers: int, batch_size: int, seconds: float) -> TimedRun:
    """Measure the batches of torch's DataLoader of image files."""
    loader = DataLoader(
        dataset, batch_size, sampler=RandomSampler(dataset, num_samples=max(LONG, len(dataset))), num_workers=workers
    )
    return take(iter(loader), batch_size, workers, seconds)


def all_contenders(
    images: Images, folder: FolderDataset | None, workers: Sequence[int], batch_size: int, size: int
) -> list[Contender]:
    """Return all that take turns: reading and decoding by themselves, then the loaders with each number of workers."""
    crop = RandomResizedCrop(size)
    found = [
        Contender("read", "read", 0, lambda seconds: images.read(batch_size, seconds)),
        Contender("decode whole", "decode", 0, lambda seconds: images.decode(DecodeTensor(), seconds)),
        Contender("decode, crop and resize", "crop", 0, lambda seconds: images.decode(crop, seconds)),
    ]
    for count in workers:
        found += [_loader(images, kind, count, batch_size, size) for kind in _kinds(count)]
    if folder is not None:
        found += [_folder(folder, count, batch_size) for count in workers]
    return found


def _kinds(workers: int) -> tuple[Literal["threads", "processes"], ...]:
    return ("threads", "processes") if workers else ("threads",)  # without workers there is no difference


def _loader(
    images: Images, kind: Literal["threads", "processes"], workers: int, batch_size: int, size: int
) -> Contender:
    return Contender(
        f"batches, {told(kind, workers)}",
        kind,
        workers,
        lambda seconds: run_loader(images, workers, kind, batch_size, size, seconds),
    )


def _folder(folder: FolderDataset, workers: int, batch_size: int) -> Contender:
    return Contender(
        f"folder, {told('processes', workers)}",
        "folder",
        workers,
        lambda seconds: run_folder(folder, workers, batch_size, seconds),
    )


def told(kind: Literal["threads", "processes"], workers: int) -> str:
    """Return workers in words: "2 threads", "1 process", "no workers"."""
    one = {"threads": "thread", "processes": "process"}[kind]
    return "no workers" if not workers else f"1 {one}" if workers == 1 else f"{workers} {kind}"
