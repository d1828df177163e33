"""Print how a user's own tool reads files, as JSON. Needs the tool, and nothing of this project.

python layout_tools.py TASKS.json: a list of {"name", "tool", "folder", "source", "listing"}. Tools that are not
installed are left out.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Answers = dict[str, Any]  # "labels", "classes", "boxes", "fields", "sizes": by the last part of an image's path
Task = dict[str, str]

LABELS = ("label", "class", "target", "Target", "breed")
PATHS = ("path", "image", "file", "filename", "id", "image_id", "Path")
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_by_pandas(task: Task) -> Answers:
    import pandas as pd

    rows = pd.read_csv(task["listing"], sep="\t" if task["listing"].endswith(".tsv") else ",", skipinitialspace=True)
    path = next(column for column in rows.columns if column in PATHS)
    label = next((column for column in rows.columns if column in LABELS), None)
    found: Answers = {"labels": {}, "fields": {}, "boxes": {}}
    for row in rows.to_dict("records"):
        key = str(row.pop(path)).rpartition("/")[2]
        if {*CORNERS} <= row.keys():
            found["boxes"].setdefault(key, []).append([row["class"], *(row[corner] for corner in CORNERS)])
            continue
        if label is not None:
            found["labels"][key] = row.pop(label)
        found["fields"][key] = {column: value for column, value in row.items() if value == value}  # without NaN
    return {key: value for key, value in found.items() if value}


def read_by_pillow(task: Task) -> Answers:
    from PIL import Image, ImageOps

    sizes = {}
    for path in sorted(Path(task["images"]).iterdir()):
        with Image.open(path) as image:
            image.load()
            sizes[path.name] = [*ImageOps.exif_transpose(image).size]
    return {"sizes": sizes}


def read_by_torchvision(task: Task) -> Answers:
    from torchvision.datasets import ImageFolder

    found = ImageFolder(task["source"])
    labels = {Path(path).name: found.classes[label] for path, label in found.samples}
    return {"classes": found.classes, "labels": labels, "numbers": {Path(path).name: n for path, n in found.samples}}


def read_by_datasets(task: Task) -> Answers:
    from datasets import Image, disable_progress_bars, load_dataset

    disable_progress_bars()
    rows = load_dataset(task["source"], split="train", cache_dir=f"{task['folder']}/cache")
    rows = rows.cast_column("image", Image(decode=False))
    found: Answers = {"labels": {}, "fields": {}}
    for row in rows:
        key = str(row.pop("image")["path"]).rpartition("/")[2]
        if "label" in row:
            label = row.pop("label")
            feature = rows.features["label"]
            found["labels"][key] = feature.int2str(label) if hasattr(feature, "int2str") else label
        found["fields"][key] = row
    return {key: value for key, value in found.items() if value}


def read_by_pycocotools(task: Task) -> Answers:
    from contextlib import redirect_stdout

    from pycocotools.coco import COCO

    with redirect_stdout(sys.stderr):
        found = COCO(task["listing"])
    names = {number: category["name"] for number, category in found.cats.items()}
    boxes: dict[str, list[Any]] = {}
    for number, image in found.imgs.items():
        listed = boxes.setdefault(image["file_name"], [])
        for annotation in found.loadAnns(found.getAnnIds(imgIds=number)):
            x, y, width, height = annotation["bbox"]
            listed.append([names[annotation["category_id"]], x, y, x + width, y + height])
    return {"boxes": boxes}


def read_by_ultralytics(task: Task) -> Answers:
    from ultralytics.data.utils import img2label_paths, verify_image_label

    names, points, dimensions = _names_for_ultralytics(Path(task["listing"]))
    boxes = {}
    images = [path for path in sorted(Path(task["source"]).rglob("*")) if path.suffix.lower() in (".jpg", ".png")]
    for path, labels in zip(images, img2label_paths([str(path) for path in images]), strict=True):
        pose = bool(points)
        checked = verify_image_label((str(path), labels, "", pose, len(names), points, dimensions, False))
        _, lines, shape, *_, message = checked
        if shape is None:
            raise ValueError(message.replace(str(path), path.name))
        height, width = shape
        boxes[path.name] = [
            [names[int(line[0])], *_corners([float(value) for value in line[1:5]], width, height)] for line in lines
        ]
    return {"boxes": boxes}


def _names_for_ultralytics(listing: Path) -> tuple[list[str], int, int]:
    import yaml

    if listing.suffix == ".txt":
        return listing.read_text().split(), 0, 0
    found = yaml.safe_load(listing.read_text())
    names = found["names"]
    points, dimensions = found.get("kpt_shape", (0, 0))
    return [*names.values()] if isinstance(names, dict) else names, points, dimensions


def _corners(line: list[float], width: int, height: int) -> list[float]:
    x, y, across, down = line
    box = [(x - across / 2) * width, (y - down / 2) * height, (x + across / 2) * width, (y + down / 2) * height]
    return [round(value, 3) for value in box]


READERS: dict[str, Callable[[Task], Answers]] = {
    "pandas": read_by_pandas,
    "Pillow": read_by_pillow,
    "torchvision": read_by_torchvision,
    "datasets": read_by_datasets,
    "pycocotools": read_by_pycocotools,
    "ultralytics": read_by_ultralytics,
}


def main() -> None:
    answers = {}
    for task in json.loads(Path(sys.argv[1]).read_text()):
        try:
            tool = f"{task['tool']} {version(task['tool'])}"
            answers[task["name"]] = {"tool": tool, **READERS[task["tool"]](task)}
        except (PackageNotFoundError, ImportError) as error:
            print(f"{task['name']}: {task['tool']} cannot be imported: {error}", file=sys.stderr)
        except Exception as error:  # a tool may refuse its files in any way
            answers[task["name"]] = {"tool": tool, "refuses": f"{type(error).__name__}: {str(error)[:150]}"}
    print(json.dumps(answers, ensure_ascii=False, default=lambda value: value.item(), allow_nan=False))


if __name__ == "__main__":
    main()
