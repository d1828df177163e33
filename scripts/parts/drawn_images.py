"""Draw an image folder for the pictures of the documentation: eight shapes, with masks, boxes and captions.

    python scripts/parts/drawn_images.py FOLDER [COUNT]

FOLDER/images has one folder for each shape, and a few damaged files; FOLDER/masks has a mask for each image.
FOLDER/images.jsonl lists all of it, and FOLDER/coco.json has the boxes in COCO's format. The same COUNT always gives
the same files.
"""

from __future__ import annotations

import colorsys
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

# Corners as (angle in turns, distance from the center); the first two are circles.
CORNERS = {
    "disc": [(n / 60, 1.0) for n in range(60)],
    "ring": [(n / 60, 1.0) for n in range(60)],
    "triangle": [(n / 3 - 0.25, 1.0) for n in range(3)],
    "square": [(n / 4 + 0.125, 1.0) for n in range(4)],
    "hexagon": [(n / 6, 1.0) for n in range(6)],
    "star": [(n / 10 - 0.25, (1.0, 0.45)[n % 2]) for n in range(10)],
    "flower": [(n / 60, 0.75 + 0.25 * math.cos(n / 60 * 12 * math.pi)) for n in range(60)],
    "cross": [(n / 4 + side, far) for n in range(4) for side, far in ((-0.04, 1.0), (0.04, 1.0), (0.125, 0.36))],
}
SHARES = (20, 17, 15, 14, 12, 10, 7, 5)  # per cent; unequal, like the classes of real data sets


def main(folder: Path, count: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(0)
    lines: list[str] = []
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    kinds = [{"id": number, "name": shape} for number, shape in enumerate(CORNERS)]
    for number in range(count):
        shape = str(rng.choice([*CORNERS], p=np.array(SHARES) / 100))
        image, mask, boxes = scene(rng, shape)
        name = f"{shape}/{number:04}"
        for path in (folder / "images" / f"{name}.jpg", folder / "masks" / f"{name}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / "images" / f"{name}.jpg", quality=92)
        mask.save(folder / "masks" / f"{name}.png")
        row = {"path": f"images/{name}.jpg", "label": shape, "mask": f"masks/{name}.png", "boxes": boxes}
        lines.append(json.dumps(row | {"caption": f"{len(boxes)} x {shape}"}))
        image_of = {"id": number, "file_name": f"images/{name}.jpg", "width": image.width, "height": image.height}
        images.append(image_of)
        for left, top, right, bottom in boxes:
            place = {"id": len(objects), "image_id": number, "bbox": [left, top, right - left, bottom - top]}
            objects.append(place | {"category_id": [*CORNERS].index(shape), "area": 1, "iscrowd": 0})
    (folder / "images.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "coco.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": kinds}))
    damage(folder / "images", rng)


def scene(rng: np.random.Generator, shape: str) -> tuple[Image.Image, Image.Image, list[list[int]]]:
    """Return an image with one to three copies of a shape, with the mask and the boxes."""
    width, height = (int(rng.integers(240, 561)) for _ in "wh")
    hue = rng.random()
    image = shaded(rng, width, height, hue, rng.uniform(0.2, 0.95))
    mask = Image.new("P", (width, height))
    mask.putpalette([0, 0, 0, 250, 180, 40])
    boxes = []
    for _ in range(rng.integers(1, 4)):
        radius = min(width, height) * rng.uniform(0.14, 0.34)
        x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
        turn = rng.uniform(-0.06, 0.06)
        points = [
            (
                x + radius * far * math.cos(2 * math.pi * (at + turn)),
                y + radius * far * math.sin(2 * math.pi * (at + turn)),
            )
            for at, far in CORNERS[shape]
        ]
        drawn = Image.new("L", (width, height))
        ImageDraw.Draw(drawn).polygon(points, fill=255)
        if shape == "ring":
            ImageDraw.Draw(drawn).ellipse((x - radius / 2, y - radius / 2, x + radius / 2, y + radius / 2), fill=0)
        shadow = drawn.filter(ImageFilter.GaussianBlur(8)).point(lambda value: value // 2)
        image.paste(Image.new("RGB", image.size), (5, 8), shadow)
        image.paste(shaded(rng, width, height, hue + rng.uniform(0.3, 0.7), 0.95), mask=drawn)
        mask.paste(1, mask=drawn.point(lambda value: 255 * (value > 127)).convert("1"))
        boxes.append([*(drawn.getbbox() or (0, 0, width, height))])
    return image, mask, boxes


def shaded(rng: np.random.Generator, width: int, height: int, hue: float, light: float) -> Image.Image:
    """Return a gradient of a hue, with some noise."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    angle = rng.uniform(0, 2 * math.pi)
    slope = (0.72 + 0.28 * (x * math.cos(angle) + y * math.sin(angle)))[..., None]
    color = np.array(colorsys.hsv_to_rgb(hue % 1, 0.55, light)) * 255
    pixels = color * slope + rng.normal(0, 5, (height, width, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def damage(folder: Path, rng: np.random.Generator) -> None:
    """Break a few files as a broken copy or a failed download does."""
    files = sorted(folder.rglob("*.jpg"))
    chosen = [files[place] for place in rng.choice(len(files), 3, replace=False)]
    whole = chosen[0].read_bytes()
    chosen[0].write_bytes(whole[: len(whole) * 2 // 3])
    chosen[1].write_bytes(chosen[1].read_bytes()[:-2])  # only the end marker is missing: can be repaired
    chosen[2].write_text("<html>404 Not Found</html>")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600)
