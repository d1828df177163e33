"""Write the 1,797 handwritten digits that come with scikit-learn as an image folder, a few of them damaged.

    python scripts/parts/demo_images.py FOLDER

FOLDER/train and FOLDER/test get one folder for each digit. Half of the files are JPEG, half PNG. The source of the
images is the UCI repository's "Optical Recognition of Handwritten Digits" (8 x 8 pixels, 16 levels of gray).
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE = 32  # pixels; the originals have 8
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def main(folder: Path) -> None:
    digits = load_digits()
    shutil.rmtree(folder, ignore_errors=True)
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = "test" if number % 5 == 0 else "train"
        directory = folder / part / f"{digit}_{DIGITS[digit]}"
        directory.mkdir(parents=True, exist_ok=True)
        gray = Image.fromarray(np.rint(pixels * (255 / 16)).astype(np.uint8))
        image = gray.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        name, options = ("jpg", {"quality": 95}) if number % 2 else ("png", {})
        file = io.BytesIO()
        image.save(file, {"jpg": "JPEG", "png": "PNG"}[name], **options)
        (directory / f"{number:04d}.{name}").write_bytes(damaged(number, file.getvalue()))
    bad = len(DAMAGE) - len(HARMLESS)
    print(f"{len(digits.target):,} files, of which {bad} are damaged and {len(HARMLESS)} has bytes after its end")


def damaged(number: int, data: bytes) -> bytes:
    """Return the file as a broken copy might leave it."""
    damage = DAMAGE.get(number)
    return data if damage is None else damage(data)


DAMAGE: dict[int, Callable[[bytes], bytes]] = {
    101: lambda jpeg: jpeg[:-2],  # only the end marker is missing: can be repaired
    203: lambda jpeg: jpeg[:-2],
    307: lambda jpeg: jpeg[: len(jpeg) * 3 // 4],  # a quarter is missing
    402: lambda png: png[: len(png) // 2],
    508: lambda _: b"",
    611: lambda _: b"<html>404 Not Found</html>",
    713: lambda jpeg: jpeg + bytes(64),
}
HARMLESS = {713}  # bytes after the end harm nobody: the file is stored as it is, and named nowhere

if __name__ == "__main__":
    main(Path(sys.argv[1]))
