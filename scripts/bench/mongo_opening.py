"""Measure time and memory to open and query a MongoDataset of many small records, on a separate mongod.

python scripts/bench/mongo_opening.py BENCH [--records 1000000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader import Record
from dbloader.records.record import encode
from dbloader.stores.open import create_store

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.mongo import Mongod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.record import EncodedRecord

# Runs in a fresh process: imports first, then opens and asks.
MEASURE = """
import json, sys, time, pickle
import numpy, torch, PIL.Image, pymongo
from dbloader import MongoDataset
def memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1000
place = sys.argv[1]
before = memory()
def timed(name, function):
    started, held = time.perf_counter(), memory()
    result = function()
    print(json.dumps([name, time.perf_counter() - started, memory() - held]))
    return result
dataset = timed("opening", lambda: MongoDataset(place, decode=None))
timed("one record", lambda: dataset[len(dataset) // 2])
timed("1,000 records, 64 at a time", lambda: [dataset.__getitems__(range(i, i + 64)) for i in range(0, 1000, 64)])
timed("targets", lambda: dataset.targets)
timed("names", lambda: dataset.names)
timed("find", lambda: dataset.find(dataset.names[7]))
for query in (
    {"label": 3},
    {"label": {"$in": list(range(100))}},
    {"label": {"$lt": 500}, "width": {"$gte": 256}},
    {"width": {"$gte": 256}},
    {"caption": "number 77"},
    {},
):
    subset = timed(f"query {query}"[:60], lambda: MongoDataset(place, decode=None, query=query))
    subset.close()
dataset.close()
"""


def encoded(count: int) -> Iterator[EncodedRecord]:
    for index in range(count):
        name = f"class{index % 1000:03d}/{index:010d}.jpg"
        fields = {"caption": f"number {index}"}
        yield encode(Record(name, index % 1000, b"\xff\xd8 a small record", 200 + index % 100, 200, fields=fields))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time opening.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--records", type=int, nargs="*", default=[1_000_000])
    options = parser.parse_args()
    print("\nMongoDataset over small records, medians of 5 fresh processes. Memory is the increase during a")
    print("step: for the opening, the increase after the imports.\n")
    with tempfile.TemporaryDirectory(dir=options.bench) as folder, Mongod(Path(folder) / "mongod") as server:
        for count in options.records:
            place = server.place("bench", f"small{count}")
            started = time.perf_counter()
            with create_store(place) as writer:
                writer.write(encoded(count))
                writer.finish(classes=[f"class{label:03d}" for label in range(1000)])
            print(f"| {count:,} records (written in {time.perf_counter() - started:.0f} s) | ms | MB |")
            print("| :--- | ---: | ---: |")
            runs: dict[str, list[tuple[float, float]]] = {}
            for _ in range(5):
                command = [sys.executable, "-c", MEASURE, place]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                for name, seconds, megabytes in map(json.loads, output.splitlines()):
                    runs.setdefault(name, []).append((seconds, megabytes))
            for name, figures in runs.items():
                seconds, megabytes = (statistics.median(column) for column in zip(*figures, strict=True))
                print(f"| {name} | {1000 * seconds:,.1f} | {megabytes:.1f} |")


if __name__ == "__main__":
    main()
