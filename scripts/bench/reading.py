"""Measure LMDBDataset.__getitems__ in random order, in one process, from the page cache.

python scripts/bench/reading.py BENCH [--records 5000] [--nbytes 100000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import numpy as np

from dbloader import LMDBDataset, Record, write_store

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 7


def rate(epoch: Callable[[], int]) -> float:
    """Return the median items/s of several epochs, after one epoch that warms the cache."""
    epoch()
    rates = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        count = epoch()
        rates.append(count / (time.perf_counter() - started))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--nbytes", type=int, default=100_000)
    options = parser.parse_args()
    place = options.bench / "raw.lmdb"
    noise = np.random.default_rng(0)
    records = (Record(f"{i:08d}", i % 10, noise.bytes(options.nbytes)) for i in range(options.records))
    write_store(records, place, overwrite=True)
    dataset = LMDBDataset(place, decode=None)
    order = random.Random(0).sample(range(options.records), options.records)

    def epoch_of(batch_size: int) -> Callable[[], int]:
        def epoch() -> int:
            for start in range(0, len(order), batch_size):
                dataset.__getitems__(order[start : start + batch_size])
            return len(order)

        return epoch

    print(f"\nRaw records of {options.nbytes:,} bytes in random order, warm cache, one process, medians of {ROUNDS}:\n")
    print("| reading | records/s |")
    print("| --- | ---: |")
    for batch_size in (64, 1):
        print(f"| `__getitems__` of {batch_size}, CRC-32 verified | {rate(epoch_of(batch_size)):,.0f} |")
    dataset.close()
    print(f"| bare py-lmdb, one transaction for 64, copied, not verified | {rate(bare(place, order)):,.0f} |")
    place.unlink()

    corpus = options.bench / "out.lmdb"
    if corpus.exists():
        images = LMDBDataset(corpus)
        decoded = rate(lambda: sum(len(images.__getitems__(range(i, i + 64))) for i in range(0, 1024, 64)))
        images.decode = None
        raw = rate(lambda: sum(len(images.__getitems__(range(i, i + 64))) for i in range(0, 1024, 64)))
        print(f"\nThe photographs: {decoded:,.0f} images/s decoded to PIL, {raw:,.0f}/s raw: "
              f"reading is {decoded / raw:.1%} of the time.")  # fmt: skip


def bare(place: Path, order: list[int]) -> Callable[[], int]:
    """Read the same values with only py-lmdb."""
    env = lmdb.open(str(place), subdir=False, readonly=True, lock=False, max_dbs=2)
    records = env.open_db(b"records", create=False)

    def epoch() -> int:
        for start in range(0, len(order), 64):
            with env.begin(db=records) as txn:
                for index in order[start : start + 64]:
                    txn.get(index.to_bytes(8, "big"))
        return len(order)

    return epoch


if __name__ == "__main__":
    main()
