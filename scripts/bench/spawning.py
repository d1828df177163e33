"""Measure the first batch of spawned workers, against spawned workers that only import torch.

python scripts/bench/spawning.py STORE [--workers 8] [--rounds 5]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time


def only_torch(answer: multiprocessing.connection.Connection) -> None:
    import torch

    answer.send(torch.__version__)


def bare_workers(workers: int) -> float:
    """Return the seconds until all spawned processes have imported torch."""
    began = time.perf_counter()
    answers = []
    for _ in range(workers):
        reading, writing = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=only_torch, args=(writing,))
        process.start()
        answers.append((process, reading))
    for _, reading in answers:
        reading.recv()
    seconds = time.perf_counter() - began
    for process, _ in answers:
        process.join()
    return seconds


def first_batch(place: str, workers: int) -> tuple[float, float]:
    """Return the seconds until each worker can have made a batch, and until the first batch."""
    from dbloader import LMDBDataset, create_loader

    options = {"normalize": None, "device": None, "worker_type": "processes", "num_workers": workers}
    loader = create_loader(LMDBDataset(place), 224, 64, is_training=True, **options)  # type: ignore[arg-type]
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    for _ in range(workers - 1):
        next(iterator)
    every = time.perf_counter() - began
    loader.close()
    return first, every


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the first batch of spawned workers.")
    parser.add_argument("store")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    workers = options.workers
    runs = [(bare_workers(workers), *first_batch(options.store, workers)) for _ in range(options.rounds)]
    bare, first, every = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{workers} spawned workers, medians of {options.rounds}:")
    print(f"all have imported torch {bare:.2f} s, first batch {first:.2f} s, as many batches as workers {every:.2f} s")


if __name__ == "__main__":
    main()
