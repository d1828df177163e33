"""Listings: their columns, paths, labels and numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from tests.support.images import plant
from tests.support.jpegs import draw
from tests.support.layouts.base import (
    Answer,
    Box,
    Label,
    by_folder,
    coco,
    layout,
    photos,
    write,
    write_csv,
    write_jsonl,
    write_zip,
)

SEPARATOR = r"several (classes|labels)|a label is a 64-bit integer, a name or null"
COLUMNS = r"no path in a column called"
TWICE = r"row \d+.*row \d+|rows \d+ and \d+"


# --- 5: a row for each box --------------------------------------------------------------------------------------------

BOXES: dict[str, list[Box]] = {"a.jpg": [("cat", 2, 3, 20, 20), ("dog", 5, 6, 38, 29)], "b.jpg": [("dog", 1, 1, 9, 9)]}


@layout(5, "a row for each box", "photos STORE --listing boxes.csv", says=TWICE, tool="pandas")
def rows_of_boxes(at: Path) -> Answer:
    images = photos(BOXES)
    plant(at / "photos", images)
    rows = [(name, *box) for name, boxes in BOXES.items() for box in boxes]
    write_csv(at, "boxes.csv", [("filename", "class", "xmin", "ymin", "xmax", "ymax"), *rows])
    return Answer(images, boxes=BOXES)


@layout(5, "a row for each box, with the image's size", "train STORE --listing train/_annotations.csv", says=TWICE,
        tool="pandas")  # fmt: skip
def rows_of_boxes_and_sizes(at: Path) -> Answer:
    images = photos(BOXES)
    plant(at / "train", images)
    rows = [(name, 40, 30, *box) for name, boxes in BOXES.items() for box in boxes]
    header = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
    write_csv(at, "train/_annotations.csv", [header, *rows])
    return Answer(images, boxes=BOXES)


@layout(5, "one file in two rows, with two labels", "photos STORE --listing labels.tsv", says=TWICE, remedy=TWICE)
def one_file_twice(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg", "2.jpg"])
    plant(at / "photos", images)
    rows = [("0.jpg", "cat"), ("1.jpg", "dog"), ("2.jpg", "cat"), ("1.jpg", "cat")]
    write_csv(at, "labels.tsv", [("path", "label"), *rows], "\t")
    return Answer(images, {"0.jpg": "cat", "1.jpg": "nobody can know", "2.jpg": "cat"})


# --- 6: several classes -----------------------------------------------------------------------------------------------


@layout(6, "cat|dog in a CSV", "photos STORE --listing labels.csv", says=SEPARATOR,
        option="photos STORE --listing labels.csv --separator '|'")  # fmt: skip
def separated(at: Path) -> Answer:
    labels: dict[str, tuple[str, ...]] = {"0.jpg": ("cat",), "1.jpg": ("cat", "dog"), "2.jpg": ("bird", "dog")}
    images = photos(labels)
    plant(at / "photos", images)
    write_csv(at, "labels.csv", [("path", "label"), *((name, "|".join(found)) for name, found in labels.items())])
    return Answer(images, labels, classes=("bird", "cat", "dog"))


@layout(6, "lists in JSON lines", "photos STORE --listing labels.jsonl", says=SEPARATOR)
def listed_labels(at: Path) -> Answer:
    labels: dict[str, tuple[str, ...]] = {"x/0.png": ("cat", "dog"), "x/1.png": ("zebra",), "y/2.png": ()}
    images = photos(labels)
    plant(at / "photos", images)
    write_jsonl(at, "labels.jsonl", [{"file": name, "label": list(found)} for name, found in labels.items()])
    return Answer(images, labels, classes=("cat", "dog", "zebra"))


@layout(6, "Roboflow's _classes.csv", "train STORE --listing train/_classes.csv", says=SEPARATOR,
        tool="pandas")  # fmt: skip
def roboflow_classes(at: Path) -> Answer:
    labels: dict[str, tuple[str, ...]] = {
        "a_jpg.rf.01.jpg": ("cat",),
        "b_jpg.rf.02.jpg": ("cat", "dog"),
        "c_jpg.rf.03.jpg": (),
    }
    images = photos(labels)
    plant(at / "train", images)
    rows = [
        ", ".join((name, *(str(int(label in found)) for label in ("cat", "dog")))) for name, found in labels.items()
    ]
    write(at, "train/_classes.csv", "\n".join(["filename, cat, dog", *rows]) + "\n")
    return Answer(images, labels, classes=("cat", "dog"))


# --- 14: text files ---------------------------------------------------------------------------------------------------


@layout(14, "text file of path and label", "photos STORE --listing train.txt", says="text file")
def text_labels(at: Path) -> Answer:
    labels: dict[str, Label] = {"cat/0000.jpg": 0, "cat/0001.jpg": 0, "dog/0002.jpg": 1}
    images = photos(labels)
    plant(at / "photos", images)
    write(at, "train.txt", "".join(f"{name} {label}\n" for name, label in labels.items()))
    return Answer(images, labels)


@layout(14, "PaddleOCR's path and text", "crops STORE --listing rec_gt_train.txt", says="text file")
def text_ocr(at: Path) -> Answer:
    texts: dict[str, Label] = {"word_1.png": "JOINT", "word_2.png": "yourself now", "word_3.png": "154"}
    images = photos(texts)
    plant(at / "crops", images)
    write(at, "rec_gt_train.txt", "".join(f"{name}\t{text}\n" for name, text in texts.items()))
    return Answer(images, texts)


@layout(14, "text file of paths", "photos STORE --listing test.txt", says="text file")
def text_paths(at: Path) -> Answer:
    images = photos(["a/0 1.jpg", "b/2.jpg"])
    plant(at / "photos", {**images, "b/3.jpg": images["b/2.jpg"][:-2] + b"\0\xff\xd9"})
    write(at, "test.txt", "".join(f"./{name}\r\n" for name in images))
    return Answer(images, dict.fromkeys(images))


# --- 15: targets that are not one class -------------------------------------------------------------------------------


@layout(15, "CSV of a float target", "houses STORE --listing prices.csv", says="write only plain integers|float",
        tool="pandas")  # fmt: skip
def regression(at: Path) -> Answer:
    targets: dict[str, Label] = {"0.jpg": 3.5, "1.jpg": 2.0, "2.jpg": 0.25}
    images = photos(targets)
    plant(at / "houses", images)
    write_csv(at, "prices.csv", [("path", "target"), *targets.items()])
    return Answer(images, targets)


@layout(15, "write_store of (image, float)", says="must be an int, or the name of a class|float")
def written_floats(at: Path) -> Answer:
    targets: dict[str, Label] = {"0": 1.5, "1": 2.0}
    samples = [(draw(16, 12, seed=number), target) for number, target in enumerate(targets.values())]
    return Answer(dict.fromkeys(targets, b""), targets, samples=samples)


@layout(15, "write_store of (image, 0/1 tensor)", says="must be an int, or the name of a class|0/1")
def written_tensors(at: Path) -> Answer:
    samples = [(draw(16, 12, seed=number), torch.tensor([number, 1, 0])) for number in range(2)]
    dataset = _Named(samples, ("bald", "hat", "young"))
    return Answer({"0": b"", "1": b""}, {"0": ("hat",), "1": ("bald", "hat")}, samples=dataset)


class _Named(list[tuple[Image.Image, torch.Tensor]]):
    """A dataset whose targets have names, as torchvision's CelebA."""

    def __init__(self, samples: list[tuple[Image.Image, torch.Tensor]], classes: tuple[str, ...]) -> None:
        super().__init__(samples)
        self.classes = [*classes]


# --- 16: columns with other names -------------------------------------------------------------------------------------


@layout(16, "Kaggle's id,breed", "train STORE --listing labels.csv", says=COLUMNS, tool="pandas",
        option="train STORE --listing labels.csv --label-column breed")  # fmt: skip
def breeds(at: Path) -> Answer:
    labels = {"000bec18.jpg": "boston_bull", "001513df.jpg": "dingo", "001cdf01.jpg": "pekinese"}
    images = photos(labels)
    plant(at / "train", images)
    write_csv(at, "labels.csv", [("id", "breed"), *((name[:-4], label) for name, label in labels.items())])
    return Answer(images, labels, classes=("boston_bull", "dingo", "pekinese"))


@layout(16, "Path,Target", ". STORE --listing train.csv", says=COLUMNS, tool="pandas",
        option=". STORE --listing train.csv --image-column Path --label-column Target")  # fmt: skip
def capitals(at: Path) -> Answer:
    labels: dict[str, Label] = {"train/p1/v1.jpg": 0, "train/p1/v2.jpg": 1, "train/p2/v3.jpg": 1}
    images = photos(labels)
    plant(at, images)
    write_csv(at, "train.csv", [("Path", "Sex", "Age", "Target"), *((name, "F", 68, n) for name, n in labels.items())])
    return Answer(images, labels, fields={"train/p1/v1.jpg": {"Sex": "F", "Age": 68}})


@layout(16, "image_id,label,score, files in a subfolder", "data STORE --listing data/train.csv", says=COLUMNS,
        tool="pandas", option="data STORE --listing data/train.csv --image-column image_id")  # fmt: skip
def image_ids(at: Path) -> Answer:
    rows = [("1000015157", 0, 0.5), ("1000201771", 3, 1.25), ("0000427214", 1, "")]
    images = photos(f"train_images/{row[0]}.jpg" for row in rows)
    plant(at / "data", images)
    write_csv(at, "data/train.csv", [("image_id", "label", "score"), *rows])
    names = [*images]
    labels: dict[str, Label] = {name: int(row[1]) for name, row in zip(names, rows, strict=True)}
    return Answer(images, labels, fields={names[0]: {"score": 0.5}, names[1]: {"score": 1.25}})


# --- 20: backslashes --------------------------------------------------------------------------------------------------


@layout(20, "paths of Windows in a CSV", "data STORE --listing labels.csv", says=r"\\|backslash")
def windows_csv(at: Path) -> Answer:
    labels = {"cat/0.jpg": "cat", "dog/old/1.jpg": "dog"}
    images = photos(labels)
    plant(at / "data", images)
    rows = [(name.replace("/", "\\"), label) for name, label in labels.items()]
    write_csv(at, "labels.csv", [("path", "label"), *rows], end="\r\n")
    return Answer(images, labels, classes=("cat", "dog"))


@layout(20, "names of Windows in a zip", "pets.zip STORE", says=r"\\|have no label")
def windows_zip(at: Path) -> Answer:
    images = photos(["pets/cat/0.jpg", "pets/dog/1.jpg"])
    write_zip(at / "pets.zip", {name.replace("/", "\\"): data for name, data in images.items()})
    return Answer(images, by_folder(images, 1), classes=("cat", "dog"))


@layout(20, "paths of Windows in COCO", "images STORE --listing instances.json", says=r"\\|backslash")
def windows_coco(at: Path) -> Answer:
    images = photos(["day/0.jpg", "night/1.jpg"])
    boxes: dict[str, list[Box]] = {"day/0.jpg": [("cat", 1, 2, 11, 12)], "night/1.jpg": []}
    plant(at / "images", images)
    backward = {name.replace("/", "\\"): found for name, found in boxes.items()}
    write(at, "instances.json", coco([(name, 40, 30) for name in backward], backward, ["cat"]))
    return Answer(images, boxes=boxes)


# --- 13: archives beside a listing ------------------------------------------------------------------------------------


def _captions(names: list[str]) -> dict[str, dict[str, str]]:
    return {name: {"text": f"caption {number}"} for number, name in enumerate(names)}


@layout(13, "images.zip beside metadata.jsonl", "data STORE", tool="datasets", says=r"images[.]zip")
def zip_and_jsonl(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg", "2.jpg"])
    write_zip(at / "data/images.zip", images)
    fields = _captions([*images])
    write_jsonl(at, "data/metadata.jsonl", [{"file_name": name, **values} for name, values in fields.items()])
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(13, "train.zip beside metadata.csv with labels", "data STORE", says=r"train[.]zip")
def zip_and_csv(at: Path) -> Answer:
    labels = {"train/a.png": "wet", "train/b.png": "dry"}
    images = photos(labels)
    write_zip(at / "data/train.zip", images)
    write_csv(at, "data/metadata.csv", [("file_name", "label"), *labels.items()])
    return Answer(images, labels, classes=("dry", "wet"))


@layout(13, "a zip with --listing", "photos.zip STORE --listing labels.csv", says="the folder where its paths start")
def zip_and_listing(at: Path) -> Answer:
    labels = {"photos/0.jpg": "b", "photos/1.jpg": "a"}
    images = photos(labels)
    write_zip(at / "photos.zip", images)
    write_csv(at, "labels.csv", [("path", "label"), *labels.items()])
    return Answer(images, labels, classes=("a", "b"))
