"""Make a few dozen photographs of 12 to 48 megapixels out of smaller ones: JPEG, quality 95, with EXIF.

python scripts/bench/cameras.py PHOTOS FOLDER [--images 24]

FOLDER gets a folder for each of 12, 24 and 48 megapixels, with two classes. Photographs are enlarged, sharpened, and
get the noise of a sensor: it grows with the square root of the light, and neighbors share it, since most values of a
color are interpolated. So a file of 12 megapixels has about 5 MB, as from a phone; without noise it would have 2 MB.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from corpus import photographs
from PIL import Image, ImageFilter

# Width and height in pixels, and JPEG's subsampling: phones take 4:2:0, system cameras 4:2:2.
CAMERAS = {12: (4032, 3024, "4:2:0"), 24: (6000, 4000, "4:2:2"), 48: (8064, 6048, "4:2:0")}
QUALITY = 95
NOISE = 4.0  # noise in levels of 255, at half brightness
_FIELD = 1024  # pixels after which the noise repeats, at a different offset in each photograph


def noise_field(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return noise as float32, shape (height, width, 3): mostly in brightness, with coarser grain in color."""
    fine = rng.normal(0, 1, (_FIELD, _FIELD, 1))
    fine = 0.8 * fine + 0.35 * np.roll(fine, 1, 0) + 0.35 * np.roll(fine, 1, 1)
    coarse = np.repeat(np.repeat(rng.normal(0, 0.6, (_FIELD // 4, _FIELD // 4, 3)), 4, 0), 4, 1)
    return (fine + coarse).astype(np.float32)


def taken(source: Image.Image, width: int, height: int, field: np.ndarray[Any, Any]) -> Image.Image:
    """Return a photograph as a camera of this resolution might have taken it."""
    scale = max(width / source.width, height / source.height)
    wide, high = width / scale, height / scale
    left, top = (source.width - wide) / 2, (source.height - high) / 2
    large = source.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + wide, top + high))
    pixels = np.asarray(large.filter(ImageFilter.UnsharpMask(2, 80, 2))).copy()
    for y in range(0, height, _FIELD):
        for x in range(0, width, _FIELD):
            part = pixels[y : y + _FIELD, x : x + _FIELD]
            noise = field[: part.shape[0], : part.shape[1]] * (NOISE * np.sqrt(part / np.float32(128) + 0.05))
            part[:] = (part + noise).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def exif_of(megapixels: int, number: int) -> Image.Exif:
    """Return EXIF data as cameras write it. All photographs are upright."""
    exif = Image.Exif()
    exif.update({0x010F: "Camera", 0x0110: f"{megapixels} MP", 0x0112: 1, 0x0132: f"2026:07:01 12:{number:02d}:00"})
    exif.get_ifd(0x8769).update({0x829A: 0.004, 0x829D: 2.8, 0x8827: 100})
    return exif


def make_photographs(photos: Path, folder: Path, images: int) -> None:
    """Make the folders that do not exist yet."""
    wanted = [megapixels for megapixels in CAMERAS if not (folder / f"{megapixels}mp").exists()]
    if not wanted:
        return
    warnings.simplefilter("ignore")  # Pillow warns of odd palettes in icons, which are skipped
    sources = [image for image in photographs(photos) if image.width * image.height > 1_500_000]
    sources = random.Random(0).sample(sources, min(len(sources), images))
    for megapixels in wanted:
        width, height, subsampling = CAMERAS[megapixels]
        rng = np.random.default_rng(megapixels)
        field = noise_field(rng)
        aside = folder / f"{megapixels}mp.partial"
        for number in range(images):
            field = np.roll(field, rng.integers(0, _FIELD, 2).tolist(), (0, 1))
            image = taken(sources[number % len(sources)], width, height, field)
            path = aside / f"class{number % 2}" / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=QUALITY, subsampling=subsampling, exif=exif_of(megapixels, number))
        aside.rename(folder / f"{megapixels}mp")
        sizes = [path.stat().st_size for path in (folder / f"{megapixels}mp").rglob("*.jpg")]
        print(f"{megapixels} megapixels, {subsampling}: {len(sizes)} images of {sum(sizes) / len(sizes) / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make photographs as large as cameras take them.")
    parser.add_argument("photos", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=24)
    options = parser.parse_args()
    make_photographs(options.photos, options.folder, options.images)


if __name__ == "__main__":
    main()
