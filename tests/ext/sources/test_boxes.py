"""Boxes lie on the same pixels, whether they were drawn on the upright or on the stored image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from dbloader import ImageFormat, LMDBDataset, convert, export_store
from dbloader.conversion.report import Report
from dbloader.decoding import DecodeTensor
from dbloader.errors import ConversionError, OptionError
from dbloader.ext.sources.boxes import find_orientation
from tests.support.conversion import report_lines
from tests.support.images import encoded, plant
from tests.support.jpegs import turned_exif
from tests.support.layouts.base import Box, coco, voc

BOX = (8, 16, 24, 40)  # in the upright image
# Pillow's way from the upright image to the stored one, for each EXIF orientation.
STORE = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def turned(orientation: int, width: int = 64, height: int = 48) -> bytes:
    """Return a PNG whose upright image has this size, and is black but for a white box."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    image, way = Image.fromarray(pixels), STORE[orientation]
    return encoded(image if way is None else image.transpose(way), "PNG", exif=turned_exif(orientation))


def is_on_the_box(place: Path, *, upright: bool) -> bool:
    """Return whether the box of the first record is exactly the white part of the image, with or without EXIF."""
    with LMDBDataset(place, fields=("image", "boxes"), decode=DecodeTensor(exif_transpose=upright)) as dataset:
        sample = dataset[0]
    left, top, right, bottom = (round(edge) for edge in np.asarray(sample["boxes"])[0].tolist())
    inside = sample["image"][:, top:bottom, left:right]
    return bool(inside.numel()) and bool((inside == 255).all()) and int(inside.sum()) == int(sample["image"].sum())


def labels(at: Path, orientation: int, kind: str, size: tuple[int, int], box: tuple[int, ...] = BOX) -> dict[str, Any]:
    """Write an image and its annotations, and return the arguments of convert."""
    plant(at / "images", {"a.png": turned(orientation)})
    named: list[Box] = [("cat", box[0], box[1], box[2], box[3])]
    if kind == "YOLO":
        middle = (box[0] + box[2]) / 2 / size[0], (box[1] + box[3]) / 2 / size[1]
        line = f"0 {middle[0]} {middle[1]} {(box[2] - box[0]) / size[0]} {(box[3] - box[1]) / size[1]}"
        plant(at, {"data.yaml": b"names: [cat]", "labels/a.txt": line.encode()})
        return {"source": at / "images", "listing": at / "data.yaml"}
    if kind == "COCO":
        plant(at, {"coco.json": coco([("a.png", *size)], {"a.png": named}, ["cat"]).encode()})
        return {"source": at / "images", "listing": at / "coco.json"}
    plant(at, {"xml/a.xml": voc("a.png", size, named).encode()})
    return {"source": at / "images", "listing": at / "xml"}


@pytest.mark.parametrize("kind", ["YOLO", "COCO", "VOC"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_box_is_on_the_same_pixels_in_training(orientation: int, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    report = convert(**labels(tmp_path, orientation, kind, (64, 48)), destination=place, boxes="upright")
    assert (report.records, report.warnings) == (1, ())
    assert is_on_the_box(place, upright=True)
    assert is_on_the_box(place, upright=False)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_yolo_export_is_upright(orientation: int, tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    first = convert(**labels(tmp_path, orientation, "YOLO", (64, 48)), destination=place)
    assert is_on_the_box(place, upright=True)
    export_store(place, tmp_path / "yolo", format="yolo")
    [line] = (tmp_path / "yolo/labels").rglob("*.txt")
    assert np.allclose([*map(float, line.read_text().split())], [0, 16 / 64, 28 / 48, 16 / 64, 24 / 48])
    again = convert(tmp_path / "yolo/images", tmp_path / "b.lmdb", listing=tmp_path / "yolo/data.yaml")
    assert again.digest == first.digest


@pytest.mark.parametrize(("kind", "size"), [("COCO", (64, 48)), ("VOC", (64, 48)), ("COCO", (48, 64))])
def test_size_in_the_annotations_shows_the_frame(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    box = BOX if size == (64, 48) else (16, 40, 40, 56)  # orientation 6: stored x is upright y, y is 64 - x
    report = convert(**labels(tmp_path, 6, kind, size, box), destination=tmp_path / "a.lmdb")
    assert (report.records, report.warnings, report.turned) == (1, (), 0)
    assert is_on_the_box(tmp_path / "a.lmdb", upright=True)
    assert is_on_the_box(tmp_path / "a.lmdb", upright=False)


def test_frame_that_nothing_shows_is_a_warning_with_the_option(tmp_path: Path) -> None:
    arguments = labels(tmp_path, 3, "COCO", (64, 48), (40, 8, 56, 32))
    report = convert(**arguments, destination=tmp_path / "a.lmdb")
    assert report.turned == 1
    assert "--boxes upright" in report.warnings[0]
    assert [event["reason"] for event in report_lines(report)] == [
        "has EXIF orientation 3; its boxes are taken to fit the stored image"
    ]
    assert is_on_the_box(tmp_path / "a.lmdb", upright=True)
    decided = convert(**arguments, destination=tmp_path / "b.lmdb", boxes="stored")
    assert (decided.warnings, decided.digest) == ((), report.digest)


@pytest.mark.parametrize("kind", ["chunk", "chunk after the pixels", "profile", "XMP"])
def test_orientation_of_a_png_is_found_in_every_chunk(kind: str) -> None:
    info, exif = PngInfo(), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    if kind == "profile":
        info.add_text("Raw profile type exif", f"\nexif\n{len(exif.tobytes()):8}\n{exif.tobytes().hex()}\n", zip=True)
    elif kind == "XMP":
        info.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    data = encoded(Image.new("RGB", (30, 20)), "PNG", pnginfo=info, **{"exif": exif} if "chunk" in kind else {})
    if kind == "chunk after the pixels":
        start = data.index(b"eXIf") - 4
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        data = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    assert find_orientation(data) == 6


def test_size_that_contradicts_the_chosen_frame_is_rejected(tmp_path: Path) -> None:
    arguments = labels(tmp_path, 6, "COCO", (64, 48))
    with pytest.raises(ConversionError, match="has 48 x 64 pixels, but its annotations are for 64 x 48"):
        convert(**arguments, destination=tmp_path / "a.lmdb", boxes="stored")


def test_boxes_are_scaled_with_a_turned_image(tmp_path: Path) -> None:
    small = ImageFormat(short_side=24)
    convert(**labels(tmp_path, 8, "YOLO", (64, 48)), destination=tmp_path / "a.lmdb", images=small)
    with LMDBDataset(tmp_path / "a.lmdb", fields=("image", "boxes"), decode=DecodeTensor(exif_transpose=True)) as found:
        assert found[0]["image"].shape == (3, 24, 32)
        assert np.asarray(found[0]["boxes"]).tolist() == [[4, 8, 12, 20]]


def test_exported_boxes_follow_the_option(tmp_path: Path) -> None:
    convert(**labels(tmp_path, 3, "COCO", (64, 48)), destination=tmp_path / "a.lmdb", boxes="stored")
    export_store(tmp_path / "a.lmdb", tmp_path / "out", format="parquet")
    for decided, is_right in ((None, False), ("stored", False), ("upright", True)):
        place = tmp_path / f"{decided}.lmdb"
        convert(tmp_path / "out", place, boxes=decided)
        assert is_on_the_box(place, upright=True) == is_right


def in_units(at: Path, kind: str, *, fractions: bool) -> tuple[dict[str, Any], bool]:
    """Write BOX in a unit. Return the arguments of convert, and whether only the option can tell the unit."""
    sides = (64, 48) if fractions else (1, 1)
    x, y, right, bottom = (edge / side for edge, side in zip(BOX, (*sides, *sides), strict=True))
    source = plant(at / "images", {"a.png": turned(1)})
    if kind == "YOLO":
        line = f"0 {(x + right) / 2} {(y + bottom) / 2} {right - x} {bottom - y}"
        plant(at, {"data.yaml": b"names: [cat]", "labels/a.txt": line.encode()})
        return {"source": source, "listing": at / "data.yaml"}, False
    if kind == "Parquet":
        kinds = pyarrow.struct([("bbox", pyarrow.list_(pyarrow.list_(pyarrow.float64()))),
                                ("category", pyarrow.list_(pyarrow.int64()))])  # fmt: skip
        objects = pyarrow.array([{"bbox": [[x, y, right - x, bottom - y]], "category": [0]}], kinds)
        images = [{"bytes": turned(1), "path": "a.png"}]
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "objects": objects}), at / "x.parquet")
        return {"source": at / "x.parquet"}, fractions
    if kind == "COCO":
        (at / "x.json").write_text(coco([("a.png", 64, 48)], {"a.png": [("cat", x, y, right, bottom)]}, ["cat"]))
    elif kind == "CSV":
        (at / "x.csv").write_text(f"path,x1,y1,x2,y2,label\na.png,{x},{y},{right},{bottom},cat\n")
    else:
        row = {"path": "a.png", "boxes": [[x, y, right, bottom]], "box_labels": [0]}
        (at / "x.jsonl").write_text(json.dumps(row))
    name = {"COCO": "x.json", "CSV": "x.csv", "JSON": "x.jsonl"}[kind]
    return {"source": source, "listing": at / name}, False


@pytest.mark.parametrize("kind", ["YOLO", "COCO", "CSV", "JSON", "Parquet"])
@pytest.mark.parametrize("fractions", [False, True])
def test_unit_of_boxes_is_decided_for_every_source(tmp_path: Path, kind: str, fractions: bool) -> None:
    arguments, is_undecidable = in_units(tmp_path, kind, fractions=fractions)
    unit = "fractions" if fractions else "pixels"
    report = convert(**arguments, destination=tmp_path / "a.lmdb", boxes=unit, progress=None)
    assert report.warnings == ()
    assert is_on_the_box(tmp_path / "a.lmdb", upright=True)
    if is_undecidable or (kind == "YOLO" and not fractions):
        return
    undecided = "".join(convert(**arguments, destination=tmp_path / "b.lmdb", progress=None).warnings)
    assert ("--boxes fractions" in undecided) == (kind == "Parquet" or (fractions and kind != "YOLO"))
    assert is_on_the_box(tmp_path / "b.lmdb", upright=True)


def test_yolo_boxes_in_pixels_are_rejected_with_the_option(tmp_path: Path) -> None:
    arguments, _ = in_units(tmp_path, "YOLO", fractions=False)
    with pytest.raises(
        ConversionError, match=r"is not within its 64 x 48 pixels; mend it, or if boxes are in pixels, .*--boxes pixels"
    ):
        convert(**arguments, destination=tmp_path / "a.lmdb", progress=None)


def test_small_boxes_may_be_pixels(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"a.png": turned(1)})
    (tmp_path / "x.csv").write_text("path,x1,y1,x2,y2,label\na.png,0,0,1,1,cat\n")
    for boxes, expected in (("pixels", [0, 0, 1, 1]), ("stored,fractions", [0, 0, 64, 48])):
        convert(tmp_path / "images", tmp_path / f"{boxes}.lmdb", listing=tmp_path / "x.csv", boxes=boxes, progress=None)
        with LMDBDataset(tmp_path / f"{boxes}.lmdb", fields=("boxes",)) as dataset:
            assert np.asarray(dataset[0]["boxes"]).tolist() == [expected]


@pytest.mark.parametrize("boxes", ["upright,stored", "pixels,pixels", "", "percent", "upright, pixels", 7])
def test_wrong_words_about_boxes_are_an_error(tmp_path: Path, boxes: Any) -> None:
    with pytest.raises(OptionError, match=r"boxes \(--boxes\) must be"):
        convert(**labels(tmp_path, 1, "COCO", (64, 48)), destination=tmp_path / "a.lmdb", boxes=boxes)


def test_option_is_refused_where_no_boxes_are(tmp_path: Path) -> None:
    plant(tmp_path / "pets", {"cat/a.png": turned(1)})
    with pytest.raises(OptionError, match=r"boxes \(--boxes\) 'upright' has no effect"):
        convert(tmp_path / "pets", tmp_path / "a.lmdb", boxes="upright")


def flat(at: Path) -> Report:
    """Convert two boxes, the first of which has no height."""
    boxes: dict[str, list[Box]] = {"a.png": [("dog", 1, 5, 9, 5), ("cat", *BOX)]}
    plant(at / "images", {"a.png": turned(1)})
    plant(at, {"coco.json": coco([("a.png", 64, 48)], boxes, ["cat", "dog"]).encode()})
    return convert(at / "images", at / "a.lmdb", listing=at / "coco.json")


def test_box_without_area_is_left_out_with_its_facts_and_named(tmp_path: Path) -> None:
    report = flat(tmp_path)
    assert (report.flat, report.warnings) == (1, ())
    assert [event["reason"] for event in report_lines(report)] == [
        "1 of its 2 boxes left out, because they have no area: [1.0, 5.0, 9.0, 5.0]"
    ]
    with LMDBDataset(
        tmp_path / "a.lmdb", decode=None, fields=("boxes", "box_labels", "iscrowd", "annotations")
    ) as found:
        sample = found[0]
    assert np.asarray(sample["boxes"]).tolist() == [[*BOX]]
    assert (np.asarray(sample["box_labels"]).tolist(), np.asarray(sample["iscrowd"]).tolist()) == ([0], [0])
    assert len(json.loads(sample["annotations"])) == 2
