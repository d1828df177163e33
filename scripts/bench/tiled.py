"""Measure how much faster a random crop of a tiled JPEG is decoded than the whole image, and how large tiled files are.

python scripts/bench/tiled.py FOLDER TILE_WIDTH
"""

from __future__ import annotations

import io
import math
import random
import sys
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import simplejpeg
from PIL import Image

from dbloader.images.tiled import decode_crop, encode_tiled, join_tiles, tile

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGES, ROUNDS = 400, 9


def draw_crop(random: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


def shrink(data: bytes, subsampling: str, tile_width: int) -> tuple[bytes, Any]:
    """Return an image of short side 256 as a plain JPEG and as a tiled one."""
    image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, optimize=True, subsampling=subsampling)
    return file.getvalue(), encode_tiled(image, quality=90, subsampling=subsampling, tile_width=tile_width)


def measure(name: str, pairs: list[tuple[bytes, Any]]) -> None:
    """Print times, ratios and sizes of pairs of a plain and a tiled JPEG."""
    best = [[math.inf] * 3 for _ in pairs]  # seconds for the whole image, for the crop, and for joining tiles alone
    ratios = []
    for _ in range(ROUNDS):
        total = [0.0, 0.0, 0.0]
        for seed, ((plain, tiled), least) in enumerate(zip(pairs, best, strict=True)):
            height, width, _, _ = simplejpeg.decode_jpeg_header(plain)
            crop = draw_crop(random.Random(seed), width, height)  # each round uses the same crops
            calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
                (simplejpeg.decode_jpeg, (plain,)),
                (decode_crop, (*tiled, *crop)),
                (join_tiles, (*tiled, *crop)),
            ]
            for number, (call, arguments) in enumerate(calls):
                start = time.perf_counter()
                call(*arguments)
                seconds = time.perf_counter() - start
                total[number] += seconds
                least[number] = min(least[number], seconds)
        ratios.append(total[0] / total[1])
    whole, crop_time, joining = (1e6 * mean(column) for column in zip(*best, strict=True))
    print(f"{name}: whole {whole:.0f} us, crop {crop_time:.0f}, joining {joining:.0f}: {whole / crop_time:.2f} times")
    size = sum(len(plain) for plain, _ in pairs)
    files, lengths = (sum(map(len, column)) / size for column in zip(*(tiled for _, tiled in pairs), strict=True))
    print(f"  rounds {[round(ratio, 2) for ratio in sorted(ratios)]}")
    print(f"  files {100 * (files - 1):+.1f} %, lengths {100 * lengths:.1f} %")


def main() -> None:
    folder, tile_width = Path(sys.argv[1]), int(sys.argv[2])
    paths = sorted(folder.rglob("*.jpg"))
    images = [path.read_bytes() for path in random.Random(0).sample(paths, min(IMAGES, len(paths)))]
    measure("full size", [(data, tile(data, tile_width=tile_width)) for data in images])
    for subsampling in ("4:4:4", "4:2:0"):
        pairs = [shrink(data, subsampling, tile_width) for data in images]
        measure(f"short side 256, {subsampling}", pairs)


if __name__ == "__main__":
    main()
