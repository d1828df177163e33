"""Write a store of up to ten million records whose columns look real, around a few tiny images.

python scripts/bench/many_records.py PLACE [--records 10000000]

Classes are unequal, names are paths of 20 to 40 letters, sizes and bytes vary as in photographs. To keep
the file small, each image is a PNG of 16 x 16 pixels: the width, height and bytes in the columns are made up.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dbloader import Record
from dbloader.records.record import encode
from dbloader.stores.open import create_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.record import EncodedRecord

CLASSES = 1_000
DAMAGED_EACH = 10_000  # one record of so many is damaged in the report
_AT_ONCE = 65_536
_WORDS = ("river", "market", "harbor", "window", "garden", "bridge", "forest", "station")


def many_records(count: int) -> Iterator[EncodedRecord]:
    """Yield records in the order of an image folder, sorted by class. The same count gives the same records."""
    random = np.random.default_rng(17)
    pictures = [_picture(color) for color in random.integers(0, 256, (64, 3)).tolist()]
    # Classes differ by up to 20 times in their number of records.
    bounds = np.cumsum(shares := random.pareto(3, CLASSES) + 0.05) / shares.sum() * count
    for start in range(0, count, _AT_ONCE):
        indices = np.arange(start, min(start + _AT_ONCE, count))
        labels = np.minimum(np.searchsorted(bounds, indices, "right"), CLASSES - 1)
        widths = np.clip(random.lognormal(6.1, 0.35, len(indices)), 32, 12_000).astype(int)
        heights = np.clip(widths / random.choice([1.5, 1.33, 1, 0.75], len(indices)), 32, 12_000).astype(int)
        sizes = (widths * heights * random.uniform(0.2, 0.9, len(indices))).astype(int)
        columns = (indices, labels, widths, heights, sizes)
        for index, label, width, height, nbytes in zip(*(column.tolist() for column in columns), strict=True):
            name = f"{class_name(label)}/{_WORDS[index % 8]}_{index:09d}.jpg"
            record = encode(Record(name, label, pictures[label % 64], width, height, "PNG"))
            yield record._replace(nbytes=nbytes)


def class_name(label: int) -> str:
    return f"class {label:03d}"


def write_many(place: str, count: int) -> None:
    """Write the store, which takes about 25 s per million records. An existing store is replaced."""
    with create_store(place, overwrite=True) as writer:
        for number, record in enumerate(many_records(count)):
            bad = not number % DAMAGED_EACH
            event = {"name": record.name, "event": "damaged", "reason": "cut off (stored nevertheless)"}
            writer.write([record], events=[event] if bad else (), outcome={"damaged": 1} if bad else None)
        writer.finish(classes=[class_name(label) for label in range(CLASSES)], source={"place": "made up"})


def _picture(color: list[int]) -> bytes:
    image = Image.new("P", (16, 16))
    image.putpalette(color)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a store of many records.")
    parser.add_argument("place")
    parser.add_argument("--records", type=int, default=10_000_000)
    options = parser.parse_args()
    started = time.perf_counter()
    write_many(options.place, options.records)
    sys.stdout.write(f"{options.records:,} records in {time.perf_counter() - started:.0f} s\n")


if __name__ == "__main__":
    main()
