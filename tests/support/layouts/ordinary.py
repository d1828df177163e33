"""Layouts as most people have them. They convert without a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from tests.support.images import encoded, plant
from tests.support.jpegs import draw
from tests.support.layouts.base import (
    Answer,
    Box,
    Label,
    by_folder,
    coco,
    mask,
    ordinary,
    photo,
    photos,
    voc,
    write,
    write_csv,
    write_jsonl,
    write_tar,
    write_zip,
)


@ordinary("ImageFolder", "train STORE", tool="torchvision")
def image_folder(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "cat/deep/1.JPEG", "dog/3.jpg"])
    images["dog/2.png"] = encoded(draw(24, 18).convert("RGBA"), "PNG")  # opaque
    plant(at / "train", images)
    return Answer(images, by_folder(images), classes=("cat", "dog"))


@ordinary("ImageFolder, photographs of phones", "train STORE")
def phone_photos(at: Path) -> Answer:
    images = {"Großer Hund/IMG 1.JPG": photo(1, orientation=6), "cat, black/IMG_2.jpeg": photo(2, orientation=3)}
    plant(at / "train", images)
    write(at, "train/README.md", "# pets\n")
    return Answer(images, by_folder(images), classes=("Großer Hund", "cat, black"), decodes=True)


@ordinary("train and val of the same classes", "train STORE", "val STORE")
def same_classes(at: Path) -> Answer:
    plant(at / "train", photos((f"{name}/{n}.jpg" for name in "abc" for n in range(2)), 10))
    images = photos(f"{name}/9.jpg" for name in "abc")
    plant(at / "val", images)
    return Answer(images, by_folder(images), classes="abc")


@ordinary("MNIST's folders 0 to 9", "mnist STORE", tool="torchvision")
def digits(at: Path) -> Answer:
    images = {f"{n}/{n}.png": encoded(draw(28, 28, "L", n), "PNG") for n in range(10)}
    plant(at / "mnist", images)
    return Answer(images, by_folder(images), classes="0123456789", decodes=True)


@ordinary("CSV of path and label", "images STORE --listing labels.csv", tool="pandas")
def csv_names(at: Path) -> Answer:
    labels: dict[str, Label] = {"0.jpg": "oak", "1.jpg": "ash", "deep/2.jpg": "oak"}
    images = photos(labels)
    plant(at / "images", images)
    write_csv(at, "labels.csv", [("path", "label"), *labels.items()])
    return Answer(images, labels, classes=("ash", "oak"))


@ordinary("Kaggle's filename and label, numbers in columns", "train STORE --listing train.csv", tool="pandas")
def csv_numbers(at: Path) -> Answer:
    rows = [("0a.jpg", 2, 4.5, 7, "north"), ("0b.jpg", 0, 31.0, 8, "south"), ("0c.jpg", 1, 0.25, -9, "")]
    images = photos(row[0] for row in rows)
    plant(at / "train", images)
    write_csv(at, "train.csv", [("filename", "label", "weight", "visits", "site"), *rows])
    names = ("weight", "visits", "site")
    fields = {row[0]: {name: value for name, value in zip(names, row[2:], strict=True) if value != ""} for row in rows}
    return Answer(images, {row[0]: int(row[1]) for row in rows}, fields=fields)


@ordinary("CSV of a German spreadsheet", "bilder STORE --listing liste.csv")
def csv_semicolons(at: Path) -> Answer:
    labels: dict[str, Label] = {"Äpfel/1.jpg": "Äpfel", "Birnen/2.jpg": "Birnen"}
    images = photos(labels)
    plant(at / "bilder", images)
    text = "\ufefffile;label\r\n" + "".join(f"{name};{label}\r\n" for name, label in labels.items())
    write(at, "liste.csv", text)
    return Answer(images, labels)


@ordinary("TSV with captions, ids and flags", "photos STORE --listing captions.tsv", tool="pandas")
def tsv(at: Path) -> Answer:
    rows = [("a.jpg", "a dog, on grass", "007", "True"), ("b.jpg", "two cats", "012", "False")]
    images = photos(row[0] for row in rows)
    plant(at / "photos", images)
    write_csv(at, "captions.tsv", [("image", "label", "code", "indoor"), *rows], "\t")
    fields = {name: {"code": code, "indoor": flag == "True"} for name, _, code, flag in rows}
    return Answer(images, {row[0]: row[1] for row in rows}, fields=fields)


@ordinary("JSON lines", "photos STORE --listing photos.jsonl")
def jsonl(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg"])
    plant(at / "photos", images)
    rows = [{"path": name, "label": n, "caption": f"näher {n}", "score": n / 4} for n, name in enumerate(images)]
    write_jsonl(at, "photos.jsonl", rows)
    fields = {str(row["path"]): {"caption": row["caption"], "score": row["score"]} for row in rows}
    return Answer(images, {"0.jpg": 0, "1.jpg": 1}, fields=fields)


@ordinary("metadata.csv of Hugging Face", "data STORE", tool="datasets")
def metadata_csv(at: Path) -> Answer:
    images = photos(["train/0.png", "train/1.png"])
    plant(at / "data", images)
    write_csv(at, "data/metadata.csv", [("file_name", "label"), ("train/0.png", "cat"), ("train/1.png", "dog")])
    return Answer(images, {"train/0.png": "cat", "train/1.png": "dog"}, classes=("cat", "dog"))


@ordinary("metadata.jsonl with captions in class folders", "data STORE", tool="datasets")
def metadata_jsonl(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "dog/1.jpg"])
    plant(at / "data", images)
    fields = {name: {"text": f"a {name[:3]}"} for name in images}
    write_jsonl(at, "data/metadata.jsonl", [{"file_name": name, **values} for name, values in fields.items()])
    return Answer(images, by_folder(images), classes=("cat", "dog"), fields=fields)


@ordinary("masks", "scenes STORE --listing scenes/scenes.jsonl --file-field mask")
def masks(at: Path) -> Answer:
    images = photos(["images/0.jpg", "images/1.jpg"])
    files = {f"masks/{n}.png": mask(n) for n in range(2)}
    plant(at / "scenes", {**images, **files})
    rows = [{"path": name, "mask": f"masks/{n}.png", "label": n} for n, name in enumerate(images)]
    write_jsonl(at, "scenes/scenes.jsonl", rows)
    fields = {name: {"mask": data} for name, data in zip(images, files.values(), strict=True)}
    return Answer(images, dict(zip(images, (0, 1), strict=True)), fields=fields)


@ordinary("COCO", "coco/val2017 STORE --listing coco/annotations/instances_val2017.json", tool="pycocotools")
def coco_boxes(at: Path) -> Answer:
    boxes: dict[str, list[Box]] = {"0.jpg": [("dog", 1, 2, 11, 12.5), ("cat", 0, 0, 40, 30)], "1.jpg": []}
    images = photos(boxes)
    plant(at / "coco/val2017", images)
    text = coco([(name, 40, 30) for name in boxes], boxes, ["cat", "dog"])
    write(at, "coco/annotations/instances_val2017.json", text)
    return Answer(images, boxes=boxes, classes=("cat", "dog"))


@ordinary("YOLO", "data/images/train STORE --listing data/data.yaml", tool="ultralytics")
def yolo(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg"])
    plant(at / "data/images/train", images)
    write(at, "data/labels/train/0.txt", "1 0.5 0.5 0.5 0.5\n0 0.25 0.25 0.25 0.2\n")
    write(at, "data/data.yaml", "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n")
    boxes: dict[str, list[Box]] = {"0.jpg": [("dog", 10, 7.5, 30, 22.5), ("cat", 5, 4.5, 15, 10.5)], "1.jpg": []}
    return Answer(images, boxes=boxes, classes=("cat", "dog"))


@ordinary("VOC", "VOC2007/JPEGImages STORE --listing VOC2007/ImageSets/Main/train.txt")
def voc_boxes(at: Path) -> Answer:
    boxes: dict[str, list[Box]] = {"000005.jpg": [("chair", 4, 5, 30, 25)], "000007.jpg": [("car", 0, 0, 40, 30)]}
    images = photos(boxes)
    plant(at / "VOC2007/JPEGImages", {**images, "000009.jpg": photo(9)})
    for name, found in boxes.items():
        write(at, f"VOC2007/Annotations/{name[:-4]}.xml", voc(name, (40, 30), found))
    write(at, "VOC2007/Annotations/000009.xml", voc("000009.jpg", (40, 30), []))
    write(at, "VOC2007/ImageSets/Main/train.txt", "000005\n000007\n")
    return Answer(images, boxes=boxes)


@ordinary("WebDataset with classes", "'train-{000000..000001}.tar' STORE")
def webdataset(at: Path) -> Answer:
    images = photos(f"{n:06}.jpg" for n in range(4))
    for shard in range(2):
        files: dict[str, bytes | str] = {}
        for number in (2 * shard, 2 * shard + 1):
            name = f"{number:06}"
            facts = json.dumps({"caption": f"number {number}"}).encode()
            files |= {
                f"{name}.jpg": images[f"{name}.jpg"],
                f"{name}.cls": str(number % 3).encode(),
                f"{name}.json": facts,
            }
        write_tar(at / f"train-{shard:06}.tar", files)
    fields = {f"{n:06}.jpg": {"json": {"caption": f"number {n}"}} for n in range(4)}
    return Answer(images, {f"{n:06}.jpg": n % 3 for n in range(4)}, fields=fields)


@ordinary("WebDataset with captions", "00000.tar STORE")
def webdataset_captions(at: Path) -> Answer:
    images = photos(["000000000.jpg", "000000001.jpg"])
    files: dict[str, bytes | str] = {}
    for name, data in images.items():
        files |= {name: data, f"{name[:-4]}.txt": b"a caption", f"{name[:-4]}.json": b'{"url": "http://a"}'}
    write_tar(at / "00000.tar", files)
    return Answer(images, dict.fromkeys(images), fields={name: {"txt": "a caption"} for name in images})


@ordinary("tar.gz of an image folder", "flowers.tar.gz STORE")
def tar_folder(at: Path) -> Answer:
    images = photos(["flowers/daisy/0.jpg", "flowers/rose/1.jpg"])
    write_tar(at / "flowers.tar.gz", {**images, "flowers/LICENSE.txt": b"CC-BY"}, "w:gz")
    return Answer(images, by_folder(images, 1), classes=("daisy", "rose"))


@ordinary("zip of an image folder", "flowers.zip STORE")
def zip_folder(at: Path) -> Answer:
    images = photos(["flowers/Gänseblümchen/0.jpg", "flowers/rose/1.png"])
    write_zip(at / "flowers.zip", images)
    return Answer(images, by_folder(images, 1), classes=("Gänseblümchen", "rose"))


@ordinary("Parquet of Hugging Face", "data STORE", tool="datasets")
def parquet(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg", "2.jpg"])
    names = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": names, "score": {"dtype": "float64", "_type": "Value"}}
    column = [{"bytes": data, "path": name} for name, data in images.items()]
    table = pyarrow.table({"image": column, "label": [1, 0, 1], "score": [0.5, 1.0, 2.5]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (at / "data").mkdir()
    pyarrow.parquet.write_table(table, at / "data" / "train-00000-of-00001.parquet")
    labels: dict[str, Label] = {"0.jpg": "dog", "1.jpg": "cat", "2.jpg": "dog"}
    return Answer(images, labels, classes=("cat", "dog"), fields={"0.jpg": {"score": 0.5}})
