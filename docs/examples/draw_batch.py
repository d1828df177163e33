"""Draw a batch: the images in the upper row; in the lower row, the same images with their masks and boxes.

    python draw_batch.py drawn.lmdb batch.png

If the store does not exist, the script makes it from drawn scenes: discs and bars before a sky, a mask with the class
of each pixel, and a box around each disc and bar.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from dbloader import LMDBDataset, create_loader, write_store

COLORS = np.array([(0, 0, 0), (230, 60, 60), (60, 110, 230)], np.uint8)  # of no class, discs and bars
SIDE, COUNT = 160, 6


def scene(seed: int) -> dict[str, Any]:
    """Return an image with 2 to 4 discs and bars, their mask and their boxes."""
    rng = np.random.default_rng(seed)
    width, height = 320, 240
    shade = np.linspace(90, 220, height)[:, None, None] + rng.normal(0, 2, (height, width, 1))
    image = Image.fromarray((shade * [0.75, 0.9, 1]).clip(0, 255).astype(np.uint8))
    mask = Image.new("P", image.size)
    mask.putpalette(COLORS.ravel().tolist())
    boxes, labels = [], []
    for number in range(rng.integers(2, 5)):
        side = int(rng.integers(40, 90))
        x, y = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
        label = number % 2 + 1
        box = (x, y, x + side - 1, y + side - 1) if label == 1 else (x, y, x + side // 2 - 1, y + side - 1)
        fill = tuple(int(value) for value in rng.integers(40, 256, 3))
        for canvas, color in ((image, fill), (mask, label)):
            pen = ImageDraw.Draw(canvas)
            (pen.ellipse if label == 1 else pen.rectangle)(box, fill=color)
        boxes.append((box[0], box[1], box[2] + 1, box[3] + 1))
        labels.append(label)
    return {"image": image, "mask": mask, "boxes": np.array(boxes, np.float32), "box_labels": np.array(labels)}


def draw(sample: dict[str, Any]) -> Image.Image:
    """Return one picture of a sample: the image, and below it the image with its mask and boxes."""
    image = Image.fromarray(sample["image"].permute(1, 2, 0).numpy())
    mask = sample["mask"].numpy()
    colored = Image.blend(image, Image.fromarray(COLORS[mask]), 0.5)
    below = Image.composite(colored, image, Image.fromarray((mask > 0).astype(np.uint8) * 255))
    pen = ImageDraw.Draw(below)
    for box, label in zip(sample["boxes"], sample["box_labels"], strict=True):
        pen.rectangle((*box[:2], *(box[2:] - 1)), outline=tuple(COLORS[label].tolist()), width=2)
    both = Image.new("RGB", (SIDE, 2 * SIDE + 4), "white")
    both.paste(image, (0, 0))
    both.paste(below, (0, SIDE + 4))
    return both


def main(place: Path, picture: Path) -> None:
    """Draw the first batch of a store."""
    if not place.exists():
        write_store(map(scene, range(24)), place, classes=("nothing", "disc", "bar"), file_fields=("mask",))
    dataset = LMDBDataset(place, fields=("image", "mask", "boxes", "box_labels"))
    loader = create_loader(
        dataset, batch_size=COUNT, input_size=SIDE, is_training=True, collate_fn=list, normalize=None, device=None
    )
    drawn = [draw(sample) for sample in next(iter(loader))]
    whole = Image.new("RGB", (COUNT * (SIDE + 4) - 4, 2 * SIDE + 4), "white")
    for number, one in enumerate(drawn):
        whole.paste(one, (number * (SIDE + 4), 0))
    whole.save(picture)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
