"""Pascal VOC's annotations: their boxes in records, image sets, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dbloader import LMDBDataset, convert
from dbloader.errors import SourceError
from dbloader.ext.sources.open import open_source
from dbloader.sources.base import Problem
from tests.support.conversion import report_lines
from tests.support.images import photo, plant
from tests.support.tallies import entries, problems, warnings_of


def xml(
    *objects: str, name: str = "0.jpg", size: str = "<width>64</width><height>48</height>", head: str = ""
) -> bytes:
    body = f"<filename>{name}</filename><size>{size}<depth>3</depth></size>{''.join(objects)}"
    return f"{head}<annotation>{body}</annotation>".encode()


def thing(name: str, *corners: object, more: str = "") -> str:
    tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=False)
    box = "".join(f"<{tag}>{corner}</{tag}>" for tag, corner in tags)
    return f"<object><name>{name}</name><pose>Left</pose>{more}<bndbox>{box}</bndbox></object>"


def test_dataset_has_voc_boxes(photos: Path, tmp_path: Path) -> None:
    dog = thing("dog", 1, 1, 64, 48, more="<truncated>1</truncated><difficult>0</difficult>")
    cat = thing("cat", 5.5, 6, 10, 20, more="<part><name>head</name></part><difficult>1</difficult>")
    folder = plant(tmp_path / "Annotations", {"1.xml": xml(dog, cat, name="1.jpg"), "0.xml": xml(), "x.txt": b""})
    report = convert(photos, tmp_path / "out.lmdb", listing=folder)
    assert (report.records, report.rejected) == (2, 0)
    fields = ("boxes", "box_labels", "difficult", "truncated", "annotations")
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=fields)
    assert dataset.classes == ["cat", "dog"]
    assert [len(sample["boxes"]) for sample in dataset[0:2]] == [0, 2]
    values = {name: value.tolist() for name, value in dataset[1].items() if name != "annotations"}
    assert values == {
        "boxes": [[0, 0, 64, 48], [4.5, 5, 10, 20]],  # VOC counts pixels from 1
        "box_labels": [1, 0],
        "difficult": [0, 1],
        "truncated": [1, 0],
    }
    assert "<pose>Left</pose>" in dataset[1]["annotations"]


def test_image_set_selects_voc_annotations(photos: Path, tmp_path: Path) -> None:
    plant(tmp_path / "Annotations", {f"{n}.xml": xml(thing("cat", 1, 1, 9, 9), name=f"{n}.jpg") for n in range(3)})
    sets = plant(tmp_path / "ImageSets" / "Main", {"train.txt": b"2\n0  1\n\n7\n"})
    source = open_source(photos, sets / "train.txt")
    assert [entry.name for entry in entries(source)] == ["2.jpg", "0.jpg"]
    assert problems(source) == [Problem("7.xml", "cannot be read: No such file or directory")]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (xml(thing("&b;", 1, 1, 2, 2), head=BOMB), "0.xml", "declares a document type, 'x'"),
        (xml(head='<!DOCTYPE x SYSTEM "file:///etc/passwd">'), "0.xml", "declares a document type, 'x'"),
        (b"<annotation>", "0.xml", "is not XML that can be used: no element found"),
        (b" " * (2**24 + 1), "0.xml", "^has more than 16,777,216 bytes"),
        (xml(thing("cat", 1, 2, 3)), "0.jpg", "its annotation 0.xml has an object without four numbers in its <bn"),
        (xml(thing("cat", 1, 2, 3, "x")), "0.jpg", "without four numbers in its <bndbox>: could not convert .* 'x'"),
        (xml(thing("", 1, 2, 3, 4)), "0.jpg", "has an object without a <name>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_xml_file_is_a_problem(content: bytes, name: str, reason: str, photos: Path, tmp_path: Path) -> None:
    folder = plant(tmp_path / "Annotations", {"0.xml": content, "1.xml": xml(name="1.jpg")})
    [problem] = problems(open_source(photos, folder))
    assert problem.name == name
    assert re.search(reason, problem.reason)


def test_nan_and_boxes_beyond_the_image_are_rejected(photos: Path, tmp_path: Path) -> None:
    things = [thing("cat", "nan", 1, 2, 3), thing("cat", 1, 1, 70, 3), thing("cat", 0, 0, 64, 48)]
    folder = plant(tmp_path / "xml", {f"{n}.xml": xml(one, name=f"{n}.jpg", size="") for n, one in enumerate(things)})
    report = convert(photos, tmp_path / "out.lmdb", listing=folder)
    assert (report.records, report.rejected) == (1, 2)


def test_folder_without_annotations_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"there is no annotation in it: looked for .xml files; for YOLO, give data.yaml"
    ):
        open_source(photos, photos)
    with pytest.raises(SourceError, match=r"train.txt: the listing cannot be read: No such file"):
        open_source(photos, tmp_path / "ImageSets" / "Main" / "train.txt")


def test_image_with_the_name_of_the_xml_file_is_taken_if_it_is_the_only_one(tmp_path: Path) -> None:
    files = {f"images/{name}": photo(n, 64, 48) for n, name in enumerate(("0.jpg", "a/1.png", "2.jpg", "a/2.png"))}
    xml = "<annotation><filename>{}</filename></annotation>"
    names = {"0": "0", "1": "DSC00017.JPG", "2": "gone.jpg", "3": "0.jpg"}
    plant(tmp_path, {**files, **{f"xml/{name}.xml": xml.format(file).encode() for name, file in names.items()}})
    report = convert(tmp_path / "images", tmp_path / "out.lmdb", listing=tmp_path / "xml")
    with LMDBDataset(tmp_path / "out.lmdb", decode=None, fields=("name",)) as dataset:
        assert [dataset[n]["name"] for n in range(len(dataset))] == ["0.jpg", "a/1.png", "0.jpg"]
    assert [event["name"] for event in report_lines(report)] == ["gone.jpg"]  # two images are called 2
    assert report.warnings[0].startswith("1 <filename> not found: the only image that is called like the XML file is")
    assert "a name without its extension or folder finds the one image" in report.understood[0]


def test_filename_that_is_copied_from_another_annotation_gives_way_to_the_name_of_the_xml_file(tmp_path: Path) -> None:
    files = {f"images/{name}.jpg": photo(n, 64, 48) for n, name in enumerate("ab")}
    copies = {"xml/a.xml": xml(thing("cat", 1, 1, 9, 9), name="b.jpg"), "xml/b.xml": xml(name="b.jpg")}
    source = open_source(plant(tmp_path, {**files, **copies}) / "images", tmp_path / "xml")
    assert [entry.name for entry in entries(source)] == ["a.jpg", "b.jpg"]
    assert warnings_of(source)[0].startswith("1 <filename> of an image that has an XML file of its own: the only image")


def test_two_annotations_of_one_image_are_a_warning(tmp_path: Path) -> None:
    files = {"images/a.jpg": photo(0, 64, 48), "xml/a.xml": xml(name="a.jpg"), "xml/second.xml": xml(name="a.jpg")}
    source = open_source(plant(tmp_path, files) / "images", tmp_path / "xml")
    assert [entry.name for entry in entries(source)] == ["a.jpg", "a.jpg"]
    assert warnings_of(source)[0].startswith("1 XML file with an image of another, as second.xml repeats a.xml: each")


def test_image_that_is_found_by_the_name_of_its_xml_file_is_not_called_missing(tmp_path: Path) -> None:
    files = {"images/0.jpg": photo(0, 64, 48), "images/0.xml": xml(name="IMG_0.jpg")}
    source = open_source(plant(tmp_path, files) / "images", tmp_path / "images")
    assert [entry.name for entry in entries(source)] == ["0.jpg"]
    assert "is not there" not in source.understood[0]


def test_annotation_without_a_filename_is_for_the_image_with_its_name(tmp_path: Path) -> None:
    root = plant(tmp_path, {"images/0.jpg": photo(0, 64, 48), "xml/0.xml": xml(name=""), "xml/1.xml": xml(name="")})
    source = open_source(root / "images", root / "xml")
    [entry, problem] = source.entries()
    assert (entry.name, problem) == ("0.jpg", Problem("1.xml", "names no image in a <filename>"))
    plant(root, {"xml/0.xml": b"<annotations><image name='0.jpg'><box label='cat'/></image></annotations>"})  # CVAT
    assert problems(open_source(root / "images", root / "xml"))[0] == Problem("0.xml", "names no image in a <filename>")


def test_root_of_voc_has_masks_with_the_names_of_images(tmp_path: Path) -> None:
    files = {"JPEGImages/0.jpg": photo(0, 64, 48), "SegmentationClass/0.png": b"", "Annotations/0.xml": xml()}
    root = plant(tmp_path, {**files, "ImageSets/Main/train.txt": b"0\n"})
    for listing in ("Annotations", "ImageSets/Main/train.txt"):
        assert [entry.name for entry in entries(open_source(root, root / listing))] == ["JPEGImages/0.jpg"]


def test_annotations_may_be_in_inner_folders(tmp_path: Path) -> None:
    images = {f"train/{name}/0.jpg": photo(0, 64, 48) for name in "ab"}  # as in ImageNet, whose names have no extension
    root = plant(tmp_path, {**images, "train/n1/n1_7.JPEG": photo(1, 64, 48), "xml/n1/n1_7.xml": xml(name="n1_7")})
    plant(root, {"xml/b/0.xml": xml(name="0.jpg"), "xml/a/0.xml": xml(name="0.jpg")})
    source = open_source(root / "train", root / "xml")
    assert [entry.name for entry in entries(source)] == ["a/0.jpg", "b/0.jpg", "n1/n1_7.JPEG"]
    assert warnings_of(source) == ()
