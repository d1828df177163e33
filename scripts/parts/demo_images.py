"""Cut an image folder out of ten photographs that come with scikit-image, and damage a few of the files.

    python scripts/parts/demo_images.py FOLDER

FOLDER/train and FOLDER/test get one folder for each photograph: squares from random places, of 96 to 160 pixels. For
test, they are cut from the right third of a photograph, and for train from the rest, so no pixel is in both. Half of
the files are JPEG, half PNG. All ten photographs are in the public domain or CC0, as skimage.data documents.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

# The file in skimage/data of each class.
PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "photographer": "camera.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
SQUARES = {"train": 130, "test": 30}  # images cut from each photograph
SIDES = (96, 160)  # smallest and largest side, in pixels
LONGEST = 640  # pixels to which the two large photographs are reduced


@cache
def photograph(name: str) -> Image.Image:
    # only its files are read; scikit-image is not imported, so its dependencies are not needed
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise SystemExit("the photographs come with scikit-image: pip install --no-deps scikit-image")
    image = Image.open(Path(package.origin).parent / "data" / PHOTOGRAPHS[name]).convert("RGB")
    image.thumbnail((LONGEST, LONGEST))
    return image


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rng = random.Random(0)
    number = 0
    for name in PHOTOGRAPHS:
        whole = photograph(name)
        width, height = whole.size
        for part, left, right in (("train", 0, width * 2 // 3), ("test", width * 2 // 3, width)):
            directory = folder / part / name
            directory.mkdir(parents=True)
            for _ in range(SQUARES[part]):
                side = rng.randint(SIDES[0], min(SIDES[1], right - left))
                x, y = rng.randint(left, right - side), rng.randint(0, height - side)
                write(whole.crop((x, y, x + side, y + side)), directory, number)
                number += 1
    harmful = len(DAMAGE) - len(HARMLESS)
    print(f"{number:,} images; {harmful} of the files are damaged, and {len(HARMLESS)} has bytes after its end")


def write(image: Image.Image, directory: Path, number: int) -> None:
    extension, options = ("jpg", {"quality": 90}) if number % 2 else ("png", {})
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG", "png": "PNG"}[extension], **options)
    (directory / f"{number:04d}.{extension}").write_bytes(damaged(number, file.getvalue()))


def damaged(number: int, data: bytes) -> bytes:
    """Return a file's bytes as a broken copy might leave them."""
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
HARMLESS = {713}  # bytes after the end do no harm, so the file is stored unchanged and not reported

if __name__ == "__main__":
    main(Path(sys.argv[1]))
