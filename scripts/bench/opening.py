"""Measure time and memory to open stores of up to ten million small records, in a process and in a worker.

python scripts/bench/opening.py BENCH [--records 1000 10000000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader import LMDBDataset, Record
from dbloader.records.record import encode
from dbloader.stores.open import create_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.record import EncodedRecord

# Runs in a fresh process: imports first, then opens and reads.
MEASURE = """
import sys, time, os, pickle
import numpy, torch, PIL.Image
from dbloader import LMDBDataset
from dbloader.decoding import decode_pil
def memory(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) / 1000
before, before_anon = memory("VmRSS"), memory("RssAnon")
started = time.perf_counter()
dataset = LMDBDataset(sys.argv[1], decode=None)
opened = time.perf_counter() - started
opened_mb = memory("VmRSS") - before
n = len(dataset)
for i in range(0, n, max(1, n // 1000)):
    dataset[i]
print(opened * 1000, opened_mb, memory("RssAnon") - before_anon)
"""


def encoded(count: int) -> Iterator[EncodedRecord]:
    for index in range(count):
        yield encode(Record(f"class{index % 1000:03d}/{index:010d}.jpg", index % 1000, b"\xff\xd8 a small record"))


def in_worker(pickled: bytes, answer: multiprocessing.connection.Connection) -> None:
    """Do what a DataLoader worker does: unpickle the dataset, and open the store at the first read."""
    before = resident()
    started = time.perf_counter()
    dataset = pickle.loads(pickled)  # noqa: S301 - made below
    dataset[len(dataset) // 2]
    answer.send((1000 * (time.perf_counter() - started), resident() - before))


def resident() -> float:
    """Return this process's memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time opening.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--records", type=int, nargs="*", default=[1_000, 1_000_000, 10_000_000])
    options = parser.parse_args()
    print("\nOpening a store of small records, and reading 1,000 of them, medians of 5 fresh processes. Memory is the")
    print("increase after the imports. Worker: a DataLoader worker unpickles the dataset and reads a first record.\n")
    print("| records | file MB | written in s | opened in ms | opened MB | private MB read | worker ms | worker MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in options.records:
        place = options.bench / f"small-{count}.lmdb"
        started = time.perf_counter()
        with create_store(place, overwrite=True) as writer:
            writer.write(encoded(count))
            writer.finish(classes=[f"class{label:03d}" for label in range(1000)])
        written = time.perf_counter() - started
        runs = []
        for _ in range(5):
            command = [sys.executable, "-c", MEASURE, str(place)]
            output = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append([float(figure) for figure in output.stdout.split()])
        milliseconds, opened_mb, private_mb = (statistics.median(figures) for figures in zip(*runs, strict=True))
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=in_worker, args=(pickle.dumps(LMDBDataset(place, decode=None)), sender))
        worker.start()
        worker_ms, worker_mb = receiver.recv()
        worker.join()
        print(f"| {count:,} | {place.stat().st_size / 1e6:,.1f} | {written:.1f} | {milliseconds:.1f} | {opened_mb:.1f} "
              f"| {private_mb:.1f} "
              f"| {worker_ms:.1f} | {worker_mb:.1f} |", flush=True)  # fmt: skip
        place.unlink()


if __name__ == "__main__":
    main()
