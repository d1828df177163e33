"""What COCO's, VOC's and YOLO's annotations make into records, and which of their mistakes are whose."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dbloader import ImageFormat, LMDBDataset, convert, open_store
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import ConversionError, OptionError, SourceError
from dbloader.sources.base import Entry, Problem
from dbloader.sources.open import open_source
from tests.support.images import photo, plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dbloader.sources.base import Source

CATEGORIES = [{"id": 18, "name": "dög"}, {"id": 3, "name": "中 cat"}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three photographs of 64 x 48 pixels."""
    return plant(tmp_path / "images" / "train", {f"{number}.jpg": photo(number, 64, 48) for number in range(3)})


def coco(root: Path, *annotations: dict[str, Any], **changes: Any) -> Path:
    """Write a COCO file of the three photographs, with ids from 10 on; an annotation needs an image and a box."""
    whole = [
        {"id": number, "category_id": 18, "segmentation": [[1, 2, 3]], **annotation}
        for number, annotation in enumerate(annotations, 100)
    ]
    images = [{"id": 10 + number, "file_name": f"{number}.jpg", "width": 64, "height": 48} for number in range(3)]
    content = {"info": {"year": "]é"}, "images": images, "annotations": whole, "categories": CATEGORIES, **changes}
    path = root.parent / "instances.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def box(image: int, *bbox: float, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "bbox": bbox, **more}


def source(listing: Path, root: Path) -> Source:
    return open_source(root, listing, name_field=None, image_field=None)


def entries(listing: Path, root: Path) -> list[Entry]:
    return [item for item in source(listing, root).entries() if isinstance(item, Entry)]


def problems(listing: Path, root: Path) -> list[Problem]:
    return [item for item in source(listing, root).entries() if isinstance(item, Problem)]


# --- COCO -------------------------------------------------------------------------------------------------------------


def test_coco_boxes_arrive_in_the_dataset(root: Path, tmp_path: Path) -> None:
    listing = coco(
        root, box(12, 1, 2, 3, 4), box(10, 1.5, 2, 10, 20, category_id=3), box(12, 0, 0, 64.4, 48, iscrowd=1)
    )
    report = convert(root, tmp_path / "out.lmdb", listing=listing)
    assert (report.records, report.rejected, report.warnings) == (3, 0, ())
    fields = ("name", "boxes", "box_labels", "iscrowd", "image_id", "annotations", "label")
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=fields)
    assert dataset.classes == ["中 cat", "dög"]  # in the order of the ids
    first, empty, last = dataset[0:3]
    assert (first["name"], first["image_id"], first["label"]) == ("0.jpg", 10, None)
    np.testing.assert_array_equal(first["boxes"], np.array([[1.5, 2, 11.5, 22]], np.float32), strict=True)
    np.testing.assert_array_equal(first["box_labels"], np.array([0]), strict=True)
    assert (empty["boxes"].shape, empty["boxes"].dtype, empty["box_labels"].shape) == ((0, 4), np.float32, (0,))
    np.testing.assert_array_equal(last["boxes"], [[1, 2, 4, 6], [0, 0, 64, 48]])  # cut by the 0.4 beyond the edge
    assert last["iscrowd"].tolist() == [0, 1]
    assert [(one["id"], one["segmentation"]) for one in json.loads(last["annotations"])] == [
        (100, [[1, 2, 3]]),
        (102, [[1, 2, 3]]),
    ]
    batch = next(iter(DataLoader(dataset, 3, collate_fn=list)))
    assert [len(sample["boxes"]) for sample in batch] == [1, 0, 2]


def test_a_coco_file_may_have_any_layout_and_no_annotations(root: Path) -> None:
    listing = coco(root, box(10, 1, 2, 3, 4))
    expected = [str(entry) for entry in entries(listing, root)]
    content = json.loads(listing.read_text())
    for order in (reversed(content), sorted(content)):
        text = json.dumps({key: content[key] for key in order}, indent=1, ensure_ascii=False)
        listing.write_text("\ufeff \n" + text + "\n", encoding="utf-8")
        assert [str(entry) for entry in entries(listing, root)] == expected
    del content["annotations"]  # as COCO's files of the test images
    listing.write_text(json.dumps(content))
    assert [len(entry.fields["boxes"]) for entry in entries(listing, root)] == [0, 0, 0]
    again = pickle.loads(pickle.dumps(source(listing, root)))  # noqa: S301 - made on the line itself
    assert len([*again.entries()]) == 3


def test_objects_are_found_across_the_windows_in_which_a_coco_file_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = coco(root, box(10, 1, 2, 3, 4), box(11, 5, 6, 7, 8), box(11, 9.25, 1, 1, 1), version=1234567)
    expected = [str(entry) for entry in entries(listing, root)]
    for size in (1, 2, 3, 7, 50):
        monkeypatch.setattr("dbloader.sources.coco._WINDOW", size)
        assert [str(entry) for entry in entries(listing, root)] == expected


@pytest.mark.slow
def test_a_collection_and_a_shuffled_or_resumed_conversion_have_the_same_boxes(
    root: Path, tmp_path: Path, mongo_uri: str
) -> None:
    listing = coco(root, box(10, 1, 2, 3, 4), box(11, 5, 6, 7, 8))
    digest = convert(root, tmp_path / "out.lmdb", listing=listing).digest
    assert convert(root, f"{mongo_uri}.boxes", listing=listing, workers=1).digest == digest
    plant(root, {"1.jpg": b"bad"})
    with pytest.raises(ConversionError, match=r"1.jpg: .*fix the file and resume"):
        convert(root, tmp_path / "again.lmdb", listing=listing, on_bad="fail")
    plant(root, {"1.jpg": photo(1, 64, 48)})
    assert convert(root, tmp_path / "again.lmdb", listing=listing, on_bad="fail", resume=True).digest == digest


@pytest.mark.slow
def test_the_memory_of_a_coco_file_is_some_bytes_for_each_annotation(root: Path) -> None:
    polygon = [[float(number) for number in range(100)]]
    some = [box(10 + number % 3, 1, 2, 3, 4, segmentation=polygon) for number in range(1, 10_001)]
    listing = coco(root, *some)
    del some
    assert listing.stat().st_size > 10e6
    tracemalloc.start()
    source(listing, root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6  # a window of 1 MB in some copies, and under 100 bytes an annotation


def test_a_listing_with_a_path_is_no_coco_file(root: Path) -> None:
    listing = root.parent / "plain.json"
    listing.write_text(json.dumps({"path_list": ["0.jpg"], "images": [[1]], "annotations": [2], "label": ["cat"]}))
    [entry] = entries(listing, root)
    assert entry.fields == {"images": [1], "annotations": 2}


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (box(11, 1, 2, 3), r"its annotation 100 must have a bbox of four numbers, got \[1, 2, 3\]"),
        (box(11, 1, 2, 3, float("nan")), "must have a bbox of four numbers"),
        (box(11, 1, 2, 3, 10**400), "must have a bbox of four numbers"),
        (box(11, 1, 2, True, 4), "must have a bbox of four numbers"),
        (box(11, 1, 2, 3, 4, category_id=7), "its annotation 100 has a category_id that no category has: 7"),
        (box(11, 1, 2, 3, 4, category_id=[7]), "category_id that no category has"),
        (box(11, 1, 2, -3, 4), r"its box 0, \[1.0, 2.0, -2.0, 6.0\], is not within its 64 x 48 pixels"),
        (box(11, 60, 2, 6, 4), "is not within its 64 x 48 pixels"),
        (box(11, 1, -2, 6, 4), "is not within its 64 x 48 pixels"),
    ],
)
def test_an_image_with_a_box_that_cannot_be_right_is_rejected_with_the_reason(
    annotation: dict[str, Any], reason: str, root: Path, tmp_path: Path
) -> None:
    report = convert(root, tmp_path / "out.lmdb", listing=coco(root, annotation, box(10, 1, 2, 3, 4)))
    assert (report.records, report.rejected) == (2, 1)
    with open_store(tmp_path / "out.lmdb") as store:
        [event] = store.events()
        assert [record.name for record in store] == ["0.jpg", "2.jpg"]
    assert event["name"] == "1.jpg"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(event["reason"])


def test_annotations_without_an_image_and_images_without_a_file_are_named(root: Path, tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "0.jpg"}, {"id": 2}, {"id": 3, "file_name": "gone.jpg"}]
    listing = coco(root, box(1, 1, 2, 3, 4), box(77, 1, 2, 3, 4), images=images)
    assert problems(listing, root) == [
        Problem("image 2", "its file_name is no path: None"),
        Problem("annotation 101", "no image has the id 77 that it names"),
    ]
    assert convert(root, tmp_path / "out.lmdb", listing=listing).rejected == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 1, "file_name": "0.jpg"}] * 2}, "two images have the id 1: number them anew"),
        (
            {"images": [{"id": "1", "file_name": "0.jpg"}]},
            "images, item 1: must be an object with an integer as its id",
        ),
        ({"images": ["0.jpg"]}, "images, item 1: must be an object"),
        ({"annotations": [{"id": 1}]}, "annotations, item 1: must be an object with an integer as its image_id"),
        ({"annotations": [{"id": 1, "image_id": 10}] * 2}, "two annotations have the id 1"),
        ({"categories": [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]}, "two categories have the id 1"),
        (
            {"categories": [{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]},
            "categories, item 2: must have a name of its own, got 'x'",
        ),
        ({"categories": [{"id": 1}]}, "categories, item 1: must have a name of its own, got None"),
    ],
)
def test_a_coco_file_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises(SourceError, match=f"instances.json(:|,) {message}"):
        source(coco(root, **changes), root)


@pytest.mark.parametrize("cut", [20, 200, 330, -3])
def test_a_coco_file_that_is_cut_short_is_refused(cut: int, root: Path) -> None:
    listing = coco(root, box(10, 1, 2, 3, 4))
    listing.write_bytes(listing.read_bytes()[:cut])
    with pytest.raises(SourceError, match=r"instances.json: is not JSON"):
        source(listing, root)


def test_a_coco_file_that_changes_while_it_is_read_is_an_error(root: Path) -> None:
    listing = coco(root, box(10, 1, 2, 3, 4))
    found = source(listing, root)
    listing.write_bytes(b" " + listing.read_bytes())
    with pytest.raises(SourceError, match="is not what it was when it was first read"):
        list(found.entries())


# --- the image that is stored -----------------------------------------------------------------------------------------


def test_boxes_are_scaled_with_an_image_that_is_made_smaller(root: Path, tmp_path: Path) -> None:
    listing = coco(root, box(10, 8, 12, 32, 24))
    for images in (ImageFormat(short_side=12), ImageFormat(max_side=16, raw=True)):
        convert(root, tmp_path / "out.lmdb", listing=listing, images=images, overwrite=True)
        with open_store(tmp_path / "out.lmdb") as store:
            record = store[0]
        assert (record.width, record.height) == (16, 12)
        assert record.fields["boxes"].tolist() == [[2, 3, 10, 9]]


def test_an_image_of_another_size_than_its_annotations_say_is_rejected(root: Path, tmp_path: Path) -> None:
    images = [{"id": 10, "file_name": "0.jpg", "width": 48, "height": 64}, {"id": 11, "file_name": "1.jpg"}]
    listing = coco(root, box(10, 1, 2, 3, 4), box(11, 1, 2, 3, 4), images=images)
    assert convert(root, tmp_path / "out.lmdb", listing=listing).records == 1
    with open_store(tmp_path / "out.lmdb") as store:
        reason = "has 64 x 48 pixels, but its annotations are those of an image of 48 x 64"
        assert [*store.events()] == [{"name": "0.jpg", "event": "rejected", "reason": reason}]


def test_boxes_of_a_file_in_an_unknown_format_are_not_stored_unseen(root: Path, tmp_path: Path) -> None:
    plant(root, {"0.jpg": b"no image at all"})
    listing = coco(root, box(10, 1, 2, 3, 4))
    assert convert(root, tmp_path / "out.lmdb", listing=listing, check="none").rejected == 1


def test_a_decoder_that_crops_refuses_boxes_that_it_would_not_crop(root: Path, tmp_path: Path) -> None:
    convert(root, tmp_path / "out.lmdb", listing=coco(root, box(10, 1, 2, 3, 4)))
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=("image", "boxes"), decode=RandomResizedCrop(16))
    with pytest.raises(OptionError, match=r"'boxes' of record 0 .* are of the whole image"):
        dataset[0]


# --- Pascal VOC -------------------------------------------------------------------------------------------------------


def xml(
    *objects: str, name: str = "0.jpg", size: str = "<width>64</width><height>48</height>", head: str = ""
) -> bytes:
    body = f"<filename>{name}</filename><size>{size}<depth>3</depth></size>{''.join(objects)}"
    return f"{head}<annotation>{body}</annotation>".encode()


def thing(name: str, *corners: object, more: str = "") -> str:
    tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=False)
    box = "".join(f"<{tag}>{corner}</{tag}>" for tag, corner in tags)
    return f"<object><name>{name}</name><pose>Left</pose>{more}<bndbox>{box}</bndbox></object>"


def test_voc_boxes_arrive_in_the_dataset(root: Path, tmp_path: Path) -> None:
    dog = thing("dog", 1, 1, 64, 48, more="<truncated>1</truncated><difficult>0</difficult>")
    cat = thing("cat", 5.5, 6, 10, 20, more="<part><name>head</name></part><difficult>1</difficult>")
    folder = plant(tmp_path / "Annotations", {"1.xml": xml(dog, cat, name="1.jpg"), "0.xml": xml(), "x.txt": b""})
    report = convert(root, tmp_path / "out.lmdb", listing=folder)
    assert (report.records, report.rejected) == (2, 0)
    dataset = LMDBDataset(
        tmp_path / "out.lmdb", fields=("boxes", "box_labels", "difficult", "truncated", "annotations")
    )
    assert dataset.classes == ["cat", "dog"]
    assert [len(sample["boxes"]) for sample in dataset[0:2]] == [0, 2]
    values = {name: value.tolist() for name, value in dataset[1].items() if name != "annotations"}
    assert values == {
        "boxes": [[0, 0, 64, 48], [4.5, 5, 10, 20]],  # from the corner of the first pixel, which VOC calls 1
        "box_labels": [1, 0],
        "difficult": [0, 1],
        "truncated": [1, 0],
    }
    assert "<pose>Left</pose>" in dataset[1]["annotations"]


def test_an_image_set_chooses_some_voc_annotations(root: Path, tmp_path: Path) -> None:
    plant(tmp_path / "Annotations", {f"{n}.xml": xml(thing("cat", 1, 1, 9, 9), name=f"{n}.jpg") for n in range(3)})
    sets = plant(tmp_path / "ImageSets" / "Main", {"train.txt": b"2\n0  1\n\n7\n"})
    assert [entry.name for entry in entries(sets / "train.txt", root)] == ["2.jpg", "0.jpg"]
    assert problems(sets / "train.txt", root) == [Problem("7.xml", "cannot be read: No such file or directory")]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (xml(thing("&b;", 1, 1, 2, 2), head=BOMB), "0.xml", "declares a document type, 'x'"),
        (xml(head='<!DOCTYPE x SYSTEM "file:///etc/passwd">'), "0.xml", "declares a document type, 'x'"),
        (b"<annotation>", "0.xml", "is not XML that can be used: no element found"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "0.xml", "is not XML that can be used: unknown encoding"),
        (xml(name=""), "0.xml", "names no image in a <filename>"),
        (b" " * (2**24 + 1), "0.xml", "is not XML that can be used: it has more than 16,777,216 bytes"),
        (
            b"<a><filename>0.jpg</filename>" + b"<b>" * 5000 + b"</b>" * 5000 + b"</a>",
            "0.jpg",
            "maximum recursion depth",
        ),
        (
            xml(thing("cat", 1, 2, 3)),
            "0.jpg",
            "its annotation 0.xml has an object without four numbers in its <bndbox>",
        ),
        (xml(thing("cat", 1, 2, 3, "x")), "0.jpg", "without four numbers in its <bndbox>: could not convert .* 'x'"),
        (xml(thing("", 1, 2, 3, 4)), "0.jpg", "has an object without a <name>"),
    ],
)
def test_an_xml_file_that_cannot_be_used_is_named(
    content: bytes, name: str, reason: str, root: Path, tmp_path: Path
) -> None:
    folder = plant(tmp_path / "Annotations", {"0.xml": content, "1.xml": xml(name="1.jpg")})
    [problem] = problems(folder, root)
    assert problem.name == name
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(problem.reason)


def test_nan_corners_and_boxes_beyond_the_image_are_rejected_at_last(root: Path, tmp_path: Path) -> None:
    things = [thing("cat", "nan", 1, 2, 3), thing("cat", 1, 1, 70, 3), thing("cat", 0, 0, 64, 48)]
    folder = plant(tmp_path / "xml", {f"{n}.xml": xml(one, name=f"{n}.jpg", size="") for n, one in enumerate(things)})
    report = convert(root, tmp_path / "out.lmdb", listing=folder)
    assert (report.records, report.rejected) == (1, 2)


def test_a_folder_without_annotations_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no annotation in it: looked for .xml files"):
        source(root, root)
    with pytest.raises(SourceError, match=r"train.txt: cannot be read: No such file"):
        source(tmp_path / "ImageSets" / "Main" / "train.txt", root)


# --- YOLO -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def yolo(root: Path) -> Callable[..., Path]:
    def make(yaml: str = "names: [cat, dog]\n", **labels: str) -> Path:
        for name, text in labels.items():
            plant(root.parents[1] / "labels" / "train", {f"{name.strip('_')}.txt": text.encode()})
        (root.parents[1] / "data.yaml").write_text(yaml)
        return root.parents[1] / "data.yaml"

    return make


def test_yolo_boxes_arrive_in_the_dataset(yolo: Callable[..., Path], root: Path, tmp_path: Path) -> None:
    listing = yolo(_0="1 0.5 0.5 0.5 0.25\n0 0.5 0.5 1.0 1.0000001\n\n", _1="")
    report = convert(root, tmp_path / "out.lmdb", listing=listing)
    assert (report.records, report.rejected) == (3, 0)
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=("name", "boxes", "box_labels"))
    assert dataset.classes == ["cat", "dog"]
    assert dataset[0]["boxes"].tolist() == [[16, 18, 48, 30], [0, 0, 64, 48]]
    assert dataset[0]["box_labels"].tolist() == [1, 0]
    assert [(sample["name"], len(sample["boxes"])) for sample in dataset[1:3]] == [("1.jpg", 0), ("2.jpg", 0)]


def test_yolo_labels_may_lie_beside_the_images(tmp_path: Path) -> None:
    folder = plant(
        tmp_path / "all", {"a/0.jpg": photo(0), "a/0.txt": b"0 .5 .5 1 1", "classes.txt": b"cat\ntwo words\n"}
    )
    found = source(folder / "classes.txt", folder)
    [entry] = found.entries()
    assert isinstance(entry, Entry)
    assert (entry.name, found.classes, found.skipped) == ("a/0.jpg", ("cat", "two words"), {".txt": 2})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 .5 .5 1", "line 2 must be a class and x, y, width, height, got '0 .5 .5 1'"),
        ("0 .1 .1 .2 .2 .3 .3", "line 2 must be a class and x, y, width, height"),
        ("2 .5 .5 1 1", "line 2 has the class 2, and there are 2"),
        ("-1 .5 .5 1 1", "line 2 has the class -1"),
        ("cat .5 .5 1 1", "invalid literal for int"),
        ("0 .5 .5 1 x", "could not convert string to float: 'x'"),
    ],
)
def test_an_image_with_a_label_file_that_is_wrong_is_named(
    line: str, reason: str, yolo: Callable[..., Path], root: Path
) -> None:
    [problem] = problems(yolo(_0="0 .5 .5 1 1", _1=f"0 .5 .5 1 1\n{line}"), root)
    assert problem.name == "1.jpg"
    assert problem.reason.startswith("its labels 1.txt cannot be used: ")
    assert reason in problem.reason


def test_yolo_boxes_beyond_the_image_are_rejected(yolo: Callable[..., Path], root: Path, tmp_path: Path) -> None:
    listing = yolo(_0="0 .5 .5 1.2 1", _1="0 .5 .5 nan 1", _2="0 .5 .5 -1 1")
    with pytest.raises(ConversionError, match=r"none of the 3 files could be stored; the first is 0.jpg: its box 0"):
        convert(root, tmp_path / "out.lmdb", listing=listing)


def test_labels_without_an_image_are_named_and_none_at_all_are_an_error(yolo: Callable[..., Path], root: Path) -> None:
    listing = yolo()
    with pytest.raises(SourceError, match=r"labels/train: there is no .txt file in it for any image of .*images/train"):
        entries(listing, root)
    assert problems(yolo(_0="", _7=""), root) == [Problem("7.txt", "labels an image that is not there")]


@pytest.mark.parametrize(
    "yaml",
    [
        "path: x\nnames: [cat, 'a dog', \"x y\"]  # three\nnc: 3\n",
        "names: ['cat',\n  'a dog',\n  'x y',]\nval: images/val\n",
        "names:\n  0: cat\n  1: a dog  # not two\n\n  # and\n  2: 'x y'\ntrain: images/train\n",
        "nc: 3\nnames:\n- cat\n- a dog\n- x y",
    ],
)
def test_names_of_classes_in_simple_yaml_are_read(yaml: str, yolo: Callable[..., Path], root: Path) -> None:
    assert source(yolo(yaml, _0=""), root).classes == ("cat", "a dog", "x y")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("names: {0: cat}", "its names are no simple list: '{0: cat}'; give a classes.txt"),
        ("names: *other", "its names are no simple list"),
        ("names: [it''s, [a]]", "its names are no simple list"),
        ("names:\n  1: cat", "its names are no simple list: '1: cat'"),
        ("names:\n  - !!python/object:os.system x", "its names are no simple list"),
        ("nc: 3", "it has no names of classes; give a classes.txt with a name in each line"),
        ("names:\n", "it has no names of classes"),
        ("names: [cat, cat]", "two of its classes have the same name"),
    ],
)
def test_other_yaml_is_refused(yaml: str, message: str, yolo: Callable[..., Path], root: Path) -> None:
    with pytest.raises(SourceError, match=rf"data.yaml: {message}".replace("[", r"\[").replace("*", r"\*")):
        source(yolo(yaml, _0=""), root)
