"""Train from an origin of a given speed, directly and through a cache. Measure first batch, stalls and images/s.

PYTHONPATH=scripts python scripts/bench/node_cache.py BENCH CORPUS [--cache FOLDER] [--mbs 100 500 1000]

CORPUS is a folder of images in folders of classes. Only the speed of the origin is emulated: its files are named
pipes, through which --mbs megabytes pass in a second. The dataset, its cache with the fetcher's process, the sampler
and the loader are real. Images are not decoded. A step sleeps as long as its batch takes at the speed of the training.
A cold cache is no faster than the disk of --cache takes new files: give one that is faster than the origin.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from machine import describe_machine
from page_cache import bring_into_memory
from simulation.slow_folder import serve
from simulation.throttle import Throttle

from dbloader import LMDBDataset, convert, create_loader
from dbloader.caching.folder import read_stats
from dbloader.sampling import BlockShuffleSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS, LANES, BATCH = 64, 4, 64
ROWS = ("directly", "cold cache", "warm cache", "cache of half the data: first epoch", "second epoch")
FORK = multiprocessing.get_context("fork")


class Measured(NamedTuple):
    """An epoch: seconds until its first batch, percent of the remaining time spent waiting, images/s, MB fetched."""

    first_s: float
    stall_percent: float
    images_per_s: float
    fetched: float


@contextmanager
def slow_origin(store: Path, folder: Path, rate: float) -> Iterator[Path]:
    """Serve the store as a folder with a given speed, in bytes/s."""
    shutil.rmtree(folder, ignore_errors=True)
    mine, theirs = FORK.Pipe()
    server = FORK.Process(target=serve, args=(store, folder, rate, theirs), daemon=True)
    server.start()
    mine.recv()
    try:
        yield folder
    finally:
        server.kill()
        server.join()
        shutil.rmtree(folder)


def train(began: float, dataset: LMDBDataset, training_mbs: float, image_bytes: float, epochs: int) -> list[Measured]:
    """Train some epochs. The first one began at ``began``, when the dataset was opened."""
    sampler = BlockShuffleSampler(dataset, None, LANES, lanes=LANES, drop_last=True)
    loader: Any = create_loader(
        dataset, 1, BATCH, sampler=sampler, transform=None, collate_fn=list, device=None, normalize=None,
        num_workers=4, worker_type="threads",
    )  # fmt: skip
    found = []
    cache = getattr(dataset.store, "_path", "")
    with closing(loader):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            before, first = read_stats(cache).fetched_bytes, 0.0
            for batch in loader:
                first = first or time.perf_counter() - began
                time.sleep(len(batch) * image_bytes / (training_mbs * 1e6))
            stats = loader.stats()
            fetched = read_stats(cache).fetched_bytes - before
            found.append(Measured(first, 100 * stats.waiting, stats.samples_per_s, fetched / 1e6))
            began = time.perf_counter()
    return found


def one_round(store: Path, cache: Path, mbs: float, training_mbs: float) -> list[Measured]:
    """Return what each of ROWS measures."""
    size = sum(path.stat().st_size for path in (store / "shards").iterdir())
    throttle = Throttle(mbs * 1e6)

    def read_slowly(image: bytes) -> bytes:
        throttle.wait(len(image))
        return image

    began = time.perf_counter()
    with LMDBDataset(store, decode=read_slowly) as dataset:
        image_bytes = dataset.manifest.image_bytes / len(dataset)
        found = train(began, dataset, training_mbs, image_bytes, 1)
    with slow_origin(store, store.with_name("slow.lmdb"), mbs * 1e6) as origin:
        for cache_bytes, epochs in ((None, 1), (None, 1), (size // 2, 2)):
            if cache_bytes:
                shutil.rmtree(cache)
            began = time.perf_counter()
            with LMDBDataset(origin, decode=None, cache=cache, cache_bytes=cache_bytes) as dataset:
                found += train(began, dataset, training_mbs, image_bytes, epochs)
            wait_for_end(cache)
    shutil.rmtree(cache)
    return found


def wait_for_end(cache: Path) -> None:
    """Wait until the fetcher has ended."""
    while (cache / "fetcher.sock").exists():
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a cache of shards.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cache", type=Path, help="folder for the caches, such as /dev/shm; default: BENCH")
    parser.add_argument("--mbs", type=float, nargs="+", default=[100, 500, 1000], help="speeds of the origin, MB/s")
    parser.add_argument("--training-mbs", type=float, default=300, help="what the training reads, MB/s")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = options.bench / "node_cache"
    folder.mkdir(parents=True, exist_ok=True)
    store, cache = folder / "store.lmdb", (options.cache or folder) / "dbloader-node-cache"
    if not store.exists():
        convert(options.corpus, store, shards=SHARDS, workers=2, check="none", shuffle_seed=0)
    bring_into_memory(store)
    print(describe_machine())
    print(
        "| origin, MB/s | | first batch, s | stall, % | images/s | MB fetched |\n| --: | --- | --: | --: | --: | --: |"
    )
    for mbs in options.mbs:
        rounds = [one_round(store, cache, mbs, options.training_mbs) for _ in range(options.rounds)]
        for row, measured in zip(ROWS, zip(*rounds, strict=True), strict=True):
            first, stall, speed, fetched = (statistics.median(values) for values in zip(*measured, strict=True))
            print(f"| {mbs:,.0f} | {row} | {first:.2f} | {stall:.1f} | {speed:,.0f} | {fetched:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
