"""Other programs can read COCO and YOLO exports. `convert` makes the exported store again from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from dbloader import convert, export_store, open_store, write_store
from dbloader.errors import ExportError
from tests.contracts.records import stored
from tests.support.images import photo, plant

BOXES = [[1.1, 2.7, 3.3, 4.9], [0, 0, 40, 30], [20.05, 7, 9.25, 11]]  # each box is x, y, width, height


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "files" / "images", {f"{name}.jpg": photo(n) for n, name in enumerate(("a", "b/c", "b/d"))})


def coco(root: Path, tmp_path: Path) -> Path:
    """Write COCO annotations with gaps in their ids, a class without boxes, and a segmentation."""
    names = ["a.jpg", "b/c.jpg", "b/d.jpg"]
    images = [{"id": 7 - n, "file_name": name, "width": 40, "height": 30} for n, name in enumerate(names)]
    boxes = [{"id": n, "image_id": 7 if n < 2 else 5, "category_id": (90, 3, 90)[n], "bbox": box, "area": 1.5,
              "segmentation": [[0, 0, 1.50, 1]], "iscrowd": n % 2} for n, box in enumerate(BOXES)]  # fmt: skip
    names_of = {90: "ear", 3: "nose", 80: "none", 99: "end"}
    categories = [{"id": number, "name": name} for number, name in names_of.items()]
    listing = tmp_path / "instances.json"
    listing.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}, indent=1))
    return listing


def yolo(root: Path, tmp_path: Path) -> Path:
    """Write YOLO labels with numbers that binary floats cannot represent exactly."""
    lines = ["1 0.3 0.7 0.1 0.17", "0 0.5 0.5 1 1"]
    plant(root.parent / "labels", {"a.txt": "\n".join(lines).encode(), "b/c.txt": b"\xef\xbb\xbf0 .33333 .4 .2 .1"})
    (tmp_path / "data.yaml").write_text("names:\n  0: cat\n  1: 'dog: big'\n")
    return tmp_path / "data.yaml"


LAYOUTS = {"coco": (coco, "annotations.json"), "yolo": (yolo, "data.yaml")}


def facts(place: Path) -> tuple[Any, ...]:
    with open_store(place) as store:
        return store.manifest.digest, store.manifest.classes, stored(store, range(len(store)))


@pytest.mark.parametrize("format", LAYOUTS)
def test_export_with_boxes_converts_to_the_same_store(root: Path, tmp_path: Path, format: str) -> None:  # noqa: A002
    make, listing = LAYOUTS[format]
    report = convert(root, tmp_path / "first.lmdb", listing=make(root, tmp_path))
    assert (report.records, report.rejected) == (3, 0)
    assert export_store(tmp_path / "first.lmdb", tmp_path / "out", format=format).warnings == ()
    again = convert(tmp_path / "out" / "images", tmp_path / "again.lmdb", listing=tmp_path / "out" / listing)
    assert again.rejected == 0
    assert facts(tmp_path / "again.lmdb") == facts(tmp_path / "first.lmdb")
    export_store(tmp_path / "first.lmdb", tmp_path / "some", format=format, where="name:b/*")
    if format == "coco":  # a class without a box in these records keeps its id too
        data = [json.loads((tmp_path / folder / listing).read_text()) for folder in ("out", "some")]
        assert data[0]["categories"] == data[1]["categories"]
    convert(tmp_path / "some" / "images", tmp_path / "some.lmdb", listing=tmp_path / "some" / listing)
    with open_store(tmp_path / "some.lmdb") as some, open_store(tmp_path / "first.lmdb") as store:
        assert [*some.column("crc32")] == [*store.column("crc32")[1:]]


@pytest.mark.parametrize(("source", "format"), [("coco", "yolo"), ("yolo", "coco")])
def test_other_programs_read_the_boxes(root: Path, tmp_path: Path, source: str, format: str) -> None:  # noqa: A002
    convert(root, tmp_path / "first.lmdb", listing=LAYOUTS[source][0](root, tmp_path))
    export_store(tmp_path / "first.lmdb", out := tmp_path / "out", format=format)
    found: dict[str, list[Any]] = {}
    if format == "coco":  # as pycocotools does
        data = json.loads((out / "annotations.json").read_text())
        names = {one["id"]: one["name"] for one in data["categories"]}
        for image in data["images"]:
            with Image.open(out / "images" / image["file_name"]) as opened:
                assert opened.size == (image["width"], image["height"])
            boxes = [one for one in data["annotations"] if one["image_id"] == image["id"]]
            found[image["file_name"]] = [(names[one["category_id"]], *one["bbox"]) for one in boxes]
        assert len({one["id"] for one in data["annotations"]}) == len(data["annotations"]) == 3
    else:  # as Ultralytics does
        data = yaml.safe_load((out / "data.yaml").read_text())
        for path in sorted((out / data["train"]).rglob("*.jpg")):
            name = str(path.relative_to(out / "images"))
            lines = (out / "labels" / name).with_suffix(".txt").read_text().splitlines()
            rows = [map(float, line.split()) for line in lines]
            boxes = [(n, (x - w / 2) * 40, (y - h / 2) * 30, w * 40, h * 30) for n, x, y, w, h in rows]
            found[name] = [(data["names"][int(box[0])], *box[1:]) for box in boxes]
    with open_store(tmp_path / "first.lmdb") as store:
        assert [*found] == [*store.names()]
        for record, boxes in zip(store, found.values(), strict=True):
            left, right = record.fields["boxes"][:, :2], record.fields["boxes"][:, 2:]
            assert [box[0] for box in boxes] == [store.manifest.classes[n] for n in record.fields["box_labels"]]
            corners = np.array([box[1:] for box in boxes]).reshape(-1, 4)
            assert corners == pytest.approx(np.concatenate((left, right - left), 1), abs=1e-4)


def test_export_warns_about_labels_fields_and_names_that_it_loses(root: Path, tmp_path: Path) -> None:
    del root
    boxes = {"boxes": np.zeros((1, 4), np.float32), "box_labels": np.array([0])}
    samples = [
        {"image": photo(n), "name": name, **boxes, **more}
        for n, (name, more) in enumerate((("b.jpg", {}), ("a.jpg", {"label": 0, "caption": "x"}), ("a.jpeg", {})))
    ]
    write_store(samples, tmp_path / "x.lmdb", classes=("cat",))
    assert export_store(tmp_path / "x.lmdb", tmp_path / "out", format="yolo").warnings == (
        "1 record whose 'label' is left out: other formats keep it",
        "1 record whose 'caption' is left out: other formats keep it",
        "1 record renamed: their names are unusable for image files, or taken",
        "records are not in the order of their paths, but convert reads files in that order",
    )
    assert {path.name for path in (tmp_path / "out" / "labels").iterdir()} == {"a.txt", "b.txt", "000000002.txt"}


@pytest.mark.parametrize(
    ("sample", "classes", "message"),
    [
        ({}, ("cat",), "has no arrays 'boxes' and 'box_labels' of the same length"),
        ({"boxes": np.zeros((1, 4)), "box_labels": np.array([1])}, ("cat",), "1, which is no class of the store"),
        ({"boxes": np.zeros((1, 4)), "box_labels": np.array([0])}, ("c", "c"), "two of its classes have the same name"),
    ],
)
def test_store_without_valid_boxes_is_refused(
    tmp_path: Path, sample: Any, classes: tuple[str, ...], message: str
) -> None:
    write_store([{"image": photo(1), "name": "a.jpg", **sample}], tmp_path / "x.lmdb", classes=classes)
    with pytest.raises(ExportError, match=message):
        export_store(tmp_path / "x.lmdb", tmp_path / "out", format="coco")
