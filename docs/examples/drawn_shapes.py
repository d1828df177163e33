"""Drawn images for the examples of this folder: discs, squares and triangles on a texture, with masks and boxes."""

from __future__ import annotations

import math
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = ("disc", "square", "triangle")
COLORS = ((0, 0, 0), (230, 60, 60), (60, 200, 90), (70, 120, 250))  # in pictures: no shape, and each of SHAPES


class Scene(NamedTuple):
    """An image, its mask (0 for no shape), and the box (x_min, y_min, x_max, y_max) and class of each shape."""

    image: Image.Image
    mask: Image.Image
    boxes: list[tuple[int, int, int, int]]
    labels: list[int]  # indices of SHAPES


def texture(rng: np.random.Generator, side: int, darkest: int, brightest: int) -> Image.Image:
    """Return an image of one random color with noise of several scales."""
    pixels = np.full((side, side, 3), rng.uniform(darkest, brightest, 3))
    for grain in (4, 16, side):
        noise = Image.fromarray((128 + 12 * rng.standard_normal((grain, grain, 3))).clip(0, 255).astype(np.uint8))
        pixels += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), float) - 128
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_scene(rng: np.random.Generator, side: int, most: int = 4) -> Scene:
    """Return a textured image with 1 to ``most`` shapes of other textures. The boxes of the shapes do not overlap."""
    image, mask = texture(rng, side, 30, 130), Image.new("P", (side, side))
    mask.putpalette([value for color in COLORS for value in color])
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    for _ in range(rng.integers(1, most + 1)):
        size = int(side * rng.uniform(0.2, 0.4))
        x, y = (int(value) for value in rng.integers(0, side - size, 2))
        if any(x < right and left < x + size and y < bottom and top < y + size for left, top, right, bottom in boxes):
            continue
        label = int(rng.integers(len(SHAPES)))
        shape = Image.new("1", (side, side))
        pen = ImageDraw.Draw(shape)
        if label == 0:
            pen.ellipse((x, y, x + size - 1, y + size - 1), fill=1)
        elif label == 1:
            pen.rectangle((x, y, x + size - 1, y + size - 1), fill=1)
        else:
            pen.polygon(((x + size // 2, y), (x, y + size - 1), (x + size - 1, y + size - 1)), fill=1)
        image.paste(texture(rng, side, 110, 230), mask=shape)
        mask.paste(label + 1, mask=shape)
        boxes.append((x, y, x + size, y + size))
        labels.append(label)
    return Scene(image, mask, boxes, labels)


def run_dbloader(*arguments: Any) -> None:
    """Run the command line."""
    subprocess.run(["dbloader", *map(str, arguments), "--quiet"], check=True)


def side_by_side(images: list[Image.Image], path: Path) -> None:
    """Save images in a grid of eight columns."""
    columns, side = min(8, len(images)), images[0].width + 4
    whole = Image.new("RGB", (columns * side, math.ceil(len(images) / columns) * side), "white")
    for number, image in enumerate(images):
        whole.paste(image, (number % columns * side, number // columns * side))
    whole.save(path)
