"""Cut an image folder like ImageNet out of a few photographs: JPEG, 465 x 394 pixels and 110 kB on average.

python scripts/bench/corpus.py PHOTOS FOLDER [--images 5000]
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path

from PIL import Image

CLASSES = 10


def photographs(folder: Path) -> list[Image.Image]:
    """Return all images in a folder that are large enough to cut from."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            try:
                image = Image.open(path).convert("RGB")
            except OSError:
                continue
            if min(image.size) >= 500 and len(image.getcolors(1 << 24) or ()) > 20_000:  # a drawing has few colors
                found.append(image)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an image folder out of photographs.")
    parser.add_argument("photos", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=5000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow warns of odd palettes in icons, which are skipped
    rng = random.Random(0)
    sources = photographs(options.photos)
    aside = options.folder.with_name(options.folder.name + ".partial")
    for number in range(options.images):
        source = sources[number % len(sources)]
        # Shrink a larger piece, because a piece cut at this size would have less detail than a small photograph.
        width, height = rng.randint(350, 580), rng.randint(300, 488)
        scale = min(rng.uniform(1, 2.5), source.width / width, source.height / height)
        x = rng.uniform(0, max(0, source.width - width * scale))
        y = rng.uniform(0, max(0, source.height - height * scale))
        box = (x, y, min(x + width * scale, source.width), min(y + height * scale, source.height))
        piece = source.resize((width, height), Image.Resampling.LANCZOS, box=box)
        directory = aside / f"class{number % CLASSES}"
        directory.mkdir(parents=True, exist_ok=True)
        piece.save(directory / f"{number:06d}.jpg", quality=96, subsampling=0)
    aside.rename(options.folder)
    sizes = [path.stat().st_size for path in options.folder.rglob("*.jpg")]
    print(f"{len(sizes):,} images from {len(sources)} photographs, {sum(sizes) / len(sizes) / 1000:.0f} kB on average")


if __name__ == "__main__":
    main()
