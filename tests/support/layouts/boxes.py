"""Boxes: of turned photographs, polygons, files under another name, and boxes without an area."""

from __future__ import annotations

from pathlib import Path

from tests.support.images import plant
from tests.support.layouts.base import Answer, Box, coco, layout, photo, photos, png, voc, write

TURNED = r"orientation|upright|annotations are for"
NO_AREA = r"(?i)no area|empty box|(height|width) (of )?0|0 (pixels )?(high|wide)"
NAMES = "names: [cat, dog]\n"


# --- 1: YOLO's boxes lie in the upright picture -----------------------------------------------------------------------


@layout(1, "YOLO, orientation 6", "images/train STORE --listing data.yaml", says=TURNED, tool="ultralytics",
        option="images/train STORE --listing data.yaml --boxes upright")  # fmt: skip
def yolo_six(at: Path) -> Answer:
    images = {"images/train/0.jpg": photo(1, 100, 40, 6)}
    plant(at, images)
    write(at, "data.yaml", NAMES)
    write(at, "labels/train/0.txt", "0 .25 .1 .5 .2\n")
    return Answer(images, boxes={"images/train/0.jpg": [("cat", 0, 0, 20, 20)]})


@layout(1, "YOLO, orientation 8, labels beside the image", "shots STORE --listing shots/classes.txt", says=TURNED,
        tool="ultralytics", option="shots STORE --listing shots/classes.txt --boxes upright")  # fmt: skip
def yolo_eight(at: Path) -> Answer:
    images = {"IMG_0001.JPG": photo(2, 80, 60, 8), "IMG_0002.JPG": photo(3, 80, 60)}
    plant(at / "shots", images)
    write(at, "shots/classes.txt", "cat\ndog\n")
    write(at, "shots/IMG_0001.txt", "1 0.5 0.25 0.5 0.25\n")
    write(at, "shots/IMG_0002.txt", "0 0.5 0.5 0.5 0.5\n")
    return Answer(images, boxes={"IMG_0001.JPG": [("dog", 15, 10, 45, 30)], "IMG_0002.JPG": [("cat", 20, 15, 60, 45)]})


@layout(1, "YOLO, mirrored, orientation 5", "images/val STORE --listing data.yaml", says=TURNED, tool="ultralytics",
        option="images/val STORE --listing data.yaml --boxes upright")  # fmt: skip
def yolo_five(at: Path) -> Answer:
    images = {"images/val/deep/a.jpg": photo(4, 64, 32, 5)}
    plant(at, images)
    write(at, "data.yaml", "names:\n  0: cat\n  1: dog\n")
    write(at, "labels/val/deep/a.txt", "1 0.25 0.75 0.25 0.25\n0 0.5 0.125 1 0.25\n")
    return Answer(images, boxes={"images/val/deep/a.jpg": [("dog", 4, 40, 12, 56), ("cat", 0, 0, 32, 16)]})


# --- 2: annotations made on the upright photograph --------------------------------------------------------------------


@layout(2, "COCO with width and height exchanged", "photos STORE --listing coco.json", says=TURNED,
        option="photos STORE --listing coco.json --boxes upright")  # fmt: skip
def coco_exchanged(at: Path) -> Answer:
    images = {"a.jpg": photo(1, 100, 40, 6), "b.jpg": photo(2, 100, 40)}
    boxes: dict[str, list[Box]] = {"a.jpg": [("cat", 2, 4, 22, 34)], "b.jpg": [("dog", 10, 5, 60, 35)]}
    plant(at / "photos", images)
    write(at, "coco.json", coco([("a.jpg", 40, 100), ("b.jpg", 100, 40)], boxes, ["cat", "dog"]))
    return Answer(images, boxes=boxes)


@layout(2, "VOC with width and height exchanged", "photos STORE --listing xml", says=TURNED,
        option="photos STORE --listing xml --boxes upright")  # fmt: skip
def voc_exchanged(at: Path) -> Answer:
    images = {"a.jpg": photo(1, 90, 50, 8)}
    boxes: dict[str, list[Box]] = {"a.jpg": [("cat", 5, 10, 45, 80)]}
    plant(at / "photos", images)
    write(at, "xml/a.xml", voc("a.jpg", (50, 90), boxes["a.jpg"]))
    return Answer(images, boxes=boxes)


@layout(2, "COCO, orientation 3, same size", "photos STORE --listing coco.json", says=TURNED,
        option="photos STORE --listing coco.json --boxes upright")  # fmt: skip
def coco_three(at: Path) -> Answer:
    images = {"a.jpg": photo(1, 64, 64, 3)}
    boxes: dict[str, list[Box]] = {"a.jpg": [("cat", 2, 4, 22, 34)]}
    plant(at / "photos", images)
    write(at, "coco.json", coco([("a.jpg", 64, 64)], boxes, ["cat"]))
    return Answer(images, boxes=boxes)


# --- 18: files that are not called as their XML says ------------------------------------------------------------------


@layout(18, "VOC filename without extension", "images STORE --listing xml", says=r"is 0: cannot be read|<filename>")
def voc_stem(at: Path) -> Answer:
    images = photos(["0.jpg", "1.jpg"])
    boxes: dict[str, list[Box]] = {"0.jpg": [("cat", 2, 3, 20, 20)], "1.jpg": [("dog", 5, 5, 30, 25)]}
    plant(at / "images", images)
    for name in images:
        write(at, f"xml/{name[0]}.xml", voc(name[0], (40, 30), boxes[name]))
    return Answer(images, boxes=boxes)


@layout(
    18,
    "VOC filename from before a rename",
    "images STORE --listing xml",
    says=r"is DSC00\.JPG: cannot be read|<filename>",
)
def voc_renamed(at: Path) -> Answer:
    images = photos(["cat_001.png", "cat_002.png"], width=40, height=30)
    boxes: dict[str, list[Box]] = {name: [("cat", 2, 3, 20, 20 + number)] for number, name in enumerate(images)}
    plant(at / "images", images)
    for number, name in enumerate(images):
        write(at, f"xml/{Path(name).stem}.xml", voc(f"DSC0{number}.JPG", (40, 30), boxes[name]))
    return Answer(images, boxes=boxes)


@layout(18, "VOC filename is a path on Windows", "images STORE --listing annotations", says=r"<filename>|\\")
def voc_windows(at: Path) -> Answer:
    images = photos(["a.jpg"])
    boxes: dict[str, list[Box]] = {"a.jpg": [("dog", 1, 2, 30, 20)]}
    plant(at / "images", images)
    write(at, "annotations/a.xml", voc(r"C:\Users\me\pets\a.jpg", (40, 30), boxes["a.jpg"]))
    return Answer(images, boxes=boxes)


# --- 19: lines of YOLO that are not boxes -----------------------------------------------------------------------------


@layout(
    19,
    "YOLO polygon",
    "images STORE --listing data.yaml",
    tool="ultralytics",
    says="polygon|segment|must be a class and x, y, width, height",
)
def yolo_polygon(at: Path) -> Answer:
    images = photos(["images/0.jpg"])
    plant(at, images)
    write(at, "data.yaml", NAMES)
    write(at, "labels/0.txt", "0 .1 .1 .5 .1 .5 .5 .1 .5\n")
    return Answer(images, boxes={"images/0.jpg": [("cat", 4, 3, 20, 15)]})


@layout(
    19,
    "YOLO polygons beside boxes",
    "images/train STORE --listing data.yaml",
    remedy="mix",  # as Ultralytics says
    tool="ultralytics",
    says="polygon|segment|must be a class and x, y, width, height",
)
def yolo_mixed(at: Path) -> Answer:
    images = photos(["images/train/a.png", "images/train/b.png"], width=40, height=40)
    plant(at, images)
    write(at, "data.yaml", NAMES)
    write(at, "labels/train/a.txt", "1 0.5 0.5 0.5 0.5\n0 0.1 0.9 0.2 0.5 0.4 0.75\n")
    write(at, "labels/train/b.txt", "1 0.25 0.25 0.5 0.5\n")
    boxes: dict[str, list[Box]] = {"images/train/a.png": [("dog", 10, 10, 30, 30), ("cat", 4, 20, 16, 36)]}
    return Answer(images, boxes={**boxes, "images/train/b.png": [("dog", 0, 0, 20, 20)]})


@layout(
    19,
    "YOLO pose",
    "images STORE --listing data.yaml",
    tool="ultralytics",
    says="keypoint|pose|kpt_shape|must be a class and x, y, width, height",
)
def yolo_pose(at: Path) -> Answer:
    images = photos(["images/0.jpg"])
    plant(at, images)
    write(at, "data.yaml", "kpt_shape: [2, 3]\nnames: [person]\n")
    write(at, "labels/0.txt", "0 .5 .5 .5 .5 .4 .4 2 .6 .6 1\n")
    return Answer(images, boxes={"images/0.jpg": [("person", 10, 7.5, 30, 22.5)]})


# --- 26: boxes without an area ----------------------------------------------------------------------------------------


@layout(26, "COCO box of height 0", "photos STORE --listing coco.json", says=NO_AREA, remedy=NO_AREA, must_say=True)
def coco_flat_box(at: Path) -> Answer:
    images = photos(["a.jpg", "b.jpg"])
    boxes: dict[str, list[Box]] = {"a.jpg": [("cat", 2, 4, 22, 24), ("cat", 9, 10, 33, 10)]}
    plant(at / "photos", images)
    write(at, "coco.json", coco([("a.jpg", 40, 30), ("b.jpg", 40, 30)], boxes, ["cat"]))
    return Answer(images, boxes={"a.jpg": boxes["a.jpg"][:1]})


@layout(26, "YOLO box of width 0", "images STORE --listing data.yaml", says=NO_AREA, remedy=NO_AREA, must_say=True)
def yolo_thin_box(at: Path) -> Answer:
    images = photos(["images/a.jpg"])
    plant(at, images)
    write(at, "data.yaml", NAMES)
    write(at, "labels/a.txt", "0 0.5 0.5 0 0.5\n1 0.5 0.5 0.5 0.5\n")
    return Answer(images, boxes={"images/a.jpg": [("dog", 10, 7.5, 30, 22.5)]})


@layout(
    26,
    "JSON listing with a box that is a line",
    "photos STORE --listing boxes.jsonl",
    says=NO_AREA,
    remedy=NO_AREA,
    must_say=True,
)
def listed_line(at: Path) -> Answer:
    images = {"a.png": png(1)}
    plant(at / "photos", images)
    write(at, "boxes.jsonl", '{"path": "a.png", "boxes": [[1, 2, 9, 2], [1, 2, 9, 12]], "box_labels": [0, 1]}\n')
    return Answer(images, fields={"a.png": {"boxes": [[1.0, 2.0, 9.0, 12.0]]}})
