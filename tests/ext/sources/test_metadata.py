"""Metadata of a folder of images: rows, mistakes, and files without a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import SourceError
from dbloader.ext.sources.open import open_source
from dbloader.sources.base import Problem, Source
from tests.support.conversion import records
from tests.support.images import plant, plant_photos
from tests.support.tallies import only_entries, warnings_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of two images."""
    return plant(tmp_path / "images", dict.fromkeys(["cat/1.jpg", "cat/2.gif", "dog/1.png", "dog/2.heic"], b""))


def opened(root: Path, name: str, content: str | list[Any]) -> Source:
    text = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
    (root / name).write_text(text, encoding="utf-8")
    return open_source(root)


def found(source: Source) -> list[tuple[str, int | None, dict[str, Any]]]:
    return [(item.name, item.label, item.fields) for item in only_entries(source)]


ALL = ["dog/2.heic", "cat/1.jpg", "dog/1.png", "cat/2.gif"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_metadata_is_found_and_its_columns_become_fields(root: Path, kind: str) -> None:
    rows = [{"file_name": f"./{name}", "label": "ab"[n % 2], "caption": f"number {n}"} for n, name in enumerate(ALL)]
    content: Any = rows
    if kind == "csv":
        content = "\n".join(["file_name,label,caption", *(",".join(row.values()) for row in rows)])
    source = opened(root, f"metadata.{kind}", content)
    assert source.classes == ("a", "b")
    assert found(source) == [(name, n % 2, {"caption": f"number {n}"}) for n, name in enumerate(ALL)]
    assert source.warnings == ()


def test_rows_of_boxes_in_metadata_become_one_record(root: Path) -> None:
    rows = "cat/1.jpg,1,2,9,9,a\ncat/1.jpg,0,1,4,5,b\n"
    source = opened(root, "metadata.csv", f"file_name,x1,y1,x2,y2,label\n{rows}")
    (entry,) = only_entries(source)
    assert entry.fields["boxes"].tolist() == [[1, 2, 9, 9], [0, 1, 4, 5]]
    assert (source.classes, entry.fields["box_labels"].tolist()) == (("a", "b"), [0, 1])
    source = opened(root, "metadata.csv", "file_name,x1,y1,x2,y2\ncat/1.jpg,1,2,9,9\n")  # boxes need a class
    assert [entry.fields for entry in only_entries(source)] == [{"x1": 1, "y1": 2, "x2": 9, "y2": 9}]


def test_folders_are_classes_if_there_is_no_label_column(root: Path) -> None:
    source = opened(root, "metadata.jsonl", [{"file_name": name, "caption": name} for name in ALL])
    assert source.classes == ("cat", "dog")
    assert [(name, label) for name, label, _ in found(source)] == [*zip(ALL, [1, 0, 1, 0], strict=True)]
    assert source.warnings == ()
    for name, split in (("cat", "train"), ("dog", "test")):
        (root / name).rename(root / split)
    rows = [{"file_name": f"{split}/1.{kind}"} for split, kind in (("train", "jpg"), ("test", "png"))]
    warning, _ = opened(root, "metadata.jsonl", rows).warnings
    assert warning.startswith("the classes are called 'test', 'train': these look like splits")


@pytest.mark.parametrize("names", [["1.jpg", "cat/1.jpg"], ["images/1.jpg", "images/2.jpg"]])
def test_files_without_class_folders_have_no_label(tmp_path: Path, names: list[str]) -> None:
    root = plant(tmp_path, dict.fromkeys(names, b""))
    source = opened(root, "metadata.jsonl", [{"file_name": name} for name in names])
    assert found(source) == [(name, None, {}) for name in names]
    assert source.classes == ()
    [warning] = source.warnings
    assert warning.startswith("no row has a label: the column of labels is one of 'label', 'class', 'target', and ")


def test_label_column_of_metadata_takes_precedence_over_folders(root: Path) -> None:
    source = opened(root, "metadata.jsonl", [{"file_name": name, "label": None} for name in ALL])
    assert [label for _, label, _ in found(source)] == [None] * 4
    source = opened(root, "metadata.jsonl", [{"file_name": name, "class": 7, "path": "p"} for name in ALL])
    assert [(label, fields) for _, label, fields in found(source)] == [(7, {"path": "p"})] * 4
    source = opened(root, "metadata.jsonl", [{"file_name": name, "label": 5, "class": "x"} for name in ALL])
    assert [(label, fields) for _, label, fields in found(source)] == [(5, {"class": "x"})] * 4


def test_classes_have_the_order_of_classes_json(root: Path) -> None:
    (root / "classes.json").write_text('["dog", "emu", "cat"]')
    rows = [{"file_name": name, "label": label} for name, label in zip(ALL, ["dog", "cat", 1, None], strict=True)]
    source = opened(root, "metadata.jsonl", rows)
    assert source.classes == ("dog", "emu", "cat")
    assert [label for _, label, _ in found(source)] == [0, 2, 1, None]
    rows.append({"file_name": "cat/1.jpg", "label": "cow"})
    with pytest.raises(SourceError, match=r"the label of row 5 is 'cow', which is not in classes\.json: add it$"):
        opened(root, "metadata.jsonl", rows)


@pytest.mark.parametrize("content", ['{"a": 1}', '["\\ud800"]', "["])
def test_wrong_classes_json_is_an_error(root: Path, content: str) -> None:
    (root / "classes.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(SourceError, match=r"classes\.json: .*; mend it, or move it away$"):
        opened(root, "metadata.jsonl", [{"file_name": "cat/1.jpg"}])


def test_images_without_a_row_are_counted(root: Path) -> None:
    plant(root, dict.fromkeys(["cat/.hidden.jpg", ".git/1.jpg", "cat/notes.txt"], b""))
    source = opened(root, "metadata.jsonl", [{"file_name": name, "label": 0} for name in ("cat//1.jpg", "gone.jpg")])
    assert source.warnings == ("3 images are in the folder, but in no row of the metadata: left out",)


@pytest.mark.parametrize("name", ["metadata.csv", "cat/metadata.jsonl", "metadata.parquet"])
def test_unused_metadata_file_is_named(root: Path, name: str) -> None:
    source = opened(root, name, "id,caption\n1,x\n")
    assert len(found(source)) == 4
    [warning] = warnings_of(source)
    assert warning.startswith(f"{name} is not used: metadata must be a metadata.csv or metadata.jsonl directly in ")


def test_metadata_file_below_the_metadata_is_named(root: Path) -> None:
    plant(root, {"cat/metadata.csv": b"file_name,label\n1.jpg,3\n"})
    source = opened(root, "metadata.jsonl", [{"file_name": name, "label": 1} for name in ALL])
    [warning] = warnings_of(source)
    assert warning.startswith("cat/metadata.csv is not used: metadata must be ")


def test_two_metadata_files_are_an_error(root: Path) -> None:
    (root / "metadata.csv").write_text("file_name\n1.jpg\n")
    with pytest.raises(SourceError, match=r"metadata\.csv and metadata\.jsonl both name the images: move one away$"):
        opened(root, "metadata.jsonl", [{"file_name": "cat/1.jpg"}])


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.jpg", "cat/../../secret.jpg", ".."])
def test_metadata_paths_cannot_leave_the_folder(root: Path, path: str) -> None:
    source = opened(root, "metadata.jsonl", [{"file_name": "cat/1.jpg", "label": 0}, {"file_name": path, "label": 0}])
    first, problem = source.entries()
    assert first.name == "cat/1.jpg"
    assert isinstance(problem, Problem)
    assert problem.name == "row 2"
    assert problem.reason.startswith("its path leaves the folder: ")


def test_tar_beside_metadata_is_refused_with_a_way(tmp_path: Path) -> None:
    plant(tmp_path / "x", {"metadata.csv": b"file_name\n1.jpg\n", "train.tar": bytes(10240)})
    with pytest.raises(SourceError, match=r"x: beside metadata.csv, convert reads no tars: extract them first$"):
        open_source(tmp_path / "x")


def test_row_without_a_file_name_is_a_problem(root: Path) -> None:
    source = opened(root, "metadata.jsonl", [{"file_name": "cat/1.jpg"}, {"caption": "x"}, {"file_name": None}])
    reason = "it has no path in a column called file_name"
    assert [*source.entries()][1:] == [Problem("row 2", reason), Problem("row 3", reason)]


@pytest.mark.slow
def test_hugging_face_reads_the_same_images_and_values(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 6)
    rows = [{"file_name": f"{('cat', 'dog')[n % 2]}/{n:04}.jpg", "label": n % 3, "text": f"t{n}"} for n in (3, 0, 4, 1)]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = convert(root, tmp_path / "out.lmdb")
    theirs = datasets.load_dataset("imagefolder", data_dir=str(root), cache_dir=str(tmp_path / "cache"), split="train")
    theirs = theirs.cast_column("image", datasets.Image(decode=False))
    ours = records(report.place)
    labels_and_texts = [(row["label"], {"text": row["text"]}) for row in theirs]
    assert [(record.label, record.fields) for record in ours] == labels_and_texts
    assert [record.name for record in ours] == [row["image"]["path"].partition("images/")[2] for row in theirs]
    assert report.warnings == ("2 images are in the folder, but in no row of the metadata: left out",)
