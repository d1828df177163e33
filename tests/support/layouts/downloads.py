"""Well-known data sets and the exports of labeling tools, as one downloads them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.images import plant
from tests.support.layouts.base import (
    Answer,
    Box,
    Label,
    coco,
    layout,
    photos,
    write,
    write_csv,
    write_zip,
)

SYNSETS = {"n01440764": "tench", "n01443537": "goldfish", "n02084071": "dog"}
NO_PATHS = r"no paths?\b|names no (image|file)|only numbers|path on each line"
FLAT = "directly in it"
COLUMNS = r"no path in a column called"


# --- 17: ImageNet -----------------------------------------------------------------------------------------------------


def _imagenet(at: Path) -> dict[str, bytes]:
    """Write the folder train, and three files in the flat folder val."""
    plant(at / "train", photos((f"{name}/{name}_{n}.JPEG" for name in SYNSETS for n in range(2)), 50))
    images = photos(f"ILSVRC2012_val_{n:08}.JPEG" for n in (1, 2, 3))
    plant(at / "val", images)
    return images


@layout(17, "Kaggle's LOC_val_solution.csv", "train STORE", "val STORE --listing LOC_val_solution.csv", says=COLUMNS,
        option="val STORE --listing LOC_val_solution.csv --classes earlier-0.lmdb")  # fmt: skip
def kaggle_imagenet(at: Path) -> Answer:
    images = _imagenet(at)
    labels = dict(zip(images, ("n02084071", "n01440764", "n02084071"), strict=True))
    rows = [(name[:-5], f"{label} 1 2 20 20 {label} 5 5 30 28 " if n else f"{label} 0 1 30 20 ")
            for n, (name, label) in enumerate(labels.items())]  # fmt: skip
    write_csv(at, "LOC_val_solution.csv", [("ImageId", "PredictionString"), *rows])
    return Answer(images, labels, classes=[*SYNSETS])


@layout(17, "the devkit's list of numbers", "val STORE --listing ILSVRC2012_validation_ground_truth.txt",
        says=NO_PATHS, remedy=NO_PATHS)  # fmt: skip
def devkit(at: Path) -> Answer:
    images = _imagenet(at)
    # The devkit counts from 1, in the order of its own list, which is not that of the folders of train.
    write(at, "ILSVRC2012_validation_ground_truth.txt", "1\n3\n1\n")
    return Answer(images, dict(zip(images, ("n02084071", "n01440764", "n02084071"), strict=True)))


@layout(17, "val.txt with labels that count from 0", "val STORE --listing val.txt", says="text file")
def caffe(at: Path) -> Answer:
    images = _imagenet(at)
    write(at, "val.txt", "".join(f"{name} {label}\n" for name, label in zip(images, (2, 0, 1), strict=True)))
    return Answer(images, dict(zip(images, (2, 0, 1), strict=True)))


# --- 27: JSON files of labeling tools ---------------------------------------------------------------------------------


@layout(27, "LabelMe", "shots STORE", says=FLAT)
def labelme(at: Path) -> Answer:
    images = photos(["a.jpg", "b.jpg"])
    plant(at / "shots", images)
    fields = {}
    for name in images:
        shape = {"label": "dog", "points": [[2.0, 3.0], [20.0, 25.5]], "shape_type": "rectangle", "group_id": None}
        value: dict[str, object] = {"version": "5.4.1", "flags": {}, "shapes": [shape], "imagePath": name}
        value |= {"imageData": None, "imageHeight": 30, "imageWidth": 40}
        write(at, f"shots/{name[0]}.json", json.dumps(value, indent=2))
        fields[name] = {"json": value}
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(27, "SA-1B", "sa_000020 STORE", says=FLAT)
def sa_1b(at: Path) -> Answer:
    images = photos(["sa_223750.jpg", "sa_223751.jpg"])
    plant(at / "sa_000020", images)
    fields = {}
    for number, name in enumerate(images):
        mask = {
            "id": number,
            "bbox": [1.0, 2.0, 9.0, 8.0],
            "area": 72,
            "segmentation": {"size": [30, 40], "counts": "PQ"},
        }
        value = {
            "image": {"image_id": 223750 + number, "file_name": name, "width": 40, "height": 30},
            "annotations": [mask],
        }
        write(at, f"sa_000020/{name[:-4]}.json", json.dumps(value))
        fields[name] = {"json": value}
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(27, "LabelMe in two folders", "project STORE")
def labelme_folders(at: Path) -> Answer:
    images = photos(["day/0.png", "night/1.png"])
    plant(at / "project", images)
    values = {name: {"shapes": [], "imagePath": name.rpartition("/")[2]} for name in images}
    for name, value in values.items():
        write(at, f"project/{name[:-4]}.json", json.dumps(value))
    labels: dict[str, Label] = {name: name.split("/")[0] for name in images}
    return Answer(images, labels, fields={name: {"json": value} for name, value in values.items()})


# --- 28: exports of Roboflow and Ultralytics --------------------------------------------------------------------------


@layout(28, "Roboflow's YOLO export", "train/images STORE --listing data.yaml", tool="ultralytics")
def roboflow_yolo(at: Path) -> Answer:
    images = photos(["a_jpg.rf.0a1.jpg", "b_jpg.rf.0b2.jpg"])
    plant(at / "train/images", images)
    plant(at / "valid/images", photos(["c_jpg.rf.0c3.jpg"], 9))
    write(at, "train/labels/a_jpg.rf.0a1.txt", "1 0.5 0.5 0.5 0.5\n")
    write(at, "train/labels/b_jpg.rf.0b2.txt", "")
    text = "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['cat', 'dog']\n\nroboflow:\n  version: 1\n"
    write(at, "data.yaml", text)
    boxes: dict[str, list[Box]] = {"a_jpg.rf.0a1.jpg": [("dog", 10, 7.5, 30, 22.5)], "b_jpg.rf.0b2.jpg": []}
    return Answer(images, boxes=boxes, classes=("cat", "dog"))


@layout(28, "Roboflow's COCO export", "train STORE", says=r"_annotations\.coco\.json|--listing",
        option="train STORE --listing train/_annotations.coco.json")  # fmt: skip
def roboflow_coco(at: Path) -> Answer:
    boxes: dict[str, list[Box]] = {"a_jpg.rf.0a1.jpg": [("dog", 1, 2, 11, 12)]}
    images = photos(boxes)
    plant(at / "train", images)
    text = coco([(name, 40, 30) for name in boxes], boxes, ["pets", "cat", "dog"])
    write(at, "train/_annotations.coco.json", text)
    return Answer(images, boxes=boxes)


@layout(28, "the root of a data set of Ultralytics", "coco8 STORE --listing coco8/data.yaml",
        says=r"there is no [.]txt file in it|has several splits", remedy=r"images/train",
        option="coco8/images/train STORE --listing coco8/data.yaml")  # fmt: skip
def ultralytics_root(at: Path) -> Answer:
    images = photos(["000.jpg", "001.jpg"])
    plant(at / "coco8/images/train", images)
    plant(at / "coco8/images/val", photos(["002.jpg"], 9))
    write(at, "coco8/labels/train/000.txt", "0 0.5 0.5 0.5 0.5\n")
    write(at, "coco8/labels/val/002.txt", "1 0.5 0.5 0.5 0.5\n")
    write(
        at, "coco8/data.yaml", "path: coco8\ntrain: images/train\nval: images/val\nnames:\n  0: person\n  1: bicycle\n"
    )
    return Answer(images, boxes={"000.jpg": [("person", 10, 7.5, 30, 22.5)], "001.jpg": []})


# --- 29: lists of attributes and of places ----------------------------------------------------------------------------

_ATTRIBUTES = ("Bald", "Eyeglasses", "Smiling")
_FACES: dict[str, Label] = {"000001.jpg": ("Smiling",), "000002.jpg": ("Bald", "Eyeglasses"), "000003.jpg": ()}


def _signs(found: Label) -> list[str]:
    return ["1" if name in (found if isinstance(found, tuple) else ()) else "-1" for name in _ATTRIBUTES]


@layout(29, "CelebA's list_attr_celeba.txt", "img_align_celeba STORE --listing list_attr_celeba.txt",
        says="attributes|header")  # fmt: skip
def celeba(at: Path) -> Answer:
    images = photos(_FACES)
    plant(at / "img_align_celeba", images)
    rows = [f"{name} {' '.join(f'{sign:>2}' for sign in _signs(found))}" for name, found in _FACES.items()]
    write(at, "list_attr_celeba.txt", "\n".join(["3", " ".join(_ATTRIBUTES) + " ", *rows]) + "\n")
    return Answer(images, _FACES, classes=_ATTRIBUTES)


@layout(29, "CelebA's list_attr_celeba.csv", "img_align_celeba STORE --listing list_attr_celeba.csv", says=COLUMNS,
        option="img_align_celeba STORE --listing list_attr_celeba.csv --label-column Bald,Eyeglasses,Smiling",
        tool="pandas")  # fmt: skip
def celeba_csv(at: Path) -> Answer:
    images = photos(_FACES)
    plant(at / "img_align_celeba", images)
    rows = [(name, *_signs(found)) for name, found in _FACES.items()]
    write_csv(at, "list_attr_celeba.csv", [("image_id", *_ATTRIBUTES), *rows])
    return Answer(images, _FACES, classes=_ATTRIBUTES)


@layout(29, "Places365's list", "data_large STORE --listing places365_train_standard.txt", says="text file")
def places_list(at: Path) -> Answer:
    folders = ("/a/airfield", "/a/airplane_cabin", "/b/bow_window/indoor")
    labels: dict[str, Label] = {f"{folder}/{n + 1:08}.jpg"[1:]: n for n, folder in enumerate(folders)}
    images = photos(labels)
    plant(at / "data_large", images)
    write(at, "places365_train_standard.txt", "".join(f"/{name} {n}\n" for n, name in enumerate(labels)))
    return Answer(images, labels)


# --- 30: JSON for models of images and language -----------------------------------------------------------------------


def _conversation(number: int) -> list[dict[str, str]]:
    return [{"from": "human", "value": f"<image>\nWhat is {number}?"}, {"from": "gpt", "value": "A dog."}]


def _llava(names: list[str]) -> tuple[list[dict[str, object]], dict[str, dict[str, object]]]:
    rows: list[dict[str, object]] = [
        {"id": f"00{n}", "image": name, "conversations": _conversation(n)} for n, name in enumerate(names)
    ]
    fields = {name: {"conversations": row["conversations"]} for name, row in zip(names, rows, strict=True)}
    return rows, fields


@layout(
    30, "LLaVA's JSON beside a zip", "images.zip STORE --listing llava.json", says="the folder where its paths start"
)
def llava_zip(at: Path) -> Answer:
    images = photos(["coco/train2017/000.jpg", "coco/train2017/001.jpg"])
    write_zip(at / "images.zip", images)
    rows, fields = _llava([*images])
    write(at, "llava.json", json.dumps(rows))
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(30, "LLaVA's JSON, with rows of text only", "data STORE --listing llava.json", says="no path in a column")
def llava_text(at: Path) -> Answer:
    images = photos(["gqa/0.jpg", "ocr_vqa/1.png"])
    plant(at / "data", images)
    rows, fields = _llava([*images])
    write(at, "llava.json", json.dumps([rows[0], {"id": "t", "conversations": _conversation(7)}, rows[1]]))
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(30, "COCO's captions", "train2017 STORE --listing captions_train2017.json", says="bbox of four numbers")
def coco_captions(at: Path) -> Answer:
    images = photos(["000000000009.jpg", "000000000025.jpg"])
    plant(at / "train2017", images)
    listed = [{"id": int(name[:-4]), "file_name": name, "width": 40, "height": 30} for name in images]
    captions = [{"id": 10 + n, "image_id": (9, 25)[n % 2], "caption": f"caption {n}"} for n in range(4)]
    write(at, "captions_train2017.json", json.dumps({"info": {}, "images": listed, "annotations": captions}))
    return Answer(images, dict.fromkeys(images))
