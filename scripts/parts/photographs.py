"""Cut image folders out of the photographs that come with scikit-image, for the pictures of the documentation.

    python scripts/parts/photographs.py FOLDER

FOLDER/train and FOLDER/val have a folder of images for each photograph, and a few damaged files. FOLDER/objects.jsonl
has the boxes of FOLDER/objects. FOLDER/predictions.csv has what a model might predict for train. Each run writes the
same files. All photographs are in the public domain or CC0.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from demo_images import PHOTOGRAPHS, photograph

if TYPE_CHECKING:
    from PIL import Image

SHARES = (16, 6, 18, 14, 8, 7, 5, 9, 6, 11)  # per cent of the images; unequal, as in real datasets
NUMBERS = {"train": range(1000), "val": range(1000, 1200)}
OBJECTS = {  # corners in the photograph: x1, y1, x2, y2
    "astronaut": {"face": [(180, 30, 285, 185)], "helmet": [(285, 325, 512, 512)]},
    "cat": {"eye": [(138, 82, 208, 150), (300, 98, 350, 158)], "nose": [(228, 222, 292, 262)]},
    "coffee": {"cup": [(170, 24, 415, 310)], "spoon": [(315, 170, 415, 325)], "saucer": [(75, 65, 480, 395)]},
    "photographer": {"person": [(10, 35, 235, 512)], "camera": [(200, 130, 315, 215)]},
    "rocket": {"rocket": [(292, 170, 350, 420)]},
}


class Cut(NamedTuple):
    """An image cut out of a photograph, with the place of its top left corner there."""

    kind: str
    image: Image.Image
    x: int
    y: int


def cut(rng: random.Random, kind: str) -> Cut:
    """Cut out a rectangle with 55 to 95 % of each side."""
    whole = photograph(kind)
    width, height = (round(side * rng.uniform(0.55, 0.95)) for side in whole.size)
    x, y = rng.randint(0, whole.width - width), rng.randint(0, whole.height - height)
    return Cut(kind, whole.crop((x, y, x + width, y + height)), x, y)


def boxes_of(piece: Cut) -> list[tuple[str, list[int]]]:
    """Return the objects of which at least a half is in the image: name and corners."""
    found = []
    for name, places in OBJECTS.get(piece.kind, {}).items():
        for x1, y1, x2, y2 in places:
            left, right = max(x1 - piece.x, 0), min(x2 - piece.x, piece.image.width)
            top, bottom = max(y1 - piece.y, 0), min(y2 - piece.y, piece.image.height)
            if max(right - left, 0) * max(bottom - top, 0) * 2 >= (x2 - x1) * (y2 - y1):
                found.append((name, [left, top, right, bottom]))
    return found


def write_objects(folder: Path, rng: random.Random) -> None:
    rows = []
    (folder / "objects").mkdir()
    for number in range(120):
        piece = cut(rng, rng.choice([*OBJECTS]))
        piece.image.save(folder / "objects" / f"{number:04}.jpg", quality=90)
        found = boxes_of(piece)
        row = {"boxes": [box for _, box in found], "box_labels": [name for name, _ in found]}
        rows.append(json.dumps({"path": f"{number:04}.jpg", **row}))
    (folder / "objects.jsonl").write_text("\n".join(rows) + "\n")


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rng = random.Random(0)
    kinds = [*PHOTOGRAPHS]
    predictions = []
    for part, numbers in NUMBERS.items():
        for number in numbers:
            piece = cut(rng, rng.choices(kinds, SHARES)[0])
            # one label in fifty is wrong, and the model is right about most of these
            label = rng.choice(kinds) if rng.random() < 0.02 else piece.kind
            predicted = rng.choice(kinds) if rng.random() < 0.03 else piece.kind
            path = folder / part / label / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            piece.image.save(path, quality=90)
            if number % 421 == 420:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            if part == "train":
                loss = rng.uniform(0, 1) if predicted == label else rng.uniform(1, 3)
                predictions.append((f"{label}/{number:04}.jpg", predicted, f"{loss:.3f}"))
    (folder / "val" / kinds[0]).mkdir(exist_ok=True)
    shutil.copyfile(min((folder / "train" / kinds[0]).iterdir()), folder / "val" / kinds[0] / "copy.jpg")
    with (folder / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "prediction", "loss"), *predictions])
    write_objects(folder, rng)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
