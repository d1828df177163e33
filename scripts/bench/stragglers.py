"""Measure how much of the time of all workers is used where a few samples take 20 times as long as the others.

python scripts/bench/stragglers.py BENCH [--workers 2 8 16] [--rounds 3] [--peer PYTHON ...]     (BENCH is not used)

A sample sleeps, so any number of workers can be measured on a few cores. The ideal time is the seconds that all samples
took, as each one measured it, divided by the number of workers. Each share is the ideal time divided by the time from
``iter()`` to the last batch. The first epoch of worker processes contains their start; the second does not, except with
Grain and DALI. Every run checks the order of its samples. ``--peer`` names a Python that has Grain or NVIDIA DALI;
this program then runs there too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SAMPLES, BATCH = 3200, 32
SLOW_SHARE, SLOW_TIMES = 0.05, 20


class Sleeping:
    """Samples that sleep ``each_s`` seconds, or 20 times as long. A sample contains its index and its seconds."""

    def __init__(self, each_s: float, nbytes: int) -> None:
        self.each_s = each_s
        self.nbytes = nbytes
        chosen = np.random.default_rng(0).choice(SAMPLES, int(SLOW_SHARE * SAMPLES), replace=False)
        self.slow = frozenset(chosen.tolist())

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        began = time.perf_counter()
        sample = np.zeros(self.nbytes, np.uint8)
        sample[:8].view(np.int64)[0] = index
        time.sleep(self.each_s * (SLOW_TIMES if index in self.slow else 1))
        sample[8:16].view(np.float64)[0] = time.perf_counter() - began
        return sample


def dbloader_with(worker_type: Any) -> Callable[[Sleeping, int], Any]:
    def make(samples: Sleeping, workers: int) -> Any:
        from dbloader import create_loader

        options: dict[str, Any] = {"transform": None, "normalize": None, "device": None}
        loader = create_loader(samples, None, BATCH, num_workers=workers, worker_type=worker_type, **options)
        return lambda: loader

    return make


def torch_loader(samples: Any, workers: int) -> Any:
    from torch.utils.data import DataLoader

    loader = DataLoader(samples, BATCH, num_workers=workers, persistent_workers=True)
    return lambda: loader


def grain_with(kind: str) -> Callable[[Sleeping, int], Any]:
    def make(samples: Sleeping, workers: int) -> Any:
        import grain

        dataset = grain.MapDataset.source(samples)
        if kind == "processes":
            batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1)).batch(BATCH)
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
        else:
            # This buffer is measured in samples, and holds four batches.
            options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=4 * BATCH)
            batches = dataset.to_iter_dataset(options).batch(BATCH)
        return lambda: batches

    return make


def dali(samples: Sleeping, workers: int) -> Any:
    from nvidia.dali import fn, pipeline_def

    def sample(info: Any) -> np.ndarray[Any, Any]:
        if info.idx_in_epoch >= SAMPLES:
            raise StopIteration
        return samples[info.idx_in_epoch]

    @pipeline_def  # type: ignore[untyped-decorator] # it ships no types
    def pipeline() -> Any:
        return fn.external_source(sample, batch=False, parallel=True)

    options = {"batch_size": BATCH, "num_threads": 1, "device_id": None, "prefetch_queue_depth": 2}
    made = pipeline(py_num_workers=workers, py_start_method="fork", **options)

    def epoch() -> Any:
        made.build()
        for _ in range(SAMPLES // BATCH):
            (batch,) = made.run()
            yield batch.as_array()
        with contextlib.suppress(StopIteration):
            made.run()
        made.reset()

    return epoch


CONTENDERS: dict[str, tuple[str, Callable[[Sleeping, int], Any]]] = {
    "torch's DataLoader": ("torch", torch_loader),
    "create_loader, threads": ("dbloader", dbloader_with("threads")),
    "create_loader, processes": ("dbloader", dbloader_with("processes")),
    "Grain, threads": ("grain", grain_with("threads")),
    "Grain, processes": ("grain", grain_with("processes")),
    "NVIDIA DALI, parallel external_source": ("nvidia.dali", dali),
}


OURS = ("torch", "dbloader")  # measured in this program's own environment


def share_of_ideal(batches: Iterable[Any], workers: int, *, in_order: bool) -> float:
    """Return the ideal seconds divided by the seconds of an epoch; check that it has all samples, in order."""
    began = time.perf_counter()
    seen = [np.ascontiguousarray(np.asarray(batch)[:, :16]) for batch in batches]
    seconds = time.perf_counter() - began
    columns = np.concatenate(seen)
    order, work = columns[:, :8].view(np.int64)[:, 0], columns[:, 8:].copy().view(np.float64)
    assert len(order) == SAMPLES, len(order)
    assert not in_order or np.array_equal(order, np.arange(SAMPLES)), "the order changed"
    return float(work.sum()) / workers / seconds


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def measure(options: argparse.Namespace, workers: int) -> dict[str, list[float]]:
    """Return the shares of the first and the second epoch of each contender that is installed."""
    samples = Sleeping(options.each_ms / 1000, options.nbytes)
    shares = {}
    for name, (module, make) in CONTENDERS.items():
        if not installed(module) or options.only not in name or (options.json == "peer" and module in OURS):
            continue
        epochs = make(samples, workers)
        # Grain deals samples to processes in turn, so its batches differ.
        check = {"in_order": name != "Grain, processes"}
        shares[name] = [share_of_ideal(epochs(), workers, **check) for _ in range(2)]
        if hasattr(epochs(), "close"):
            epochs().close()
    return shares


def in_peer(python: str, options: argparse.Namespace, workers: int) -> dict[str, list[float]]:
    where = "here" if python == sys.executable else "peer"
    command = [python, __file__, "--json", where, "--workers", str(workers), "--each-ms", str(options.each_ms)]
    command += ["--nbytes", str(options.nbytes), "--only", options.only]
    shares: dict[str, list[float]] = json.loads(subprocess.check_output(command, text=True))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure loading where a few samples take 20 times as long.")
    parser.add_argument("bench", nargs="?")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each-ms", type=float, default=5)
    parser.add_argument("--nbytes", type=int, default=64 * 64 * 3, help="bytes of a sample")
    parser.add_argument("--only", default="", help="part of the names of the contenders")
    parser.add_argument("--peer", nargs="*", default=[], help="Pythons that have Grain or NVIDIA DALI")
    parser.add_argument("--json", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json:
        json.dump(measure(options, options.workers[0]), sys.stdout)
        return
    print(f"Share of the ideal rate, first and second epoch, medians of {options.rounds}; {options.each_ms:g} ms:\n")
    print(f"| loader | {' | '.join(f'{workers} workers' for workers in options.workers)} |")
    print(f"| --- |{' ---: |' * len(options.workers)}")
    rows: dict[str, list[str]] = {}
    for workers in options.workers:
        runs: dict[str, list[list[float]]] = {}
        for _ in range(options.rounds):
            for python in [sys.executable, *options.peer]:
                for name, shares in in_peer(python, options, workers).items():
                    runs.setdefault(name, []).append(shares)
        for name, epochs in runs.items():
            first, second = (statistics.median(column) for column in zip(*epochs, strict=True))
            rows.setdefault(name, []).append(f"{first:.3f}, {second:.3f}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
