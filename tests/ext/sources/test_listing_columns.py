"""The columns of a listing: types, images and labels in columns of any name, several classes, rows of boxes."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Listing, LMDBDataset, convert, export_store, verify_store
from dbloader.conversion.settings import Settings
from dbloader.errors import OptionError, SourceError
from dbloader.ext.parts.make_plan import plan_parts
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from dbloader.ext.sources.boxes import OWN_SIZE
from dbloader.ext.sources.open import open_source
from dbloader.ext.sources.options import Reading
from dbloader.sources.base import Entry, Problem, Source
from tests.support.images import plant
from tests.support.layouts.base import coco, photo, photos, write, write_csv, write_jsonl, write_zip
from tests.support.layouts.outcome import run_command
from tests.support.tallies import entries, only_entries, problems


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "photos", photos(["a.jpg", "sub/b.jpg", "sub/c.png"]))


def opened(root: Path, content: str, name: str = "list.csv", **columns: Any) -> Source:
    return open_source(root, Listing(write(root.parent, name, content), **columns))


def column(root: Path, values: list[str], **columns: Any) -> list[Any]:
    text = "path,x\n" + "".join(f"{at},{value}\n" for at, value in enumerate(values))
    return [entry.fields["x"] for entry in only_entries(opened(root, text, **columns))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-7", "", "0"], [1, -7, None, 0]),
        (["1", "2.5", "", "-0.10"], [1.0, 2.5, None, -0.1]),
        (["1.5", "1e-05", "2.5e3", ".5"], [1.5, 1e-05, 2500.0, 0.5]),
        (["true", "False", "", "TRUE"], [True, False, None, True]),
        ([str(2**53), "1"], [2**53, 1]),
        *(
            ([odd, "1"], [odd, "1"])
            for odd in ("007", "+3", str(2**53 + 1), "1e5", "1_0", "٣", " 1", "N/A", "-0", "3,")
        ),
        (["true", "1"], ["true", "1"]),
        (["2024-01-02", ""], ["2024-01-02", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_csv_column_has_the_type_of_all_its_values(root: Path, values: list[str], expected: list[Any]) -> None:
    found = column(root, [f'"{value}"' for value in values])
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_column_stays_text_where_the_user_says_so(root: Path) -> None:
    assert column(root, ["10115", "80331"], text="x") == ["10115", "80331"]
    assert column(root, ["10115", "80331"]) == [10115, 80331]


def test_queries_fields_and_exports_get_the_numbers_of_a_csv(root: Path, tmp_path: Path) -> None:
    rows = [("path", "score", "age", "old"), ("a.jpg", "0.75", "3", "false"), ("sub/b.jpg", "0.25", "40", "true")]
    listing, place = write_csv(tmp_path, "x.csv", rows), tmp_path / "x.lmdb"
    digest = convert(root, place, listing=listing, progress=None).digest
    with LMDBDataset(place, fields=("score", "age", "old")) as dataset:
        assert dataset[0] == {"score": 0.75, "age": 3, "old": False}
        assert dataset.manifest.columns == {"age": "int", "old": "bool", "score": "float"}
    for query in ("score>0.5", "age<10", "old=false"):
        with LMDBDataset(place, where=query, decode=None, fields=("name",)) as dataset:
            assert (len(dataset), dataset[0]["name"]) == (1, "a.jpg"), query
    export_store(place, tmp_path / "out")
    assert convert(tmp_path / "out", tmp_path / "again.lmdb", progress=None).digest == digest


# --- the column of the images -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Path", "FILE_NAME", "file_name", "ImagePath", "img", "Image Name", "filepath"])
def test_image_column_is_known_in_any_letters(root: Path, name: str) -> None:
    assert [entry.name for entry in only_entries(opened(root, f"{name},Target\na.jpg,3\n"))] == ["a.jpg"]


@pytest.mark.parametrize("name", ["id", "image_id", "ImageId", "img_id"])
def test_id_finds_the_one_file_with_its_stem(root: Path, name: str) -> None:
    source = opened(root, f"{name},label\na,x\nb,y\nsub/c,x\n")
    assert [entry.name for entry in only_entries(source)] == ["a.jpg", "sub/b.jpg", "sub/c.png"]
    assert "a name without its extension" in source.understood[0]
    numbers = plant(root.parent / "numbers", photos(["12.jpg"]))
    rows = json.dumps({name: 12, "label": 0})
    assert [entry.name for entry in only_entries(opened(numbers, rows, "x.jsonl"))] == ["12.jpg"]


def test_id_of_two_files_is_a_problem_that_names_both(root: Path) -> None:
    plant(root, photos(["other/b.jpg", "sub/a.jpg"]))
    a, b = opened(root, "id,label\na,x\nb,y\n").entries()
    assert getattr(a, "name", "") == "a.jpg"  # the folder itself comes first
    assert b == Problem("row 3", "b may be other/b.jpg or sub/b.jpg: write the path below the folder")


@pytest.mark.parametrize("text", ["key,breed\na,x\n", "id,label\nzzz,x\n"])
def test_listing_without_images_names_its_columns_and_the_option(root: Path, text: str) -> None:
    columns = ", ".join(map(repr, text.splitlines()[0].split(",")))
    with pytest.raises(
        SourceError, match=f"no path in a column called path .*; the columns are {columns}: --image-column"
    ):
        opened(root, text)


def test_columns_that_the_user_names_are_used(root: Path) -> None:
    source = opened(root, "path,key,Breed\nx,a.jpg,pug\n", image="key", label="breed")
    assert [(entry.name, entry.label, entry.fields) for entry in only_entries(source)] == [("a.jpg", 0, {"path": "x"})]
    for wrong in ({"image": "kez"}, {"label": "bread"}, {"text": "zip"}):
        with pytest.raises(SourceError, match=r"it has no column '.*': its columns are \['path', 'key', 'Breed'\]"):
            opened(root, "path,key,Breed\nx,a.jpg,pug\n", **wrong)


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("sub\\b.jpg", "sub/b.jpg"),
        ("/sub/b.jpg", "sub/b.jpg"),
        (unicodedata.normalize("NFC", "größe/é.jpg"), unicodedata.normalize("NFD", "größe/é.jpg")),
        (unicodedata.normalize("NFD", "größe/é.jpg"), unicodedata.normalize("NFC", "größe/é.jpg")),
        ("my%20cat.jpg", "my cat.jpg"),
        ("{own}/sub/b.jpg", "sub/b.jpg"),
        ("/home/ann/{own}/sub/b.jpg", "sub/b.jpg"),
        ("C:\\data\\{own}\\sub\\b.jpg", "sub/b.jpg"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "coco"])
def test_path_in_another_spelling_finds_its_file(root: Path, kind: str, listed: str, found: str) -> None:
    plant(root, photos([found], 9))
    listed = listed.format(own=root.name)
    text, name = f"path\n{listed}\n", "list.csv"
    if kind == "coco":
        text, name = coco([(listed, 40, 30)], {}, []), "coco.json"
    source = opened(root, text, name)
    assert [entry.name for entry in only_entries(source)] == [found]
    assert "(" in source.understood[0]  # the rule that found the file


@pytest.mark.parametrize("path", ["val/a.jpg", "val/images/a.jpg", "/data/test/images/a.jpg"])
def test_path_in_the_folder_of_another_split_finds_nothing(tmp_path: Path, path: str) -> None:
    folder = plant(tmp_path / "train" / "images", photos(["a.jpg"]))
    assert [entry.name for entry in only_entries(opened(folder, f"path\n{path}\n"))] == [path]
    assert [entry.name for entry in only_entries(opened(folder, "path\ntrain/images/a.jpg\n"))] == ["a.jpg"]


def test_file_with_a_backslash_in_its_name_stays_itself(root: Path) -> None:
    plant(root, photos(["sub\\b.jpg"], 9))
    assert [entry.name for entry in only_entries(opened(root, "path\nsub\\b.jpg\n"))] == ["sub\\b.jpg"]


# --- several classes and numbers --------------------------------------------------------------------------------------


def targets(root: Path, listing: Listing, place: Path, **options: Any) -> tuple[list[str], list[Any]]:
    convert(root, place, listing=listing, progress=None, **options)
    with LMDBDataset(place, decode=None) as dataset:
        return [*dataset.classes], [np.asarray(dataset[index][1]).tolist() for index in range(len(dataset))]


SEVERAL = [("a.jpg", ["cat", "dog"]), ("sub/b.jpg", ["bird"]), ("sub/c.png", [])]


@pytest.mark.parametrize("kind", ["separator", "json", "columns", "all columns", "_classes.csv"])
def test_several_classes_are_read(root: Path, tmp_path: Path, kind: str) -> None:
    names = ["bird", "cat", "dog"]
    columns: dict[str, Any] = {}
    if kind == "json":
        text = "\n".join(json.dumps({"path": path, "label": found}) for path, found in SEVERAL)
        path = write(tmp_path, "x.jsonl", text)
    elif kind == "separator":
        path = write_csv(tmp_path, "x.csv", [("path", "label"), *((path, "; ".join(found)) for path, found in SEVERAL)])
        columns = {"separator": ";"}
    else:
        ones = [", ".join([path, *(str(int(name in found)) for name in names)]) for path, found in SEVERAL]
        name = "x.csv" if "columns" in kind else kind
        path = write(tmp_path, name, "\n".join(["filename, bird, cat, dog", *ones]))
        columns = {"label": names} if kind == "columns" else {"label": "*"} if kind == "all columns" else {}
    classes, found = targets(root, Listing(path, **columns), tmp_path / "x.lmdb")
    assert (classes, found) == (names, [[0, 1, 1], [1, 0, 0], [0, 0, 0]])
    given = targets(root, Listing(path, **columns), tmp_path / "y.lmdb", classes=["dog", "eel", "cat", "bird"])
    assert given == (["dog", "eel", "cat", "bird"], [[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
    convert(tmp_path / "x.lmdb", tmp_path / "z.lmdb", classes=["dog", "cat", "bird"], progress=None)
    with LMDBDataset(tmp_path / "z.lmdb", decode=None) as dataset:
        assert np.asarray(dataset[0][1]).tolist() == [1, 1, 0]
        assert dataset.manifest.field_classes == {"labels": ["dog", "cat", "bird"]}


@pytest.mark.parametrize(
    ("labels", "mark"),
    [
        (["cat", "cat|dog"], "|"),
        (["scab", "rust", "scab rust"], " "),
        (["a;b", "b;c", "c;a"], ";"),
        (["tench, Tinca tinca", "great white shark, white shark", "golden retriever"], ""),
        (["rock & roll", "new york", "york"], ""),
        (["cat", "dog", "cat+dog"], "+"),
        (["cat", "dog", "dog / cat"], "/"),
        (["cat", "dog", "eel", "cat & eel"], "&"),
        (["church/indoor", "church/outdoor", "house/indoor", "house/outdoor"], ""),
        (["c", "c++"], ""),
    ],
)
def test_labels_that_look_like_several_classes_are_a_warning(root: Path, labels: list[str], mark: str) -> None:
    warnings = opened(root, "path,label\n" + "".join(f'{at},"{label}"\n' for at, label in enumerate(labels))).warnings
    assert [f"--separator {mark!r}" in warning for warning in warnings] == [True] * bool(mark)


@pytest.mark.parametrize(("name", "field"), [("label", "target"), ("target", "target"), ("price", "price")])
def test_numbers_with_a_fraction_become_the_target(root: Path, tmp_path: Path, name: str, field: str) -> None:
    path = write_csv(tmp_path, "x.csv", [("path", name), ("a.jpg", "3.5"), ("sub/b.jpg", "2"), ("sub/c.png", "1.0")])
    assert targets(root, Listing(path, label=name), tmp_path / "x.lmdb") == ([], [3.5, 2.0, 1.0])
    with LMDBDataset(tmp_path / "x.lmdb") as dataset:
        assert dataset.manifest.source["target"] == field
        assert dataset.manifest.source["columns"] == {"label": [name]}
    with pytest.raises(SourceError, match=r"'1\.5'.*'cat'|'cat'.*'1\.5'"):
        opened(root, "path,label\na.jpg,1.5\nb,cat\n")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.7, 2.9], r"row 2: its label is \[0\.7, 2\.9\], but a list must have the names or integers of classes"),
        ([1, 0, 1], r"row 2: its label, \[1, 0, 1\], repeats a number, .* 0/1 for each class: .*--label-column a,b,c"),
    ],
)
def test_list_that_is_not_of_classes_is_an_error(root: Path, label: list[float], message: str) -> None:
    rows = [{"path": "a.jpg", "label": [3, 1]}, {"path": "b.jpg", "label": label}]
    with pytest.raises(SourceError, match=message):
        opened(root, "\n".join(map(json.dumps, rows)), "x.jsonl")
    text = "|".join(map(str, label))
    with pytest.raises(SourceError, match=message.split(r"\[")[0].replace("2", "3")):
        opened(root, f"path,label\na.jpg,3|1\nb.jpg,{text}\n", separator="|")


def test_lists_of_integers_need_the_names_of_the_classes(root: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", '{"path": "a.jpg", "label": [2, 0]}\n{"path": "sub/b.jpg", "label": [1]}\n')
    with pytest.raises(
        OptionError, match=r"its labels are lists of integers, .* how many classes there are: .*--classes"
    ):
        convert(root, tmp_path / "x.lmdb", listing=path, progress=None)
    given = targets(root, Listing(path), tmp_path / "x.lmdb", classes=["ant", "bee", "cat"])
    assert given == (["ant", "bee", "cat"], [[1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("odd", ["nan", "inf"])
def test_nan_among_integer_labels_is_an_error(root: Path, odd: str) -> None:
    with pytest.raises(SourceError, match=f"the label of row 2 is '0' and the label of row 4 is '{odd}'"):
        opened(root, f"path,label\na.jpg,0\nsub/b.jpg,1\nsub/c.png,{odd}\n")
    assert opened(root, f"path,label\na.jpg,0.5\nsub/b.jpg,1\nsub/c.png,{odd}\n").target == "target"


def test_labels_of_another_kind_cannot_be_appended(root: Path, tmp_path: Path) -> None:
    several = write_csv(tmp_path, "x.csv", [("path", "label"), ("a.jpg", "cat|dog")])
    numbers = write_csv(tmp_path, "y.csv", [("path", "label"), ("sub/b.jpg", "0.5")])
    place = tmp_path / "x.shards"
    convert(root, place, listing=Listing(several, separator="|"), shards=1, progress=None)
    with pytest.raises(OptionError, match=r"new images is 'target', but the target of .* is 'labels': give"):
        convert(root, place, listing=numbers, append=True, progress=None)


# --- rows that name one file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["a.jpg", "./a.jpg", "sub//../a.jpg", "{root}/a.jpg"])
def test_rows_with_different_labels_for_an_image_are_an_error(root: Path, other: str) -> None:
    with pytest.raises(SourceError, match="rows 2 and 4 name the same image, with different labels"):
        opened(root, f"path,label\na.jpg,x\nsub/b.jpg,y\n{other.format(root=root)},y\n")


def test_row_that_repeats_another_is_a_warning(root: Path) -> None:
    (warning,) = opened(root, "path,label,q\nsub/b.jpg,y,\na.jpg,x,1\n./a.jpg,x,1\na.jpg,x,2\n").warnings
    assert warning.startswith("1 row repeats another, as row 4 repeats row 3: each becomes a record")


@pytest.mark.parametrize("text", ["path,caption\na.jpg,one\na.jpg,two\n", "path,label,q\na.jpg,x,1\na.jpg,x,2\n"])
def test_rows_of_captions_and_questions_may_repeat_an_image(root: Path, text: str) -> None:
    source = opened(root, text)
    assert [entry.name for entry in only_entries(source)] == ["a.jpg", "a.jpg"]
    assert not [warning for warning in source.warnings if "repeat" in warning]


def test_rows_of_boxes_become_one_record_for_each_image(root: Path, tmp_path: Path) -> None:
    rows = [
        ("image_path", "xmin", "ymin", "xmax", "ymax", "label", "score"),
        ("a.jpg", 1, 2, 9, 9, "dog", 1),
        ("sub/b.jpg", "", "", "", "", "", ""),
        ("./a.jpg", 0, 0, 20.5, 8, "cat", 1),
    ]
    path, place = write_csv(tmp_path, "boxes.csv", rows), tmp_path / "x.lmdb"
    report = convert(root, place, listing=path, progress=None)
    assert report.warnings == ("columns that may vary between boxes of an image are left out: 'score'",)
    with LMDBDataset(place, decode=None, fields=("name", "boxes", "box_labels")) as dataset:
        assert dataset.classes == ["cat", "dog"]
        assert [dataset[index]["name"] for index in range(len(dataset))] == ["a.jpg", "sub/b.jpg"]
        assert dataset[0]["boxes"].tolist() == [[1, 2, 9, 9], [0, 0, 20.5, 8]]
        assert dataset[0]["box_labels"].tolist() == [1, 0]
        assert dataset[1]["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("columns", "row", "reason"),
    [
        ("xmin,ymin,xmax,ymax", "nan,2,9,9", "its box lacks a number: ['nan', '2', '9', '9']"),
        ("xmin,ymin,xmax,ymax,width,height", "1,2,9,9,inf,30", "its width and height are no numbers of pixels"),
    ],
)
def test_box_row_without_a_number_is_a_problem(root: Path, columns: str, row: str, reason: str) -> None:
    ends = ",40,30" * ("width" in columns)
    found = [*opened(root, f"path,label,{columns}\na.jpg,x,0,0,5,5{ends}\na.jpg,x,{row}\n").entries()]
    [problem] = [item for item in found if isinstance(item, Problem)]
    assert problem.name == "row 3"
    assert problem.reason.startswith(reason)


@pytest.mark.parametrize("label", [["a", "b"], 1.5, "a|b", "1.5"])
def test_box_has_one_class(root: Path, label: Any) -> None:
    if isinstance(label, str):
        name, text = "x.csv", f"path,label,x1,y1,x2,y2\na.jpg,0,1,2,9,9\na.jpg,{label},1,2,9,9\n"
    else:
        rows = [{"path": "a.jpg", "label": value, "x1": 1, "y1": 2, "x2": 9, "y2": 9} for value in (0, label)]
        name, text = "x.jsonl", "\n".join(map(json.dumps, rows))
    with pytest.raises(SourceError, match=r"row [23]: the label of a box must be an integer or a name, got"):
        opened(root, text, name, separator="|")


@pytest.mark.parametrize("box", [(0.25, 0.5, 0, 1), (0, 1, 0, 1)])
def test_boxes_from_0_to_1_are_fractions_with_a_warning(root: Path, tmp_path: Path, box: tuple[float, ...]) -> None:
    rows = [("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax"), ("a", "/m/1", *box)]
    path = write_csv(tmp_path, "x.csv", rows)
    report = convert(root, tmp_path / "x.lmdb", listing=Listing(path, label="LabelName"), progress=None)
    assert "from 0 to 1, so they are read as fractions" in report.warnings[0]
    corners = [[box[0], box[2], box[1], box[3]]]
    listed = write(tmp_path, "x.jsonl", json.dumps({"path": "a.jpg", "boxes": corners, "box_labels": ["/m/1"]}))
    assert convert(root, tmp_path / "y.lmdb", listing=listed, progress=None).warnings == report.warnings
    for name in ("x.lmdb", "y.lmdb"):
        with LMDBDataset(tmp_path / name, decode=None, fields=("boxes",)) as dataset:
            assert dataset[0]["boxes"].tolist() == (np.array(corners) * [40, 30, 40, 30]).tolist()


@pytest.mark.parametrize(
    ("boxes", "labels", "reason"),
    [
        ([[1, 2, 9, 9]], None, "its 'box_labels' must be a list with an integer or a name for each of its 1 boxes"),
        ([[1, 2, 9, 9]], [1, 2], "its 'box_labels' must be a list"),
        ([[1, 2, 9, 9]], [1.5], "its 'box_labels' must be a list"),
        ([[1, 2, 9]], [1], "its 'boxes' must be a list with x_min, y_min, x_max and y_max"),
        (3, [1], "got 3: rename the column if it holds something else"),
    ],
)
def test_list_of_boxes_that_cannot_be_used_is_a_problem(root: Path, boxes: Any, labels: Any, reason: str) -> None:
    rows = [{"path": "sub/b.jpg"}, {"path": "a.jpg", "boxes": boxes, "box_labels": labels}]
    found = [*opened(root, "\n".join(map(json.dumps, rows)), "x.jsonl").entries()]
    [problem] = [item for item in found if isinstance(item, Problem)]
    assert problem.name == "row 2"
    assert reason in problem.reason


def test_names_of_boxes_in_lists_become_classes(root: Path, tmp_path: Path) -> None:
    rows = [
        {"path": "a.jpg"},
        {"path": "sub/b.jpg", "boxes": [[1, 2, 9, 9], [0, 0, 4, 4]], "box_labels": ["dog", "cat"]},
        {"path": "sub/c.png", "boxes": []},
    ]
    path = write(tmp_path, "x.jsonl", "\n".join(map(json.dumps, rows)))
    convert(root, tmp_path / "x.lmdb", listing=path, progress=None)
    with LMDBDataset(tmp_path / "x.lmdb", decode=None, fields=("boxes", "box_labels")) as dataset:
        assert dataset.classes == ["cat", "dog"]
        assert [len(dataset[index]["boxes"]) for index in range(3)] == [0, 2, 0]
        assert dataset[1]["box_labels"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "objects", [{"bbox": [[1, 2, 8, 7]], "category": [3]}, [{"bbox": [1, 2, 8, 7], "category": 3}]]
)
def test_objects_of_hugging_face_are_boxes_in_metadata_too(root: Path, tmp_path: Path, objects: Any) -> None:
    write(root, "metadata.jsonl", json.dumps({"file_name": "a.jpg", "objects": objects}))
    report = convert(root, tmp_path / "x.lmdb", progress=None)
    assert "'bbox' was read as x, y, width, height in pixels, as in COCO" in " ".join(report.warnings)
    with LMDBDataset(tmp_path / "x.lmdb", decode=None, fields=("boxes", "box_labels")) as dataset:
        assert (dataset[0]["boxes"].tolist(), dataset[0]["box_labels"].tolist()) == ([[1, 2, 9, 9]], [3])


@pytest.mark.parametrize(
    "columns",
    [
        {"bbox": '"[1, 2, 3, 4]"'},
        {"bbox_x": "1", "bbox_y": "2"},
        {"x_center": "1", "y_center": "2", "w": "3", "h": "4"},
        {"cx": "1", "cy": "2", "w": "3", "h": "4"},
        {"region_shape_attributes": "{}"},
        {"Bounding Box": "1 2 3 4"},
    ],
)
def test_columns_that_look_like_boxes_are_a_warning(root: Path, columns: dict[str, str]) -> None:
    text = f"path,label,{','.join(columns)}\na.jpg,dog,{','.join(columns.values())}\n"
    [warning] = opened(root, text).warnings
    like = [column for column in columns if column not in ("w", "h")]
    assert warning.startswith(f"{', '.join(map(repr, like))} may be boxes, but became plain fields")


@pytest.mark.parametrize(
    ("columns", "sides", "warns"),
    [
        ("bbox_x1 bbox_y1 bbox_x2 bbox_y2", False, False),
        ("left top width height", True, False),
        ("xmin ymin width height", True, False),
        ("x_1 y_1 width height", True, False),  # CelebA
        ("x y width height", True, True),  # RSNA
        ("x y w h width height", True, True),
        ("BBox [x|y|w|h]||", True, True),  # NIH, with the commas of a spreadsheet
        ("bbox_x bbox_y bbox_width bbox_height image_width image_height", True, True),  # makesense.ai
    ],
)
def test_boxes_may_have_other_columns(root: Path, columns: str, sides: bool, warns: bool) -> None:
    names = columns.split("|") if "|" in columns else columns.split()
    numbers = [
        "1",
        "2",
        *(["8", "6"] if sides else ["9", "8"]),
        *["40", "30"] * (len(names) == 6 and "|" not in columns),
    ]
    text = f"path,label,{','.join(names)}\na.jpg,dog,{','.join(numbers)}{',' * (len(names) - len(numbers))}\n"
    text += f"a.jpg,cat{',' * len(names)}\nsub/b.jpg,{',' * len(names)}\n"
    source = opened(root, text)
    first, second = only_entries(source)
    assert np.asarray(first.fields["boxes"]).tolist() == [[1, 2, 9, 8]]
    assert np.asarray(second.fields["boxes"]).shape == (0, 4)
    assert first.boxes_in == ((40, 30) if len(numbers) == 6 else OWN_SIZE)
    assert ["were read as the left upper corner" in warning for warning in source.warnings] == [True] * warns


def test_errors_of_rows_that_may_be_boxes_name_their_columns(root: Path) -> None:
    with pytest.raises(SourceError, match=r"with different labels.* if each row is a box, its columns are xmin, ymin"):
        opened(root, "path,label,bbox\na.jpg,x,1\na.jpg,y,2\n")
    like_boxes = opened(root, 'path,width,height,bbox\na.jpg,40,30,"[1, 2, 3, 4]"\n')
    assert any("'bbox' may be boxes" in warning and "x1, y1, x2, y2" in warning for warning in like_boxes.warnings)
    with pytest.raises(SourceError, match="such as path,left,top,width,height,label or path,xmin,ymin,xmax,ymax,label"):
        opened(root, "dog,1,2,3,4,a.jpg,40,30\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("via.json", {"a.jpg1234": {"filename": "a.jpg", "regions": []}}),
        ("label-studio.json", [{"id": 1, "annotations": [{"result": []}], "data": {"image": "/data/upload/1/a.jpg"}}]),
        ("label-studio-min.json", [{"image": "a.jpg", "label": [{"x": 1, "rectanglelabels": ["cat"]}]}]),
        ("labelbox.json", [{"data_row": {"external_id": "a.jpg"}, "projects": {}}]),
    ],
)
def test_json_of_labeling_tools_is_refused_with_a_way(root: Path, name: str, content: Any) -> None:
    with pytest.raises(SourceError, match="; from a labeling tool, export COCO"):
        opened(root, json.dumps(content), name)


def test_report_counts_rows_with_the_image_of_an_earlier_row(root: Path) -> None:
    found = opened(root, "path,label,q\na.jpg,x,1\nsub/b.jpg,x,1\na.jpg,x,2\n").understood
    assert "(1 row with the image of an earlier row: each becomes a record)" in " ".join(found)
    assert "earlier row" not in " ".join(opened(root, "path,label\na.jpg,x\nsub/b.jpg,x\n").understood)


def test_paths_without_a_single_file_are_named_in_the_report(root: Path) -> None:
    hint = "(data/a.jpg is not there: the paths must start from the folder that is converted)"
    assert hint in opened(root, "path,label\ndata/a.jpg,x\ndata/x.jpg,y\n").understood[0]
    assert "is not there" not in opened(root, "path,label\ndata/x.jpg,x\na.jpg,y\n").understood[0]


def test_corners_may_be_counted_from_zero(root: Path) -> None:
    [entry] = only_entries(opened(root, "path,label,x0,y0,x1,y1\na.jpg,dog,1,2,9,8\n"))
    assert np.asarray(entry.fields["boxes"]).tolist() == [[1, 2, 9, 8]]


# --- tables without a header, and with other separators ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels", "boxes"),
    [
        ("a.jpg,dog\nsub/b.jpg,cat\n", [1, 0], None),
        ("dog,a.jpg\ncat,sub/b.jpg\n", [1, 0], None),
        ("a.jpg\nsub/b.jpg\n", [None, None], None),
        ("a.jpg,1,2,9,9,dog\nsub/b.jpg,,,,,\n", [None, None], [1, 0]),
        ("path\tlabel\na.jpg\t1\nsub/b.jpg\t0\n", [1, 0], None),
        ("path|label\na.jpg|1\nsub/b.jpg|0\n", [1, 0], None),
    ],
)
def test_table_without_header_or_with_another_separator_is_read(
    root: Path, text: str, labels: list[int | None], boxes: list[int] | None
) -> None:
    source = opened(root, text)
    one, other = only_entries(source)
    assert ([one.name, other.name], [one.label, other.label]) == (["a.jpg", "sub/b.jpg"], labels)
    assert boxes is None or [len(one.fields["boxes"]), len(other.fields["boxes"])] == boxes
    assert ("its first row is no header" in source.understood[0]) == ("path" not in text)


@pytest.mark.parametrize("text", ["a.jpg,cat,3\n", "a.jpg,b.jpg\n", "a.jpg,cat,dog,x,y,z\n"])
def test_first_row_that_may_mean_anything_is_an_error(root: Path, text: str) -> None:
    with pytest.raises(SourceError, match=r"row 1: names an image, and is no header: add a header such as path"):
        opened(root, text)


@pytest.mark.parametrize("name", ["3,5", "1,234", "45%", "4.5 %"])
def test_labels_that_are_almost_numbers_are_a_warning(root: Path, name: str) -> None:
    [warning] = opened(root, f"path;label\na.jpg;{name}\nsub/b.jpg;{name[::-1].strip('% ')}0{name[-1]}\n").warnings
    assert f"{name!r} became names of classes: write numbers as 3.5 or 1234" in warning


@pytest.mark.parametrize("mark", [" ", ",", "|"])
def test_labels_of_several_integers_are_an_error_with_the_option(root: Path, mark: str) -> None:
    with pytest.raises(SourceError, match=f"--separator '{re.escape(mark)}' .* makes several classes of each"):
        opened(root, f'path,label\na.jpg,"0{mark}2"\nsub/b.jpg,1\n')


def test_class_called_none_gives_no_warning(root: Path) -> None:
    assert opened(root, "path,label\na.jpg,none\nsub/b.jpg,scratch\n").warnings == ()


@pytest.mark.parametrize("name", ["nan", "N/A", "None"])
@pytest.mark.parametrize("file", ["x.csv", "x.jsonl"])
def test_labels_that_mean_missing_are_a_warning(root: Path, name: str, file: str) -> None:
    text = f"path,label\na.jpg,cat\nsub/b.jpg,{name}\n"
    text = text if file == "x.csv" else json.dumps({"path": "a.jpg", "label": name})
    [warning] = opened(root, text, file).warnings
    assert warning == f"labels such as {name!r} became a class: leave the field empty where an image has no label"


@pytest.mark.parametrize(
    ("values", "warns"),
    [
        (["3,5", "2"], True),
        (["2.5", "12,000", ""], True),
        (["3", "NA"], True),
        (["null", "0.5"], True),
        (["1,000.5", "2,500.0"], True),
        (["1,234,567", "5"], True),
        (["5.", "0.5"], True),
        ([" 5", "6"], True),
        (["-", "3"], True),
        (["2.5", "?"], True),
        (["1.", "2."], False),
        (["100,200,300", "400,500,600"], False),
        (["-", "?"], False),
        (["1-2", "3"], False),
        (["NA", "FR"], False),
        (["NA", ""], False),
        (["3,5", "4,5,6"], False),
    ],
)
def test_numbers_that_stay_text_are_a_warning(root: Path, values: list[str], warns: bool) -> None:
    rows = "".join(f'a.jpg;"{value}";{at}\n' for at, value in enumerate(values))
    source = opened(root, f"path;x;label\n{rows}".replace("a.jpg", "{}.jpg").format(*range(len(values))))
    assert ["numbers stay text in 'x': write a decimal point" in warning for warning in source.warnings] == [
        True
    ] * warns
    assert [entry.fields["x"] for entry in only_entries(source)] == values


# --- text files, encodings, options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields", "labels"),
    [
        ("a.jpg 0\nsub/b.jpg 1\n", {}, [0, 1]),
        ("a.jpg cat\nsub/b.jpg dog\n", {}, [0, 1]),
        ("a.jpg\ta small cat\nsub/b.jpg\t7\n", {"text": "a small cat"}, [None, None]),
        ("a.jpg\n\nsub/b.jpg\n", {}, [None, None]),
        ("image,caption\na.jpg,a cat\nsub/b.jpg,a dog\n", {"caption": "a cat"}, [None, None]),
        ("a.jpg, cat\nsub/b.jpg, dog\n", {}, [0, 1]),
        ("2\nnose_x nose_y\na.jpg  69 7\nsub/b.jpg 70  8\n", {"nose_x": 69, "nose_y": 7}, [None, None]),
    ],
)
def test_text_file_names_images(root: Path, text: str, fields: dict[str, Any], labels: list[int | None]) -> None:
    one, other = only_entries(opened(root, text, "x.txt"))
    assert (one.name, other.name, one.fields) == ("a.jpg", "sub/b.jpg", fields)
    assert [one.label, other.label] == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n3\n2\n", "only numbers, and no paths: .*--listing LOC_val_solution.csv --classes train.lmdb"),
        ("a.jpg masks/a.png\n", "its lines name two files, .*--file-field mask"),
        ("cats\ndogs\n", "names no image: a text file has a path on each line"),
        ("cats 1\ndogs 2\n", "names no image: a text file has a path on each line"),
        ("a cat\nno dog\n", "names no image: a text file has a path on each line"),  # one word finds a.jpg
        ("", "names no image: a text file has a path on each line"),
    ],
)
def test_text_file_without_images_is_refused(root: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        opened(root, text, "x.txt")


def test_numbers_that_repeat_are_no_names_of_images(tmp_path: Path) -> None:
    plant(tmp_path, photos(f"{number}.jpg" for number in range(4)))
    assert [entry.name for entry in only_entries(opened(tmp_path, "2\n0\n1\n", "x.txt"))] == ["2.jpg", "0.jpg", "1.jpg"]
    with pytest.raises(SourceError, match="only numbers, and no paths"):
        opened(tmp_path, "2\n0\n0\n1\n", "x.txt")


@pytest.mark.parametrize(
    ("values", "option"),
    [("1 5 7", True), ("5,10,15,20,0 3,5,20,12,3", True), ("n03444034\t0\t3\t20", True), ("at 9 or 10", False)],
)
def test_numbers_after_a_path_are_a_warning(root: Path, values: str, option: bool) -> None:
    source = opened(root, f"a.jpg\t{values}\nsub/b.jpg\t{values} 1\n", "x.txt")
    assert ["became one text: --label-column 2" in warning for warning in source.warnings] == [True] * option


@pytest.mark.parametrize("mark", [" ", "\t"])
def test_value_after_a_path_is_the_label_that_its_number_chooses(root: Path, mark: str) -> None:
    lines = ("a.jpg", "n03444034", "0", "32.5"), ("sub/b.jpg", "n01514668", "7", "1.5")
    source = opened(root, "".join(mark.join(line) + "\n" for line in lines), "x.txt", label="2")
    assert source.classes == ("n01514668", "n03444034")
    assert [entry.fields for entry in only_entries(source)] == [{"3": 0, "4": 32.5}, {"3": 7, "4": 1.5}]
    other = opened(root, "a.jpg x 5\nsub/b.jpg y 4\n", "x.txt", label="3")
    assert [entry.label for entry in only_entries(other)] == [5, 4]
    with pytest.raises(SourceError, match="it has no column '9'"):
        opened(root, "a.jpg x 5\n", "x.txt", label="9")


@pytest.mark.parametrize(
    ("text", "names", "labels"),
    [
        ("a\nsub/b\n", ["a.jpg", "sub/b.jpg"], [None, None]),  # Food-101's meta/train.txt
        ("# name class\na 1\nc 3\n", ["a.jpg", "sub/c.png"], [1, 3]),
        ("a airport\nb bath\n", ["a.jpg", "sub/b.jpg"], [0, 1]),  # ADE20K's sceneCategories.txt
    ],
)
def test_text_file_may_name_images_without_their_extensions(
    root: Path, text: str, names: list[str], labels: list[int | None]
) -> None:
    entries = only_entries(opened(root, text, "x.txt"))
    assert [entry.name for entry in entries] == names
    assert [entry.label for entry in entries] == labels


@pytest.mark.parametrize(
    "value",
    [
        {"images": [{"filename": "a.jpg", "sentences": [{"raw": "a cat"}], "imgid": 0}], "dataset": "flickr30k"},
        {"samples": [{"filepath": "a.jpg", "sentences": [{"raw": "a cat"}], "imgid": 0}]},  # as FiftyOne writes it
        {"schema": {"fields": []}, "data": [{"path": "a.jpg", "sentences": [{"raw": "a cat"}], "imgid": 0}]},  # pandas
    ],
)
def test_only_list_of_objects_in_a_json_has_the_rows(root: Path, value: dict[str, Any]) -> None:
    (entry,) = only_entries(opened(root, json.dumps(value), "x.json"))
    assert (entry.name, entry.fields) == ("a.jpg", {"sentences": [{"raw": "a cat"}], "imgid": 0})


@pytest.mark.parametrize(("count", "warns"), [(21, True), (20, False)])
def test_labels_that_count_the_rows_are_a_warning(root: Path, count: int, warns: bool) -> None:
    text = "".join(f"n1/{at}.jpg {at}\n" for at in range(1, count + 1))  # as in ImageNet's train_cls.txt
    assert ["the labels are row numbers" in warning for warning in opened(root, text, "x.txt").warnings] == [
        True
    ] * warns


def test_id_code_names_the_images_if_its_values_name_files(root: Path) -> None:
    source = opened(root, "id_code,diagnosis\na,2\nb,2\n")  # as in APTOS
    assert [(entry.name, entry.label) for entry in only_entries(source)] == [("a.jpg", 2), ("sub/b.jpg", 2)]


def test_columns_without_a_name_are_left_out(root: Path) -> None:
    (entry,) = only_entries(opened(root, "image,label,,,\na.jpg,cat,,1,\n"))
    assert (entry.label, entry.fields) == (0, {})


def test_classes_after_a_path_are_split_as_the_warning_says(root: Path, tmp_path: Path) -> None:
    path, names = write(tmp_path, "x.txt", "a.jpg 1 2\nsub/b.jpg 0 2\n"), "x,y,z"
    arguments = ("--listing", str(path), "--label-column", "text", "--separator", " ", "--classes", names)
    assert run_command("convert", str(root), str(tmp_path / "x.lmdb"), *arguments)[0] == 0
    with LMDBDataset(tmp_path / "x.lmdb") as dataset:
        assert dataset.targets.tolist() == [[0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize(
    ("header", "rows", "classes"),
    [
        ("image,MEL,NV", "a.jpg,0.0,1.0\nsub/b.jpg,1.0,0.0\n", ("MEL", "NV")),
        ("image_id,Bald,Smiling", "a,-1,1\nb,1,-1\n", ("Bald", "Smiling")),
        ("path,one", "a.jpg,0\n", ()),
        ("path,one,two", "a.jpg,0,1\nsub/b.jpg,2,1\n", ()),
        ("path,one,two", "a.jpg,\x1c0,1\n", ()),  # \x1c is a space for a pattern, but not for float()
        ("path,one,two,label", "a.jpg,0,1,1\n", ()),
        ("path,one,is_train", "a.jpg,0,1\n", ()),
        ("path,one,Verified", "a.jpg,0,1\n", ()),
        ("path,one,val", "a.jpg,0,1\n", ()),
        ("path,one,two,cls", "a.jpg,0,1,1\n", ()),
        ("path,one,two", "a.jpg,0,1\nsub/b.jpg,1,1\n", ()),  # a label, and something else
        ("path,a,b,c", "a.jpg,0,1,0\nsub/b.jpg,1,1,0\n", ("a", "b", "c")),
    ],
)
def test_columns_of_flags_are_classes(root: Path, header: str, rows: str, classes: tuple[str, ...]) -> None:
    source = opened(root, f"{header}\n{rows}")
    assert (source.classes, source.target) == (classes, "labels" if classes else "")
    is_warned = not (classes or header.endswith(",label")) or classes == ("a", "b", "c")
    assert ["--label-column" in warning for warning in source.warnings] == [True] * is_warned
    assert opened(root, f"{header}\n{rows}", text="one" if "one" in header else classes[0]).classes == ()


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [
        ("n02 1 2 3 4", "n01 1 2 3 4 n01 0.5 6 7 8 ", ("n01", "n02")),
        ("0.9 1 2 3 4", "0.5 1 2 3 4", ()),  # a confidence
        ("cat 0.9 1 2 3 4", "dog 0.5 1 2 3 4", ()),
        ("", "", ()),
    ],
)
def test_predictions_of_another_form_are_no_labels(
    root: Path, first: str, second: str, classes: tuple[str, ...]
) -> None:
    source = opened(root, f"ImageId,PredictionString\na,{first}\nb,{second}\n")
    assert (source.classes, source.target) == (classes, "")
    assert ["no row has a label" in warning for warning in source.warnings] == [True] * (not classes)


@pytest.mark.parametrize(("last", "warns"), [(2.0, True), (2.5, False)])
def test_whole_numbers_with_gaps_are_a_warning(root: Path, last: float, warns: bool) -> None:
    rows = [{"path": "a.jpg", "label": 1.0}, {"path": "sub/b.jpg", "label": None}, {"path": "x", "label": last}]
    (warning,) = opened(root, json.dumps(rows), "x.json").warnings
    assert ("if they are classes, write them as integers" in warning) == warns


def test_column_without_a_name_is_left_out(root: Path) -> None:
    for text in (",path,label\n0,a.jpg,x\n1,sub/b.jpg,y\n", "path,label,\na.jpg,x,\nsub/b.jpg,y,\n"):
        source = opened(root, text)
        assert [(entry.name, entry.fields) for entry in only_entries(source)] == [("a.jpg", {}), ("sub/b.jpg", {})]
        assert "a column without a name is left out" in source.understood[0]


def test_json_object_of_images_has_their_labels_or_fields(root: Path) -> None:
    source = opened(root, '{"a.jpg": "x", "sub/b.jpg": {"label": "y", "age": 3}}', "x.json")
    assert [(entry.name, entry.label, entry.fields) for entry in only_entries(source)] == [
        ("a.jpg", 0, {}),
        ("sub/b.jpg", 1, {"age": 3}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "path,label\ra.jpg,x\r", "its line ends are those of an old Mac: save it with those of Windows"),
        ("x.lst", "0\t1.000000\ta.jpg\n", "for MXNet, write a CSV with path,label; else rename it to .txt"),
        ("x.xml", "<annotations/>", "for VOC, give the folder of .xml files; from CVAT, export COCO"),
    ],
)
def test_listing_of_another_program_is_refused_with_the_remedy(root: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        opened(root, text, name)


@pytest.mark.parametrize("encoding", ["utf-16", "gbk", "shift-jis"])
def test_listing_in_another_encoding_is_read(root: Path, tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, "x.csv", "path,label\na.jpg,日本\nsub/b.jpg,中国\n", encoding)
    if encoding == "utf-16":  # its byte-order mark shows it
        assert open_source(root, path).classes == ("中国", "日本")
    else:
        with pytest.raises(SourceError, match=r"is not UTF-8 .*--encoding"):
            convert(root, tmp_path / "x.lmdb", listing=path, progress=None)
    convert(root, tmp_path / "x.lmdb", listing=path, encoding=encoding, progress=None)
    with LMDBDataset(tmp_path / "x.lmdb") as dataset:
        assert dataset.classes == ["中国", "日本"]


def test_plan_and_verify_know_the_columns(root: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path, "x.csv", [("id", "breed", "zip"), ("a", "pug", "10115"), ("b", "beagle", "80331")])
    listing = Listing(path, label="breed", text="zip")
    plan = plan_parts(Settings(source=root, listing=listing), tmp_path / "x.shards", 2)
    for number in range(plan.parts):
        convert_part(tmp_path / "x.shards", number)
    publish(tmp_path / "x.shards")
    with LMDBDataset(tmp_path / "x.shards", fields=("label", "zip")) as dataset:
        assert dataset[1] == {"label": 0, "zip": "80331"}
    assert verify_store(tmp_path / "x.shards", against=root, listing=path).problems == {}


def test_command_line_takes_the_columns(root: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path, "x.csv", [("key", "breed", "zip"), ("a", "pug|cat", "10115")])
    line = ("--image-column", "key", "--label-column", "breed", "--separator", "|", "--text-column", "zip")
    place = str(tmp_path / "x.lmdb")
    assert run_command("convert", str(root), place, "--listing", str(path), *line)[0] == 0
    with LMDBDataset(place, fields=("labels", "zip")) as dataset:
        assert (dataset.classes, dataset[0]["zip"]) == (["cat", "pug"], "10115")
    assert "only a listing has columns: give --listing too" in run_command("convert", str(root), place, *line)[2]


@pytest.mark.parametrize(
    "columns", [{"image": ""}, {"label": 3}, {"label": ["a", "b"], "separator": "|"}, {"text": [1]}, {"separator": ""}]
)
def test_wrong_columns_are_an_error(columns: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Listing("x.csv", **columns)


def test_columns_decide_nothing_for_annotations(root: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "coco.json", json.dumps({"images": [], "annotations": [], "categories": []}))
    with pytest.raises(OptionError, match=r"^--label-column \(Listing\(label=\)\) has no effect on .*coco\.json"):
        open_source(root, Listing(path, label="breed"))


@pytest.mark.parametrize("decided", ["upright", "stored"])
@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
def test_boxes_of_a_listing_are_in_the_frame_that_the_user_decides(tmp_path: Path, name: str, decided: str) -> None:
    root = plant(tmp_path / "images", {"a.jpg": photo(0, 40, 20, 6)})
    content = {
        "list.csv": "path,label,xmin,ymin,xmax,ymax\na.jpg,0,0,0,10,5\n",
        "list.jsonl": '{"path": "a.jpg", "boxes": [[0, 0, 10, 5]], "box_labels": [0]}\n',
    }
    listing = write(tmp_path, name, content[name])
    place = tmp_path / "s.lmdb"
    report = convert(root, place, listing=listing, boxes=decided, progress=None)
    with LMDBDataset(place, fields=("boxes",)) as dataset:
        assert dataset[0]["boxes"].tolist() == [[0, 10, 5, 20] if decided == "upright" else [0, 0, 10, 5]]
    assert report.turned == 0
    assert convert(root, place, listing=listing, progress=None, overwrite=True).turned == 1


def test_box_of_a_json_listing_must_be_within_its_image(tmp_path: Path) -> None:
    root = plant(tmp_path / "images", {"a.jpg": photo(0, 40, 20, 1), "b.jpg": photo(0, 40, 20, 1)})
    rows = '{"path": "a.jpg", "boxes": [[4, 6, 500, -12]], "box_labels": [9]}\n{"path": "b.jpg"}\n'
    report = convert(root, tmp_path / "s.lmdb", listing=write(tmp_path, "list.jsonl", rows), progress=None)
    assert report.rejected == 1
    events = Path(report.report_file).read_text()
    assert "its box 0, [4.0, 6.0, 500.0, -12.0], is not within its 40 x 20 pixels" in events


def test_flags_that_may_be_no_classes_are_a_warning_with_the_options_that_decide(root: Path) -> None:
    text = "image,blurry,cropped,night\na.jpg,0,1,0\nsub/b.jpg,0,0,0\nsub/c.png,1,1,0\n"
    (warning,) = opened(root, text).warnings
    assert "'blurry', 'cropped', 'night' have only 0 and 1, and became classes" in warning
    assert "--label-column '*'" in warning
    assert "--text-column 'blurry'" in warning
    assert opened(root, text, label="*").warnings == ()
    fields = [entry.fields for entry in only_entries(opened(root, text, text="blurry"))]
    assert fields[0] == {"blurry": "0", "cropped": 1, "night": 0}
    assert opened(root, text.replace("0,0,0", "0,0,1").replace("1,1,0", "1,0,0")).warnings == ()
    assert opened(root, text.replace("0", "-1")).warnings == ()


# --- a single column besides the images -------------------------------------------------------------------------------


def table(column: str, values: list[Any]) -> str:
    return f"id,{column}\n" + "".join(f"{f'x{at}' if at else 'a'},{value}\n" for at, value in enumerate(values))


@pytest.mark.parametrize(
    ("column", "values", "classes", "labels"),
    [
        ("breed", ["pug", "dingo", "pug", "dingo"], ("dingo", "pug"), [1, 0, 1, 0]),
        ("breed", ["pug", "dingo", "pug", "", "dingo"], ("dingo", "pug"), [1, 0, 1, None, 0]),
        ("diagnosis", ["4", "0", "0", "4"], (), [4, 0, 0, 4]),
        ("has_cactus", ["True", "False", "False", "True"], ("False", "True"), [1, 0, 0, 1]),
        ("Id", ["w_1", "w_2", "w_2", "w_1"], ("w_1", "w_2"), [0, 1, 1, 0]),
    ],
)
def test_column_that_is_alone_is_the_label_if_its_values_repeat(
    root: Path, column: str, values: list[str], classes: tuple[str, ...], labels: list[int | None]
) -> None:
    source = opened(root, table(column, values).replace("id,", "image,", 1))
    assert (source.classes, [entry.label for entry in only_entries(source)]) == (classes, labels)
    assert source.understood[1] == f"labels: the column {column!r}, the only one besides the images"
    *missing, guess = source.warnings
    assert ["1 of 5 rows have no label" in warning for warning in missing] == [True] * ("" in values)
    assert f"--label-column {column} (Listing(label=)) confirms it, --text-column {column} keeps it a field" in guess
    assert guess not in opened(root, table(column, values).replace("id,", "image,", 1), label=column).warnings


def test_label_of_a_column_that_is_alone_comes_from_ids_zips_and_json(root: Path, tmp_path: Path) -> None:
    breeds = dict.fromkeys(["a", "c"], "pug") | dict.fromkeys(["b", "d"], "dingo")
    images = {f"{name}.jpg": photo(at) for at, name in enumerate(breeds)}
    sources = plant(tmp_path / "dogs", images), write_zip(tmp_path / "dogs.zip", images)
    rows = write_csv(tmp_path, "labels.csv", [("id", "breed"), *breeds.items()])
    objects = write_jsonl(tmp_path, "labels.jsonl", [{"id": name, "breed": breed} for name, breed in breeds.items()])
    for number, (source, listing) in enumerate(itertools.product(sources, (rows, objects))):
        place = tmp_path / f"{number}.lmdb"
        report = convert(source, place, listing=listing, progress=None)
        assert report.rejected == 0
        assert ["the column 'breed' gives the labels" in warning for warning in report.warnings] == [True]
        with LMDBDataset(place, decode=None) as dataset:
            assert (dataset.classes, dataset.targets.tolist()) == (["dingo", "pug"], [1, 1, 0, 0])
        assert verify_store(place, against=source, listing=listing).problems == {}


def test_numbers_with_a_fraction_in_a_column_that_is_alone_are_the_target(root: Path) -> None:
    source = opened(root, table("price", ["3.5", "2", "0.25"]))
    assert source.target == "price"
    assert ["the column 'price' gives the labels" in warning for warning in source.warnings] == [True]
    assert [entry.fields for entry in only_entries(source)] == [{"price": 3.5}, {"price": 2.0}, {"price": 0.25}]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("breed", ["pug", "dingo", "beagle"]),
        ("year", ["2001", "2002", "2003"]),
        ("note", ["blurred", "blurred", "", "", ""]),
        ("fold", ["0", "1", "0", "1"]),
        ("set", ["train", "val", "train", "train"]),
        ("is_train", ["1", "0", "1", "1"]),
        ("verified", ["yes", "no", "yes", "no"]),
        ("patient_id", ["7", "7", "8", "8"]),
        ("url", ["https://a", "https://b", "https://a", "https://b"]),
        ("background", ["1.png", "2.png", "1.png", "2.png"]),
        ("bbox", ["[1 2]", "[1 2]"]),
        ("age", ["10", "N/A", "10", "N/A"]),
        ("grade", ["1.0", "2.0", "1.0", "2.0"]),
    ],
)
def test_column_that_is_alone_stays_a_field_with_a_warning_if_it_may_be_no_label(
    root: Path, column: str, values: list[str]
) -> None:
    source = opened(root, table(column, values))
    assert (source.classes, source.target) == ((), "")
    assert {*only_entries(source)[0].fields} == {column}
    assert "--label-column" in source.warnings[0]


def test_column_that_the_user_keeps_as_text_is_no_label(root: Path) -> None:
    assert opened(root, table("breed", ["pug", "pug"]), text="breed").classes == ()


def test_column_that_is_alone_is_no_label_if_it_gives_an_image_two(root: Path) -> None:
    source = opened(root, "path,tag\na.jpg,red\na.jpg,big\nsub/b.jpg,red\nsub/b.jpg,big\n")
    assert [entry.fields["tag"] for entry in only_entries(source)] == ["red", "big", "red", "big"]
    assert "--label-column" in source.warnings[0]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("x.csv", "image,caption\na.jpg,a dog\na.jpg,a dog\n"),
        ("x.csv", "image_name| comment_number| comment\na.jpg| 0| a dog\na.jpg| 1| a cat\n"),  # Flickr30k
        ("x.csv", "image,split,caption,url\na.jpg,train,a dog,x\nsub/b.jpg,val,a cat,y\n"),
        ("x.jsonl", '{"file_name": "a.jpg", "text": "a dog"}\n'),
        ("x.json", '[{"id": "1", "image": "a.jpg", "conversations": [{"from": "human", "value": "?"}]}]'),
        ("photos/metadata.csv", "file_name,text\na.jpg,a dog\nsub/b.jpg,a cat\nsub/c.png,two cats\n"),
    ],
)
def test_table_of_captions_needs_no_label(root: Path, name: str, rows: str) -> None:
    listing = write(root.parent, name, rows)
    source = open_source(root, None if name.startswith("photos") else listing)
    assert (source.classes, source.target) == ((), "")
    assert not [warning for warning in source.warnings if "label" in warning]


CLASS_COLUMNS = "image,Edema,Mass,Nodule\na.jpg,1.0,,0.0\nsub/b.jpg,0.0,-1.0,1.0\nsub/c.png,0.0,0.0,1.0\n"


def test_third_value_in_columns_of_classes_is_a_warning(root: Path) -> None:
    (warning,) = opened(root, CLASS_COLUMNS, label=("Edema", "Mass", "Nodule")).warnings
    assert "-1 beside 0 and an empty value became no (first in row 3, 'Mass')" in warning
    source = opened(root, CLASS_COLUMNS, label=("Edema", "Nodule"))
    assert source.warnings == ()
    assert [entry.fields for entry in only_entries(source)] == [
        {"Mass": mass, "labels": labels} for mass, labels in ((None, [0]), (-1.0, [1]), (0.0, [1]))
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ("['cat', 'dog']", "['dog']", "[]"),
        ('["cat", "dog"]', "dog", "[]"),
        ('{"choices": ["cat", "dog"]}', "dog", ""),
    ],
)
def test_list_in_a_cell_is_several_classes(root: Path, texts: tuple[str, ...]) -> None:
    cells = ['"' + text.replace('"', '""') + '"' for text in texts]
    source = opened(root, f"path,label\na.jpg,{cells[0]}\nsub/b.jpg,{cells[1]}\nsub/c.png,{cells[2]}\n")
    assert (source.classes, source.target) == (("cat", "dog"), "labels")
    assert [entry.fields["labels"] for entry in only_entries(source)] == [[0, 1], [1], []]


def test_label_that_only_looks_like_a_list_stays_a_name(root: Path) -> None:
    source = opened(root, "path,label\na.jpg,[cat]\nsub/b.jpg,{dog}\nsub/c.png,[1.5]\n")
    assert source.classes == ("[1.5]", "[cat]", "{dog}")


@pytest.mark.parametrize("name", ["list.csv", "list.txt"])
def test_separator_without_a_column_of_labels_is_refused(root: Path, name: str) -> None:
    text = "path,tags,n\na.jpg,x y,1\n" if name == "list.csv" else "a.jpg x y\n"
    with pytest.raises(SourceError, match=r"the separator ' ' splits labels, but no column is known .*--label-column"):
        opened(root, text, name, separator=" ")


def test_column_called_labels_has_the_labels(root: Path) -> None:
    source = opened(root, "image,labels,age\na.jpg,cat,1\nsub/b.jpg,dog,2\n")
    assert [entry.label for entry in only_entries(source)] == [0, 1]
    assert opened(root, "image,class,labels\na.jpg,cat,x\nsub/b.jpg,dog,y\n").classes == ("cat", "dog")


def test_words_of_several_classes_are_a_warning(root: Path) -> None:
    tags = ["haze primary", "clear primary water", "clear primary"]
    paths = ["a.jpg", "sub/b.jpg", "sub/c.png"]
    rows = "".join(f"{path},{tag}\n" for path, tag in zip(paths, tags, strict=True))
    assert opened(root, f"image,tags,n\n{rows.replace(chr(10), ',1' + chr(10))}", label="tags").warnings == ()
    more = "".join(f"a{n}.jpg,{tag}\n" for n, tag in enumerate(("clear haze primary water", "haze primary water")))
    (warning,) = opened(root, f"image,label\n{rows}{more}").warnings
    assert "may be several classes: --separator ' '" in warning
    others = "".join(f"{path},{name}\n" for path, name in zip(paths, ("red car", "red bus", "blue car"), strict=True))
    assert opened(root, f"image,label\n{others}").warnings == ()


def test_first_line_of_excel_names_the_separator(root: Path) -> None:
    source = opened(root, "\ufeffsep=;\r\npath;label;note\r\na.jpg;cat;x, y\r\nsub/b.jpg;dog\r\n")
    assert entries(source) == [Entry("a.jpg", (b"a.jpg",), 0, {"note": "x, y"})]
    assert problems(source) == [Problem("row 4", "the header has 3 fields, but this row has 2")]


def test_text_file_may_name_images_without_extensions(root: Path) -> None:
    plant(root, photos(["pie/1005.jpg", "pie/1006.jpg"]))
    source = opened(root, "pie/1006\npie/1005\n", "train.txt")
    assert [entry.name for entry in only_entries(source)] == ["pie/1006.jpg", "pie/1005.jpg"]


@pytest.mark.parametrize(
    "content",
    [
        {"churros": ["churros/1"], "pie": ["pie/2"]},
        {"churros": ["churros/1.jpg"], "pie": ["pie/2.jpg"]},
        {"classes": ["churros", "pie"], "labels": {"churros/1": 0, "pie/2": 1}},
    ],
)
def test_json_of_a_public_data_set_gives_the_classes(tmp_path: Path, content: Any) -> None:
    root = plant(tmp_path / "images", photos(["churros/1.jpg", "pie/2.jpg"]))
    source = opened(root, json.dumps(content), "train.json")
    assert source.classes == ("churros", "pie")
    assert [(entry.name, entry.label) for entry in only_entries(source)] == [("churros/1.jpg", 0), ("pie/2.jpg", 1)]


def test_dataset_json_of_stylegan_gives_the_labels(root: Path) -> None:
    source = opened(root, json.dumps({"labels": [["a.jpg", 6], ["sub/b.jpg", 2]]}), "dataset.json")
    assert [(entry.name, entry.label) for entry in only_entries(source)] == [("a.jpg", 6), ("sub/b.jpg", 2)]


def test_json_columns_whose_paths_begin_with_their_names_stay_columns(tmp_path: Path) -> None:
    root = plant(tmp_path / "pairs", photos(["image/1.jpg", "depth/1.png"]))
    content = {"image": ["image/1.jpg"], "depth": ["depth/1.png"]}
    (entry,) = only_entries(opened(root, json.dumps(content), "pairs.json"))
    assert (entry.name, entry.fields) == ("image/1.jpg", {"depth": "depth/1.png"})


@pytest.mark.parametrize(("chosen", "classes"), [("first", ("x", "y")), ("last", ("cat", "dog"))])
def test_folders_of_listed_paths_may_be_the_classes(tmp_path: Path, chosen: str, classes: tuple[str, ...]) -> None:
    root = plant(tmp_path / "images", photos(["x/cat/1.jpg", "y/dog/2.jpg"]))
    listing = write(tmp_path, "train.txt", f"{root}/y/dog/2.jpg\nx/cat/1.jpg\n")
    (warning,) = open_source(root, listing).warnings
    assert "--class-folder first" in warning
    source = open_source(root, listing, reading=Reading(class_folder=chosen))
    assert (source.classes, source.warnings) == (classes, ())
    assert [entry.label for entry in only_entries(source)] == [1, 0]
    labelled = write(tmp_path, "list.csv", "path,label\nx/cat/1.jpg,a\n")
    with pytest.raises(SourceError, match="both 'label' and a folder would be the label"):
        open_source(root, labelled, reading=Reading(class_folder=chosen))


def test_id_without_a_file_is_named_beside_the_options_that_choose_columns(root: Path) -> None:
    with pytest.raises(SourceError, match=r"'7' in 'id' names no file; .*--image-column .*--label-column"):
        opened(root, "id,species\n7,cat\n")


@pytest.mark.parametrize("line", ["1 sub/b.jpg", "0\t1.0\tsub/b.jpg"])
def test_text_file_with_something_before_the_paths_is_refused(root: Path, line: str) -> None:
    with pytest.raises(SourceError, match=r"list\.txt, row 1: '.*' comes before the path: write the names"):
        opened(root, f"{line}\n", "list.txt")
    plant(root, photos(["1 sub/b.jpg"]))
    if "\t" not in line:
        assert [entry.name for entry in only_entries(opened(root, f"{line}\n", "list.txt"))] == [line]


def test_rows_of_one_image_with_different_captions_are_counted(root: Path) -> None:
    source = opened(root, "image,caption\na.jpg,one\na.jpg,two\nsub/b.jpg,three\n", "captions.csv")
    assert len(only_entries(source)) == 3
    assert source.warnings == ()
    (images,) = (line for line in source.understood if line.startswith("images:"))
    assert "1 row with the image of an earlier row: each becomes a record" in images


def test_rows_of_parquet_are_refused_with_a_way_to_convert_them(root: Path) -> None:
    with pytest.raises(SourceError, match=r"got '\.parquet'; with pandas, read_parquet and to_csv convert it"):
        opened(root, "PAR1", "rows.parquet")


@pytest.mark.parametrize(
    ("text", "field"), [("Patient ID", "Patient ID"), ("patient_id", "Patient ID"), ("w.1", "w_1_")]
)
def test_text_column_keeps_a_column_of_other_spelling_or_another_name(root: Path, text: str, field: str) -> None:
    source = opened(root, "path,label,Patient ID,w.1\na.jpg,cat,7,8\nsub/b.jpg,dog,9,10\n", text=text)
    values = [entry.fields[field] for entry in only_entries(source)]
    assert values == (["7", "9"] if field == "Patient ID" else ["8", "10"])


@pytest.mark.parametrize("extension", ["", ".jpg"])
def test_number_finds_the_one_image_whose_name_has_leading_zeros(tmp_path: Path, extension: str) -> None:
    root = plant(tmp_path / "x", dict.fromkeys(("0001.jpg", "0002.jpg", "0010.jpg", "00002.jpg"), b""))
    source = opened(root, f"image,label\n1{extension},a\n10{extension},b\n2{extension},b\n")
    found = [*source.entries()]
    assert [item.name for item in found if isinstance(item, Entry)] == ["0001.jpg", "0010.jpg"]
    assert [item.reason for item in found if isinstance(item, Problem)] == [
        f"2{extension} may be 00002.jpg or 0002.jpg: write the path below the folder"
    ]
    assert "as 7 finds 0007.jpg" in source.understood[0]


def test_several_columns_of_booleans_are_a_warning_that_names_them(root: Path) -> None:
    text = "path,cat,dog\na.jpg,True,False\nsub/b.jpg,False,True\n"
    (warning,) = opened(root, text).warnings
    assert warning.endswith("chooses another, and with several columns, cat,dog, each is a class")
    assert opened(root, text, label=("cat", "dog")).classes == ("cat", "dog")


@pytest.mark.parametrize(("label", "warns"), [("null", True), ("[]", False)])
def test_null_beside_lists_of_classes_gives_a_warning(root: Path, label: str, warns: bool) -> None:
    rows = f'{{"path": "a.jpg", "label": ["x", "y"]}}\n{{"path": "b.jpg", "label": {label}}}\n'
    warnings = opened(root, rows, "labels.jsonl").warnings
    assert [warning.startswith("1 of 2 rows have no list of classes") for warning in warnings] == [True] * warns


def test_report_counts_rows_without_a_class_beside_rows_with_several(root: Path) -> None:
    source = opened(root, "path,label\na.jpg,x|y\nb.jpg,\n", separator="|")
    assert "labels: the column 'label' (several classes in 'labels'; 1 row without a class)" in source.understood
    every = opened(root, "path,label\na.jpg,x|y\nb.jpg,x\n", separator="|")
    assert "labels: the column 'label' (several classes in 'labels')" in every.understood
