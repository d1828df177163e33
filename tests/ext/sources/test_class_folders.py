"""Other folders than the first one as classes, and warnings about names of class folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader.ext.sources.class_folders import ClassFolderSource
from dbloader.ext.sources.options import Reading
from tests.sources.test_folder import plant
from tests.support.tallies import only_entries, warnings_of


@pytest.mark.parametrize(("classes", "splits"), [("Train VAL", True), ("train cat", False)])
def test_classes_named_like_splits_give_a_warning(tmp_path: Path, classes: str, splits: bool) -> None:
    root = plant(tmp_path / "my data", *(f"{name}/1.jpg" for name in classes.split()))
    called, first = ", ".join(map(repr, classes.split())), f"{root}/{classes.split()[0]}"
    sentence = f"the classes are called {called}: these look like splits; convert one at a time, first {first}"
    assert ClassFolderSource(root).warnings == ((sentence,) if splits else ())


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


@pytest.mark.parametrize(
    ("folders", "number"),
    [
        ([*range(10)], None),
        ([*range(11)], "'10' is 2"),
        ([1, 2, 3], "'1' is 0"),
        (["00", "01", "02"], None),
        (["0", "2", "x"], None),
    ],
)
def test_class_folders_that_are_other_numbers_than_labels_give_a_warning(
    tmp_path: Path, folders: list[object], number: str | None
) -> None:
    source = ClassFolderSource(plant(tmp_path, *(f"{name}/1.jpg" for name in folders)))
    said = f"the label of {number}: classes='numbers' (--classes numbers)"
    assert [said in warning for warning in source.warnings] == [True] * bool(number)


@pytest.mark.parametrize("pair", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("cat", "cat ")])
def test_class_folders_that_look_alike_give_a_warning(tmp_path: Path, pair: tuple[str, str]) -> None:
    source = ClassFolderSource(plant(tmp_path, *(f"{name}/1.jpg" for name in pair), "dog/1.jpg"))
    (warning,) = source.warnings
    assert "look alike" in warning
    assert len(source.classes) == 3
