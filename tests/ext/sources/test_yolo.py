"""YOLO's annotations: their boxes in records, class names, and mistakes."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader import LMDBDataset, convert
from dbloader.errors import SourceError
from dbloader.ext.sources.open import open_source
from dbloader.sources.base import Entries, Entry, Problem
from tests.support.images import photo, plant
from tests.support.tallies import entries, problems, warnings_of


@pytest.fixture
def yolo(photos: Path) -> Callable[..., Path]:
    def make(yaml: str = "names: [cat, dog]\n", **labels: str) -> Path:
        for name, text in labels.items():
            plant(photos.parents[1] / "labels" / "train", {f"{name.strip('_')}.txt": text.encode()})
        (photos.parents[1] / "data.yaml").write_text(yaml)
        return photos.parents[1] / "data.yaml"

    return make


def test_dataset_has_yolo_boxes(yolo: Callable[..., Path], photos: Path, tmp_path: Path) -> None:
    listing = yolo(_0="1.0 0.5 0.5 0.5 0.25\n0 0.5 0.5 1.0 1.0000001\n\n", _1="")
    report = convert(photos, tmp_path / "out.lmdb", listing=listing)
    assert (report.records, report.rejected) == (3, 0)
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=("name", "boxes", "box_labels"))
    assert dataset.classes == ["cat", "dog"]
    assert dataset[0]["boxes"].tolist() == [[16, 18, 48, 30], [0, 0, 64, 48]]
    assert dataset[0]["box_labels"].tolist() == [1, 0]
    assert [(sample["name"], len(sample["boxes"])) for sample in dataset[1:3]] == [("1.jpg", 0), ("2.jpg", 0)]


def test_yolo_labels_may_be_beside_the_images(tmp_path: Path) -> None:
    files = {"a/0.jpg": photo(0), "a/0.txt": b"0 .5 .5 1 1", "classes.txt": b"cat\ntwo words\n"}
    folder = plant(tmp_path / "all", files)
    found = open_source(folder, folder / "classes.txt")
    [entry] = entries = Entries(found.entries())
    assert isinstance(entry, Entry)
    assert (entry.name, found.classes, entries.tally.skipped) == ("a/0.jpg", ("cat", "two words"), {".txt": 2})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 .5 .5 1", "line 2 must be a class and x, y, width, height, got '0 .5 .5 1'"),
        ("2 .5 .5 1 1", "line 2 has the class 2, but classes are 0 to 1"),
        ("cat .5 .5 1 1", "invalid literal for int"),
        ("1.5 .5 .5 1 1", "invalid literal for int"),
        ("0 .1 .1 .2 .2 .3", "line 2 must be a class and x, y, width, height, got"),
    ],
)
def test_image_with_wrong_labels_is_a_problem(line: str, reason: str, yolo: Callable[..., Path], photos: Path) -> None:
    [problem] = problems(open_source(photos, yolo(_0="0 .5 .5 1 1", _1=f"0 .5 .5 1 1\n{line}")))
    assert problem.name == "1.jpg"
    assert problem.reason.startswith("its labels 1.txt cannot be used: ")
    assert reason in problem.reason


def test_labels_without_an_image_are_named(yolo: Callable[..., Path], photos: Path) -> None:
    listing = yolo()
    with pytest.raises(SourceError, match=r"labels/train: there is no .txt file in it for any image of .*images/train"):
        entries(open_source(photos, listing))
    assert problems(open_source(photos, yolo(_0="", _7=""))) == [Problem("7.txt", "labels an image that is not there")]


def test_label_file_that_cannot_be_opened_is_a_problem(yolo: Callable[..., Path], photos: Path) -> None:
    listing = yolo(_0="")
    labels = photos.parents[1] / "labels" / "train"
    (labels / "2.txt").symlink_to("gone")
    assert problems(open_source(photos, listing)) == [
        Problem("2.jpg", "its labels 2.txt cannot be used: cannot be read: No such file or directory")
    ]


@pytest.mark.parametrize(
    "yaml",
    [
        "path: x\nnames: [cat, 'a dog', \"x y\"]  # three\nnc: 3\n",
        "names: ['cat',\n  'a dog',\n  'x y',]\nval: images/val\n",
        "names:\n  0: cat\n  1: a dog  # not two\n\n  # and\n  2: 'x y'\ntrain: images/train\n",
        "nc: 3\nnames:\n- cat\n- a dog\n- x y",
        "names: {0: cat, 1: 'a dog', 2: x y}\n",
        "names: [\n  cat, # one\n  a dog,\n  'x y'\n]\nnc: 3\n",
        "names:\n  '0': cat\n  '1': a dog\n  \"2\": x y\n",
        "names:\n  2: x y\n  0: cat\n  1: a dog\n",
    ],
)
def test_class_names_in_simple_yaml_are_read(yaml: str, yolo: Callable[..., Path], photos: Path) -> None:
    assert open_source(photos, yolo(yaml, _0="")).classes == ("cat", "a dog", "x y")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("names: [0: cat]", "its names are not a simple list: '0: cat]'; give a classes.txt"),
        ("names: {0: cat, dog}", "its names are not a simple list: 'dog}'"),
        ("names: {0: cat, 0: dog}", "its names are not a simple list: '0: dog}'"),
        ("names: [cat dog: x]", "its names are not a simple list: 'cat dog: x]'"),
        ("names:\n  1: cat", "its names lack the number 0: give each number from 0 to 1 a name"),
        ("names: {0: cat, 2: dog}", "its names lack the number 1: give each number from 0 to 2 a name"),
        ("names:\n  - !!python/object:os.system x", "its names are not a simple list"),
        ("nc: 3", "it has no names of classes; give a classes.txt with a name in each line"),
        ("kpt_shape:\n- 17\n- 3\nnames: [cat]", "its kpt_shape is not a list such as"),
        ("names: [cat, cat]", "two of its classes have the same name"),
    ],
)
def test_other_yaml_is_refused(yaml: str, message: str, yolo: Callable[..., Path], photos: Path) -> None:
    with pytest.raises(SourceError, match=rf"data.yaml: {message}".replace("[", r"\[").replace("*", r"\*")):
        open_source(photos, yolo(yaml, _0=""))


def test_polygons_and_keypoints_become_boxes_and_stay_as_annotations(
    yolo: Callable[..., Path], photos: Path, tmp_path: Path
) -> None:
    polygon, pose = "1 .25 .25 .5 .75 .75 .5", "0 .5 .5 .5 .5 .1 .2 2 .3 .4 1"
    with_pose = "kpt_shape: [2, 3]  # x, y and visibility\nnames: [cat, dog]\n"
    for number, (line, yaml) in enumerate(((polygon, "names: [cat, dog]\n"), (pose, with_pose))):
        text = f"0 .5 .5 .5 .5\n{line}\n"
        listing = yolo(yaml, _0=text, _1="0 .5 .5 .5 .5\n")
        convert(photos, place := tmp_path / f"{number}.lmdb", listing=listing)
        with LMDBDataset(place, decode=None, fields=("boxes", "box_labels")) as dataset:
            first, second = (dataset.record(n).fields for n in range(2))
        assert first["boxes"].tolist() == [[16, 12, 48, 36]] * 2
        assert first["box_labels"].tolist() == [0, int(line[0])]
        assert first["annotations"] == text
        assert "annotations" not in second
    # Without kpt_shape, 11 numbers are a polygon, whose corners lie within the image.
    [problem] = problems(open_source(photos, yolo(_0="0 .5 .5 .5 .5 .4 .4 2 .6 .6 1\n")))
    assert problem == Problem(
        "0.jpg",
        "its labels 0.txt cannot be used: line 1 has a corner outside of 0 to 1: 2; for keypoints, give a "
        "data.yaml with kpt_shape as the listing (--listing)",
    )


@pytest.mark.parametrize("name", ["obj.names", "_darknet.labels"])
def test_lists_of_darknet_name_the_classes(name: str, tmp_path: Path) -> None:
    folder = plant(tmp_path / "obj_train_data", {"0.jpg": photo(0), "0.txt": b"1 .5 .5 1 1", name: b"cat\ntwo words\n"})
    [entry] = entries(open_source(folder, folder / name))
    assert (entry.fields["box_labels"].tolist(), open_source(folder, folder / name).classes) == (
        [1],
        ("cat", "two words"),
    )


def test_labels_of_darknet_are_beside_the_folder_of_images(tmp_path: Path) -> None:
    files = {"JPEGImages/0.jpg": photo(0), "labels/0.txt": b"0 .5 .5 1 1", "classes.txt": b"cat\n"}
    root = plant(tmp_path, files)
    [entry] = entries(open_source(root / "JPEGImages", root / "classes.txt"))
    assert len(entry.fields["boxes"]) == 1
    (root / "labels" / "0.txt").rename(root / "JPEGImages" / "0.txt")
    (root / "labels").rmdir()
    [entry] = entries(open_source(root / "JPEGImages", root / "classes.txt"))
    assert len(entry.fields["boxes"]) == 1


@pytest.mark.parametrize(
    ("line", "warns"),
    [
        ("0 .5 .5 .4 .4 .4 .4 .6 .6", True),
        ("0 .5 .5 .4 .4 .4 .4 .8 .6", False),
        ("0 .1 .1 .5 .1 .5 .5 .1 .5", False),
        ("0 .5 .5 .4 .4 .4 .4 .6 .6\n0 .5 .5 .4 .4 .4 .4", False),
        ("0 .5 .5 .4 .4", False),
    ],
)
def test_lines_that_may_have_keypoints_give_a_warning(line: str, warns: bool, tmp_path: Path) -> None:
    folder = plant(tmp_path, {"0.jpg": photo(0), "0.txt": line.encode(), "classes.txt": b"cat\n"})
    warnings = warnings_of(open_source(folder, folder / "classes.txt"))
    assert ["all lines of 9 numbers were read as polygons" in warning for warning in warnings] == [True] * warns
    (folder / "data.yaml").write_text("names: [cat]\n")  # Ultralytics would read polygons too
    assert warnings_of(open_source(folder, folder / "data.yaml")) == ()


def test_zip_with_labels_of_yolo_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as file:
        file.writestr("images/0.jpg", photo(0))
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    with pytest.raises(SourceError, match=r"set.zip: with YOLO's annotations, convert reads no zip: extract the zip"):
        open_source(tmp_path / "set.zip", tmp_path / "data.yaml")


def test_root_of_a_data_set_is_read_or_its_splits_are_named(tmp_path: Path) -> None:
    files = {"images/a/0.jpg": photo(0), "labels/a/0.txt": b"0 .5 .5 1 1", "data.yaml": b"names: [cat]"}
    root = plant(tmp_path / "set", files)
    [entry] = entries(open_source(root, root / "data.yaml"))
    assert (entry.name, len(entry.fields["boxes"])) == ("a/0.jpg", 1)
    plant(root, {"images/train2017/1.jpg": photo(1), "images/val2017/1.jpg": photo(2)})
    by_split = {"train/images/0.jpg": photo(0), "train/labels/0.txt": b"0 .5 .5 1 1", "data.yaml": b"names: [cat]"}
    other = plant(tmp_path / "roboflow", by_split)
    [entry] = entries(open_source(other, other / "data.yaml"))
    assert (entry.name, len(entry.fields["boxes"])) == ("0.jpg", 1)
    plant(other, {"valid/images/1.jpg": photo(1)})
    with pytest.raises(SourceError, match=r"several splits \(train/images, valid/images\).* first .*/train/images"):
        open_source(other, other / "data.yaml")
    with pytest.raises(SourceError, match=r"has several splits \(train2017, val2017\).* first .*/set/images/train2017"):
        open_source(root, root / "data.yaml")


def test_labels_in_the_other_unicode_form_belong_to_their_image(tmp_path: Path) -> None:
    files = {"images/caf\u00e9.jpg": photo(0), "labels/cafe\u0301.txt": b"0 .5 .5 1 1", "classes.txt": b"cat\n"}
    root = plant(tmp_path / "data", files)
    source = open_source(root / "images", root / "classes.txt")
    assert problems(source) == []
    [entry] = entries(source)
    assert len(entry.fields["boxes"]) == 1
