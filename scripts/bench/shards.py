"""Measure folders of shards: opening, random batches against one file, planning and publishing, and converting.

python scripts/bench/shards.py BENCH --corpus CORPUS [--records 100000 1000000] [--only opening batches publishing ...]
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import simplejpeg

from dbloader import LMDBDataset, Record, convert, open_store
from dbloader.conversion.parts.make_plan import plan_parts
from dbloader.conversion.settings import Settings
from dbloader.records.record import encode
from dbloader.stores.lmdb.publish_shards import index_shards, put_manifest
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable
from dbloader.stores.open import create_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dbloader.records.record import EncodedRecord

# Runs in a fresh process: imports first, then opens, and reads a record of each of 512 shards.
MEASURE = """
import os, sys, time
from dbloader import open_store
import dbloader.stores.lmdb.store
def memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1000
before, descriptors = memory(), len(os.listdir("/proc/self/fd"))
started, used = time.perf_counter(), time.process_time()
store = open_store(sys.argv[1])
length = len(store)
opened, used = time.perf_counter() - started, time.process_time() - used
store.read([0])
first = time.perf_counter() - started
opened_mb = memory() - before
for index in range(0, length, max(1, length // 512)):
    store.read([index])
descriptors = len(os.listdir("/proc/self/fd")) - descriptors
print(1000 * opened, 1000 * used, 1000 * first, opened_mb, memory() - before, descriptors)
"""


def small(count: int) -> Iterator[EncodedRecord]:
    for index in range(count):
        yield encode(Record(f"class{index % 1000:03d}/{index:010d}.jpg", index % 1000, b"\xff\xd8 a small record"))


def write(path: Path, records: Iterable[EncodedRecord]) -> None:
    with create_store(path) as writer:
        writer.write(records)
        writer.finish()


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SHARD_FOLDER).mkdir(parents=True)
    return folder


def copied(folder: Path, shards: int) -> Path:
    """Make a store of copies of one shard of 10 records, without an index, which opening and reading do not need."""
    empty(folder)
    first = folder / SHARD_FOLDER / f"{0:05}.lmdb"
    write(first, small(10))
    put_manifest(folder, index_shards(folder, [first.name], [None]))
    table = ShardTable.decode((folder / MANIFEST_FILE).read_bytes(), str(folder))
    rows = [table.shards[0]._replace(name=f"{number:05}.lmdb") for number in range(shards)]
    for row in rows[1:]:
        shutil.copyfile(first, folder / SHARD_FOLDER / row.name)
    whole = table._replace(shards=rows, manifest=replace(table.manifest, length=10 * shards))
    (folder / MANIFEST_FILE).write_bytes(whole.encode())
    return folder


def measure_opening(bench: Path) -> None:
    print("\n| shards | opened in ms | of these CPU | first record in ms | MB then | MB after 512 | descriptors |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for shards in (1, 64, 1024, 20_000):
        place = copied(bench / "opened.lmdb", shards)
        runs = []
        for _ in range(5):
            command = [sys.executable, "-c", MEASURE, str(place)]
            output = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append([float(figure) for figure in output.stdout.split()])
        row = [statistics.median(figures) for figures in zip(*runs, strict=True)]
        shown = (*(f"{value:.1f}" for value in row[:5]), f"{row[5]:.0f}")
        print(f"| {shards:,} | {' | '.join(shown)} |", flush=True)
        shutil.rmtree(place)


def divided(place: Path, folder: Path, shards: int) -> Path:
    """Divide the records of a store among ``shards`` shards of a new store."""
    empty(folder)
    names = [f"{number:05}.lmdb" for number in range(shards)]
    with open_store(place) as store:
        for number, name in enumerate(names):
            indices = range(len(store) * number // shards, len(store) * (number + 1) // shards)
            write(folder / SHARD_FOLDER / name, (encode(record) for record in store.read(indices)))
    put_manifest(folder, index_shards(folder, names, [None] * shards))
    return folder


def measure_batches(bench: Path, corpus: Path, rounds: int) -> None:
    one = bench / "one.lmdb"
    convert(corpus, one, check="none", overwrite=True)
    places = [one, *(divided(one, bench / f"shards-{shards}.lmdb", shards) for shards in (64, 1024))]
    sets = [LMDBDataset(place, decode=simplejpeg.decode_jpeg, fields=["image"]) for place in places]
    uses: dict[str, list[Callable[[list[int]], object]]] = {
        "undecoded": [dataset.store.read for dataset in sets],
        "decoded": [dataset.__getitems__ for dataset in sets],
    }
    for dataset in sets:
        for index in range(0, len(dataset), 64):
            dataset.store.read(range(index, min(index + 64, len(dataset))))
    generator = random.Random(1)
    print("\n| batches of 256 | one file, ms | 64 shards, ms | 1,024 shards, ms | 64 / one file | 1,024 / one file |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, calls in uses.items():
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            indices = [generator.randrange(len(sets[0])) for _ in range(256)]
            for call, took in zip(calls, times, strict=True):
                started = time.perf_counter()
                call(indices)
                took.append(time.perf_counter() - started)
        middle = [1000 * statistics.median(took) for took in times]
        speeds = [statistics.median(a / b for a, b in zip(times[0], took, strict=True)) for took in times[1:]]
        row = [*(f"{value:.1f}" for value in middle), *(f"{value:.2f}" for value in speeds)]
        print(f"| {name} | {' | '.join(row)} |", flush=True)
    for dataset in sets:
        dataset.close()
    one.unlink()
    for place in places[1:]:
        shutil.rmtree(place)


def measure_publishing(bench: Path, counts: list[int]) -> None:
    print("\n| records | one file written in s | plan in s | plan MB | 64 shards published in s | index MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in counts:
        source, folder = bench / "source.lmdb", empty(bench / "published.lmdb")
        source.unlink(missing_ok=True)
        took = []
        started = time.perf_counter()
        write(source, small(count))
        took.append(time.perf_counter() - started)
        started = time.perf_counter()
        plan = plan_parts(Settings(source=source, check="none"), bench / "planned.lmdb", 64, overwrite=True)
        took.append(time.perf_counter() - started)
        planned = sum(path.stat().st_size for path in plan.folder.rglob("*") if path.is_file())
        names = [f"{number:05}.lmdb" for number in range(64)]
        for name in names:
            write(folder / SHARD_FOLDER / name, small(count // 64))
        started = time.perf_counter()
        put_manifest(folder, index_shards(folder, names, [None] * 64))
        took.append(time.perf_counter() - started)
        index = next(folder.glob("index-*")).stat().st_size
        row = f"{took[0]:.1f} | {took[1]:.1f} | {planned / 1e6:,.0f} | {took[2]:.1f} | {index / 1e6:,.0f}"
        print(f"| {count:,} | {row} |", flush=True)
        source.unlink()
        shutil.rmtree(folder)
        shutil.rmtree(plan.folder)


def measure_converting(bench: Path, corpus: Path, rounds: int) -> None:
    cases = {
        "one file, 1 thread": ["--workers", "1"],
        "one file, 2 threads": ["--workers", "2"],
        "8 shards, 1 process": ["--shards", "8", "--workers", "1"],
        "8 shards, 2 processes": ["--shards", "8", "--workers", "2"],
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    images = sum(1 for path in corpus.rglob("*") if path.is_file())
    place = bench / "converted.lmdb"
    for _ in range(rounds):
        for name, options in cases.items():
            command = [sys.executable, "-m", "dbloader", "convert", str(corpus), str(place), "-q", *options]
            started = time.perf_counter()
            subprocess.run(command, check=True)
            times[name].append(time.perf_counter() - started)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    first = times["one file, 1 thread"]
    print("\n| convert | images/s | speed / 1 thread |\n| --- | ---: | ---: |")
    for name, took in times.items():
        speed = statistics.median(a / b for a, b in zip(first, took, strict=True))
        print(f"| {name} | {images / statistics.median(took):,.0f} | {speed:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure folders of shards.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--records", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["opening", "batches", "publishing", "converting"])
    options = parser.parse_args()
    options.bench.mkdir(parents=True, exist_ok=True)
    if "opening" in options.only:
        measure_opening(options.bench)
    if "batches" in options.only:
        measure_batches(options.bench, options.corpus, 10 * options.rounds)
    if "publishing" in options.only:
        measure_publishing(options.bench, options.records)
    if "converting" in options.only:
        measure_converting(options.bench, options.corpus, options.rounds)


if __name__ == "__main__":
    main()
