"""Measure how much changed copies and different photographs differ, for docs/duplicates.md.

python scripts/bench/duplicates.py FOLDER PHOTOS [--copies 500]

FOLDER is what corpus.py has cut out of the photographs in PHOTOS: one image of each photograph, then a second one, and
so on.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from corpus import photographs
from PIL import Image

from dbloader import Record, open_store, write_store
from dbloader.checking.duplicates import DISTANCE, find_originals
from dbloader.checking.fingerprints import FINGERPRINT, HASHED, compute_fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

LIMITS = (0, 2, 4, 6, 8, 10, 12, 15)


def resized(factor: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.resize((round(image.width * factor), round(image.height * factor)))


def cut(share: float) -> Callable[[Image.Image], Image.Image]:
    def crop(image: Image.Image) -> Image.Image:
        x, y = image.width * share / 2, image.height * share / 2
        return image.crop((round(x), round(y), round(image.width - x), round(image.height - y)))

    return crop


def brighter(factor: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.point(lambda value: min(255, int(value * factor)))


CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], int]] = {
    "encoded again, quality 90": (lambda image: image, 90),
    "encoded again, quality 50": (lambda image: image, 50),
    "0.9 of the size": (resized(0.9), 90),
    "half the size": (resized(0.5), 90),
    "2% cut off": (cut(0.02), 90),
    "4% cut off": (cut(0.04), 90),
    "10% cut off": (cut(0.1), 90),
    "5% brighter": (brighter(1.05), 90),
    "15% brighter": (brighter(1.15), 90),
}


def fingerprints(files: list[bytes], folder: Path) -> Array:
    place = folder / "measured.lmdb"
    write_store([Record(image=file) for file in files], place, overwrite=True)
    with open_store(place) as store:
        return compute_fingerprints(store, lambda _: None).values


def bits_of(values: Array) -> Array:
    return np.unpackbits(np.ascontiguousarray(values["seen"]).view("u1").reshape(len(values), 16), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how far copies and different photographs are apart.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--copies", type=int, default=500)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow warns of odd palettes in icons, which are skipped
    paths = sorted(options.folder.rglob("*.jpg"), key=lambda path: path.stem)
    with tempfile.TemporaryDirectory() as folder:
        files = [path.read_bytes() for path in paths]
        begin = time.perf_counter()
        values = fingerprints(files, Path(folder))
        print(f"{len(files):,} images, {1e3 * (time.perf_counter() - begin) / len(files):.2f} ms each (with storing)")
        bits = bits_of(values)
        print("| bits, at most |", " | ".join(map(str, LIMITS)), "|")
        some = list(range(0, len(files), max(1, len(files) // options.copies)))
        for what, (change, quality) in CHANGES.items():
            copies = []
            for number in some:
                file = io.BytesIO()
                change(Image.open(io.BytesIO(files[number]))).save(file, "JPEG", quality=quality)
                copies.append(file.getvalue())
            apart = (bits_of(fingerprints(copies, Path(folder))) != bits[some]).sum(axis=1)[
                values["kind"][some] == HASHED
            ]
            print(f"| {what} |", " | ".join(f"{100 * (apart <= limit).mean():.1f}%" for limit in LIMITS), "|")
    source = np.array([int(path.stem) for path in paths]) % len(photographs(options.photos))
    count, found, similar = 0, np.zeros(129, np.int64), Counter[tuple[int, ...]]()
    for start in range(0, len(files), 200):
        rows = bits[start : start + 200].astype(np.float32)
        apart = (rows @ (1 - bits.T.astype(np.float32)) + (1 - rows) @ bits.T.astype(np.float32)).round().astype(int)
        later = np.arange(len(files)) > np.arange(start, start + len(rows))[:, None]
        hashed = (values["kind"] == HASHED) & (values["kind"][start : start + 200] == HASHED)[:, None]
        pairs = later & hashed & (source != source[start : start + 200, None])
        for i, j in np.argwhere(pairs & (apart <= DISTANCE)).tolist():
            similar[tuple(sorted((int(source[start + i]), int(source[j]))))] += 1
        count, found = count + int(pairs.sum()), found + np.bincount(apart[pairs], minlength=129)
    print(f"| of {count:,} pairs |", " | ".join(f"{found[: limit + 1].sum():,}" for limit in LIMITS), "|")
    print(f"at most {DISTANCE} bits, by photographs:", similar.most_common(6))
    print(f"{(values['kind'] != HASHED).sum()} images have no pattern")
    rng, many = np.random.default_rng(0), np.zeros(1_000_000, FINGERPRINT)
    many["seen"], many["kind"] = rng.integers(0, 2**64, (len(many), 2), np.uint64), HASHED
    for limit in (7, 10, 15):
        begin = time.perf_counter()
        find_originals(many, limit)
        print(f"{len(many):,} random fingerprints, at most {limit} bits: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
