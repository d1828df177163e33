"""Read batches in random order from the disk, with and without hints to the kernel.

python scripts/bench/cold.py BENCH [--batches 25] [--rounds 5]      (as root: it empties the page cache)
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from page_cache import bring_into_memory, empty_cache

from dbloader import open_store
from dbloader.stores.lmdb.readahead import ReadAhead

BATCH = 64


def read_from_disk() -> int:
    """Return the number of bytes that this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def epoch(place: Path, seed: int, batches: int) -> tuple[float, float]:
    """Return records/s, and the MB read from the disk."""
    with open_store(place) as store:
        order = random.Random(seed).sample(range(len(store)), BATCH * batches)
        before, started = read_from_disk(), time.perf_counter()
        for start in range(0, len(order), BATCH):
            store.read(order[start : start + BATCH])
        return len(order) / (time.perf_counter() - started), (read_from_disk() - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time cold reading.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    place = options.bench / "out.lmdb"
    hint = ReadAhead.prefetch
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(options.rounds):
        for cache in ("cold", "warm"):
            for hinted in ("no", "yes"):
                ReadAhead.prefetch = hint if hinted == "yes" else lambda *_: None  # type: ignore[method-assign]
                if cache == "cold":
                    empty_cache(place)
                else:
                    bring_into_memory(place)
                result = epoch(place, number, options.batches)
                results.setdefault((cache, hinted), []).append(result)
    nbytes = place.stat().st_size / 1e6
    print(f"\nBatches of {BATCH} in random order, {BATCH * options.batches:,} records of a file of {nbytes:,.0f} MB, "
          f"one process, medians of {options.rounds}:\n")  # fmt: skip
    print("| page cache | hints | records/s | MB read from the disk |")
    print("| --- | --- | ---: | ---: |")
    for (cache, hinted), rounds in results.items():
        speed, read = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {cache} | {hinted} | {speed:,.0f} | {read:,.0f} |")


if __name__ == "__main__":
    main()
