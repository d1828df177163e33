"""Other folders than the first one as classes, and warnings about names of class folders."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from dbloader.ext.sources.class_folders import ClassFolderSource
from dbloader.ext.sources.open import open_source
from dbloader.ext.sources.options import Reading
from dbloader.sources.base import Source
from tests.sources.test_folder import plant
from tests.support.layouts.base import coco, voc, write, write_csv, write_jsonl, write_zip
from tests.support.tallies import only_entries, warnings_of

PARTS = "parts of a data set, not classes; convert {0}, and give a listing (--listing) unless it has class folders"


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        ("Train VAL", "splits; convert one at a time, first {0}"),
        ("train2017 val2017", "splits; convert one at a time, first {0}"),
        ("test_set train_set", "splits; convert one at a time, first {1}"),
        ("sample test train", "splits; convert one at a time, first {2}"),
        ("test val", "splits; convert one at a time, first {0}"),
        ("bus train", ""),
        ("mask no_mask", ""),
        ("bus mask train", ""),
        ("train train_masks", PARTS),
        ("image label", PARTS),
        ("gtFine leftImg8bit", PARTS.replace("{0}", "{1}")),
        ("ann img", PARTS.replace("{0}", "{1}")),
        ("images labels", PARTS),
        ("images masks", PARTS),
        ("images", PARTS),
        ("annotations train2017 val2017", PARTS.replace("{0}", "{1}")),
        ("Annotations JPEGImages SegmentationClass", PARTS.replace("{0}", "{1}")),
    ],
)
def test_classes_named_like_splits_or_parts_give_a_warning(tmp_path: Path, classes: str, what: str) -> None:
    root, names = plant(tmp_path / "my data", *(f"{name}/1.jpg" for name in classes.split())), classes.split()
    called, paths = ", ".join(map(repr, names)), [f"{root}/{name}" for name in names]
    sentence = f"the classes are called {called}: these look like {what.format(*paths)}"
    assert ClassFolderSource(root).warnings == ((sentence,) if what else ())


def test_only_class_folder_with_the_name_of_the_folder_gives_a_warning(tmp_path: Path) -> None:
    root = plant(tmp_path / "seg_pred", "seg_pred/1.jpg")
    (warning,) = warnings_of(ClassFolderSource(root))
    assert warning.endswith(f"'seg_pred': these look like the data set, not a class; convert {root}/seg_pred")
    plant(tmp_path / "seg_pred", "seg_pred/a/1.jpg", "seg_pred/b/1.jpg")
    (root / "seg_pred" / "1.jpg").unlink()
    assert warnings_of(ClassFolderSource(root)) == (warning,)
    assert warnings_of(ClassFolderSource(plant(tmp_path / "cats", "cat/1.jpg"))) == ()


def test_label_in_a_file_beside_images_is_read_from_a_tar(tmp_path: Path) -> None:
    root = plant(tmp_path / "x y", "1.jpg", "2.jpg")
    for number in (1, 2):
        (root / f"{number}.cls").write_text(str(7 * number))
    (warning,) = warnings_of(ClassFolderSource(root))
    assert warning.startswith("1.cls beside the images is not read: ")
    command = shlex.split(warning[warning.index("(") + 1 : warning.index(")")])
    subprocess.run(command, check=True, cwd=tmp_path)
    assert [entry.label for entry in only_entries(open_source(tmp_path / "x.tar"))] == [7, 14]


@pytest.mark.parametrize(
    ("name", "listing"),
    [
        ("_annotations.coco.json", "_annotations.coco.json"),
        ("labels.CSV", "labels.CSV"),
        ("1.xml", ""),
        ("z.jsonl", "z.jsonl"),
    ],
)
def test_file_that_may_have_labels_gives_a_warning_beside_images(tmp_path: Path, name: str, listing: str) -> None:
    plant(tmp_path, "1.jpg", "1.json", name)
    (warning,) = warnings_of(ClassFolderSource(tmp_path))
    assert warning.startswith(f"{name} beside the images is not read: ")
    assert warning.endswith(f"(--listing {tmp_path / listing})")


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("labels.csv", "labels.csv beside the class folders is not read: if it has labels or boxes of the images, "),
        ("classes.txt", "classes.txt is not read: if it has the order of the classes, give it (--classes {root}/cl"),
        ("README.txt", ""),
        ("1.json", ""),
    ],
)
def test_file_that_may_decide_gives_a_warning_beside_class_folders(tmp_path: Path, name: str, warning: str) -> None:
    plant(tmp_path, "cat/1.jpg", "dog/2.jpg", name)
    found = warnings_of(ClassFolderSource(tmp_path))
    assert [one.startswith(warning.format(root=tmp_path)) for one in found] == [True] * bool(warning)


@pytest.mark.parametrize(("name", "text"), [("data.yaml", "nc: 1\nnames: [cat]\n"), ("classes.txt", "cat\n")])
def test_names_of_yolo_beside_its_folders_are_the_listing(tmp_path: Path, name: str, text: str) -> None:
    plant(tmp_path, "images/1.jpg", "labels/1.txt", "other.yaml")
    write(tmp_path, name, text)
    _, warning = ClassFolderSource(tmp_path).warnings
    assert warning.startswith(f"{name} beside the class folders is not read: if it has labels or boxes")
    assert warning.endswith(f"(--listing {tmp_path / name})")


@pytest.mark.parametrize(("text", "warns"), [("big cat\r\ndog\n", False), ("dog\nbig cat\n", True)])
def test_names_in_the_order_of_the_class_folders_give_no_warning(tmp_path: Path, text: str, warns: bool) -> None:
    plant(tmp_path, "big cat/1.jpg", "dog/2.jpg")
    write(tmp_path, "classes.txt", text)
    assert len(warnings_of(ClassFolderSource(tmp_path))) == warns


def test_letters_as_classes_give_no_warning(tmp_path: Path) -> None:
    assert open_source(plant(tmp_path, "A/1.jpg", "a/2.jpg")).warnings == ()


def test_metadata_that_is_not_read_gives_a_warning_beside_images(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "metadata.parquet")
    (warning,) = warnings_of(ClassFolderSource(tmp_path))
    assert warning.startswith("metadata.parquet is not used: metadata must be a metadata.csv or metadata.jsonl")


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("0 .5 .5 0.25 .25\n", True),
        ("0 0.1 0.2 0.3 0.4 0.5 0.6\n", True),
        ("3\t0.5 0.5 1 1\n", True),
        ("2 dogs, 0.5 m\n", False),
        ("1 2 3 4 5\n", False),
    ],
)
def test_boxes_of_yolo_beside_images_give_a_warning(tmp_path: Path, text: str, warns: bool) -> None:
    plant(tmp_path, "1.jpg", "2.jpg", "1.txt")  # an image without boxes has an empty file
    write(tmp_path, "1.txt", "")
    write(tmp_path, "2.txt", text)
    found = warnings_of(ClassFolderSource(tmp_path))
    assert ["2.txt looks like boxes of YOLO" in warning for warning in found] == [True] * warns


def test_boxes_of_yolo_in_class_folders_give_a_warning(tmp_path: Path) -> None:
    plant(tmp_path, "obj_train_data/1.jpg")  # as CVAT exports it
    write(tmp_path / "obj_train_data", "1.txt", "0 .5 .5 0.25 .25\n")
    (warning,) = warnings_of(ClassFolderSource(tmp_path))
    assert warning.startswith("obj_train_data/1.txt looks like boxes of YOLO, but becomes a text: give the data.yaml")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            "1.png;1_mask.png;2.png;2_mask.png;2_mask_1.png",
            "3 images called like a mask of another image, such as 1_mask.png",
        ),
        ("1.jpg;1_Segmentation.png", "1 image called like a mask of another image, such as 1_Segmentation.png"),
        (
            "a/b (1).png;a/b (1)_mask.png;b/1.png",
            "1 image called like a mask of another image, such as a/b (1)_mask.png",
        ),
        ("1_mask.png;2_mask.png", ""),
        ("1.png;1_masked.png;1_2.png", ""),
        ("dog.png;dog_mask.png;1.png;2.png;3.png", ""),
    ],
)
def test_masks_beside_their_images_give_a_warning(tmp_path: Path, files: str, found: str) -> None:
    warnings = warnings_of(ClassFolderSource(plant(tmp_path, *files.split(";"))))
    assert [warning.partition(":")[0] for warning in warnings] == [found] * bool(found)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_captions_of_other_programs_are_a_warning_that_names_the_extension_that_is_read(
    tmp_path: Path, kind: str
) -> None:
    names = ("cat/0.jpg", "cat/0.caption", "dog/1.jpg", "dog/1.caption")
    place = plant(tmp_path / "x", *names)
    if kind == "zip":
        place = write_zip(tmp_path / "x.zip", dict.fromkeys(names, b""))
    (warning,) = warnings_of(open_source(place))
    assert warning.startswith("2 .caption files not read: if each has the text")
    assert warning.endswith("rename them from .caption to .txt")


@pytest.mark.parametrize(
    ("by", "classes", "labels"),
    [
        ("first", ("a", "b"), [0, 0, 0, 1]),
        ("last", ("a", "in", "out"), [0, 1, 2, 1]),
        ("path", ("a", "a/x/in", "a/x/out", "b/in"), [0, 1, 2, 3]),
    ],
)
def test_class_folder_chooses_the_folder_that_is_the_class(
    tmp_path: Path, by: str, classes: tuple[str, ...], labels: list[int]
) -> None:
    plant(tmp_path, "a/0.jpg", "a/x/in/1.jpg", "a/x/out/2.jpg", "b/in/3.jpg", "b/empty/")
    source = ClassFolderSource(tmp_path, Reading(class_folder=by))
    assert (source.classes, [entry.label for entry in only_entries(source)]) == (classes, labels)
    assert warnings_of(source) == ()


@pytest.mark.parametrize(
    ("files", "warns"),
    [
        ("a/x/1.jpg b/y/2.jpg", True),
        ("a/x/1.jpg a/y/2.jpg b/x/3.jpg", True),
        ("a/images/1.jpg b/images/2.jpg", False),  # Tiny ImageNet
        ("a/x/1.jpg b/y/2.jpg b/3.jpg", False),
    ],
)
def test_class_folders_of_only_folders_give_a_warning(tmp_path: Path, files: str, warns: bool) -> None:
    found = warnings_of(ClassFolderSource(plant(tmp_path, *files.split())))
    assert ["contain only folders" in warning and "--class-folder" in warning for warning in found] == [True] * warns
    assert warnings_of(ClassFolderSource(tmp_path, Reading(class_folder="first"))) == ()


def named(tmp_path: Path, kind: str, names: list[str]) -> Source:
    """Return a source with classes of some names."""
    images = [f"{number}.jpg" for number in range(len(names))]
    listing = tmp_path / {"folder": "", "json": "x.jsonl", "csv": "x.csv", "voc": "xml"}.get(kind, "x.json")
    root = tmp_path / "images"
    paths = [f"{name}/0.jpg" for name in names] if kind == "folder" else images
    plant(root, *paths)
    if kind == "json":
        write_jsonl(tmp_path, listing.name, [{"path": n, "label": name} for n, name in zip(images, names, strict=True)])
    elif kind == "csv":
        write_csv(tmp_path, listing.name, [("path", "label"), *zip(images, names, strict=True)])
    elif kind == "voc":
        for number, name in enumerate(names):
            write(listing, f"{number}.xml", voc(images[number], (4, 4), [(name, 1, 1, 3, 3)]))
    elif kind == "coco":
        listing.write_text(coco([(name, 4, 4) for name in images], {}, names))
    return open_source(root, None if kind == "folder" else listing)


@pytest.mark.parametrize("kind", ["folder", "json", "voc"])
@pytest.mark.parametrize(
    ("names", "number"),
    [
        ([*range(10)], None),
        (sorted(map(str, range(11))), "'10' is 2"),
        ([1, 2, 3], "'1' is 0"),
        ([-1, 0, 1], "'-1' is 0"),
        (["00", "01", "02"], None),
        (["0", "2", "x"], None),
    ],
)
def test_classes_that_are_other_numbers_than_labels_give_a_warning(
    tmp_path: Path, kind: str, names: list[object], number: str | None
) -> None:
    source = named(tmp_path, kind, [*map(str, names)])
    said = f"the label of {number}: classes='numbers' (--classes numbers)"
    assert [said in warning for warning in source.warnings] == [True] * bool(number)


def test_classes_in_a_chosen_order_may_be_numbers(tmp_path: Path) -> None:
    assert named(tmp_path, "coco", [str(number) for number in range(1, 11)]).warnings == ()


@pytest.mark.parametrize("kind", ["folder", "json", "csv", "voc", "coco"])
@pytest.mark.parametrize(
    "pair", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("New York", "new_york"), ("\uff23\uff21T", "CAT")]
)
def test_classes_that_look_alike_give_a_warning(tmp_path: Path, kind: str, pair: tuple[str, str]) -> None:
    source = named(tmp_path, kind, [*pair, "dog"])
    (warning,) = source.warnings
    assert "look alike" in warning
    assert len(source.classes) == 3


@pytest.mark.parametrize("kind", ["folder", "json", "csv", "coco"])
def test_spaces_around_names_of_classes_give_a_warning(tmp_path: Path, kind: str) -> None:
    (warning,) = named(tmp_path, kind, [" cat", "dog"]).warnings
    assert "spaces became a part of the names of the classes ' cat'" in warning


@pytest.mark.parametrize(
    ("text", "is_warned"), [('{"labels": [["a/1.jpg", 6]]}', True), ('{"a": "photos of cats", "n": 3}', False)]
)
def test_json_beside_class_folders_gives_a_warning_if_it_names_images(
    tmp_path: Path, text: str, *, is_warned: bool
) -> None:
    plant(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "dataset.json").write_text(text)
    warnings = warnings_of(ClassFolderSource(tmp_path))
    assert ["dataset.json beside the class folders is not read" in warning for warning in warnings] == [
        True
    ] * is_warned


@pytest.mark.parametrize("names", [("train_images", "test_images"), ("train-jpg", "test-jpg")])
def test_splits_of_a_competition_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    plant(tmp_path, *(f"{name}/1.jpg" for name in names))
    (warning,) = warnings_of(ClassFolderSource(tmp_path))
    assert "these look like splits; convert one at a time, first" in warning
