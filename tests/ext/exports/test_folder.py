"""A store of an image folder is exported as the same folder, which converts to the same store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dbloader.conversion.convert import convert
from dbloader.conversion.report import Report
from dbloader.errors import ExportError
from dbloader.ext.collecting.write_store import write_store
from dbloader.ext.exports.export import export_store
from dbloader.records.record import Record
from dbloader.stores.open import open_store
from tests.support.conversion import documents
from tests.support.images import encoded, photo, picture, plant, plant_photos
from tests.support.values import FIELD_NAMES, TEXT, VALUES

BESIDE = {"metadata.jsonl", "classes.json"}


def record(name: str | None, label: int | None = 0, seed: int = 0, /, **fields: Any) -> Record:
    return Record(name, label, photo(seed, 20, 10), 20, 10, "JPEG", fields=fields)


def exported(tmp_path: Path, records: Sequence[Record], classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Export records, and check that the folder converts to the same documents."""
    write_store(records, tmp_path / "store.lmdb", classes=classes)
    folder = tmp_path / "folder"
    export_store(tmp_path / "store.lmdb", folder)
    assert children(tmp_path) == {"store.lmdb", "folder"}
    again(tmp_path, folder)
    return folder


def again(tmp_path: Path, folder: Path, **options: Any) -> Report:
    """Convert an export, and check that the store is the same."""
    report = convert(folder, tmp_path / "again.lmdb", **options)
    with open_store(tmp_path / "again.lmdb") as store, open_store(tmp_path / "store.lmdb") as before:
        assert store.manifest.digest == before.manifest.digest
        assert store.manifest.classes == before.manifest.classes
    assert documents(tmp_path / "again.lmdb") == documents(tmp_path / "store.lmdb")
    return report


def children(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_export_restores_an_image_folder_byte_for_byte(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 8)
    names = ["cat/a b.png", "cat/é\n😀.gif", "cat/a-b/2.jpg", "cat/a/1.jpg", "dog/%2e.bmp", "dog/-x.webp"]
    formats = ("PNG", "GIF", "JPEG", "JPEG", "BMP", "WEBP")
    plant(tmp_path / "images", {name: picture(kind) for name, kind in zip(names, formats, strict=True)})
    (tmp_path / "images/empty").mkdir()
    convert(tmp_path / "images", tmp_path / "store.lmdb")
    report = export_store(tmp_path / "store.lmdb", tmp_path / "folder")
    assert files(tmp_path / "folder") == files(tmp_path / "images")
    assert children(tmp_path / "folder") == {"cat", "dog", "empty"}
    assert (report.records, report.warnings) == (14, ())
    assert again(tmp_path, tmp_path / "folder").warnings == ("1 class has no images: 'empty'",)


@pytest.mark.parametrize(
    ("records", "classes"),
    [
        ([record("dog/1.jpg", 1), record("cat/1.jpg")], ("cat", "dog")),  # the records are in another order
        ([record("cat/a/1.jpg"), record("cat/1.jpg")], ("cat", "dog")),
        ([record("cat/1.jpg", 1), record("dog/1.jpg", 0)], ("dog", "cat")),  # classes in another order
        ([record("cat/1.jpg", 1)], ("cat", "dog")),  # the name begins with another class
        ([record("cat/1.jpg", -7), record("cat/2.jpg", None)], ()),
        ([record("cat/1.jpg"), record("cat/1.jpg", seed=1)], ("cat", "dog")),  # a name that occurs twice
        ([record("cat/1.jpg"), record(None)], ("cat", "dog")),
        ([record("cat/1.jpg", caption="a cat")], ("cat", "dog")),
        ([record("cat/1")], ("cat", "dog")),
        ([record("cat/1.jpg")], ("cat", "", "cat")),  # ambiguous names
        ([record("cat/1.jpg")], ("cat", "a/b", "..", ".x", "metadata.jsonl")),  # names that cannot be folders
        ([Record("cat/1.jpg", 0, photo(), 40, 30, "JPEG", resized_from=(80, 60))], ("cat", "dog")),
    ],
)
def test_metadata_keeps_what_file_names_lose(tmp_path: Path, records: list[Record], classes: tuple[str, ...]) -> None:
    folder = exported(tmp_path, records, classes)
    assert children(folder) >= BESIDE
    assert json.loads((folder / "classes.json").read_text()) == list(classes)


UNSAFE = [
    *("/etc/x.jpg", "../x.jpg", "cat/../../x.jpg", "..", "cat//x.jpg", "cat/", ".x/y.jpg", "a\0b.jpg", "a\\..\\x.jpg"),
    *("caf\\xe9.jpg", "c" * 300 + ".jpg", "d/" * 3000 + "x.jpg", "metadata.jsonl/x.jpg", "cat/1.jpg/x.jpg"),
]


@pytest.mark.parametrize("name", UNSAFE, ids=lambda name: repr(name[:20]))
def test_metadata_keeps_names_that_are_not_safe_paths(tmp_path: Path, name: str) -> None:
    folder = exported(tmp_path, [record("cat/1.jpg"), record(name, 1)])
    assert rows(folder)[1] == {"file_name": "dog/000000001.jpg", "label": "dog", "name": name}
    assert {*files(folder)} == {"cat/1.jpg", "dog/000000001.jpg", *BESIDE}


def test_colliding_names_get_separate_files(tmp_path: Path) -> None:
    names = ["dog/000000003.jpg", "dog/a.jpg/b.jpg", "dog/a.jpg", "dog/000000003.jpg", "000000003.jpg", "DOG/A.jpg"]
    folder = exported(tmp_path, [record(name, 1, seed) for seed, name in enumerate(names)])
    assert [(row["file_name"], row.get("name", "as it is")) for row in rows(folder)] == [
        ("dog/000000003.jpg", "as it is"),
        ("dog/a.jpg/b.jpg", "as it is"),
        ("dog/000000002.jpg", "dog/a.jpg"),
        ("000000003.jpg", "dog/000000003.jpg"),
        ("dog/000000004.jpg", "000000003.jpg"),
        ("DOG/A.jpg", "as it is"),
    ]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    names=st.lists(st.none() | TEXT.filter(bool) | st.text("./\\\0a", min_size=1, max_size=6), min_size=1, max_size=8),
    fields=st.dictionaries(
        FIELD_NAMES.filter(lambda name: name == name.strip() and name != "file_name"), VALUES, max_size=4
    ),
)
def test_all_names_and_fields_survive_export_and_conversion(
    tmp_path_factory: pytest.TempPathFactory, names: list[str | None], fields: dict[str, Any]
) -> None:
    tmp_path = tmp_path_factory.mktemp("any")
    exported(tmp_path, [record(name, seed % 2, seed, **fields) for seed, name in enumerate(names)])


def test_warning_names_the_option_that_keeps_the_digest(tmp_path: Path) -> None:
    write_store([Record("cat/1.jpg", 0, photo())], tmp_path / "facts.lmdb", classes=("cat",))
    warnings = export_store(tmp_path / "facts.lmdb", tmp_path / "facts").warnings
    what = "1 record without the size and format of their image: convert adds these, and the digest changes"
    assert warnings == (what,)
    plant(tmp_path / "images", {"cat/1.jpg": photo()[:-300], "cat/2.jpg": photo()})
    convert(tmp_path / "images", tmp_path / "store.lmdb", on_damaged="keep")
    report = export_store(tmp_path / "store.lmdb", tmp_path / "folder")
    assert report.warnings == ("1 record damaged: convert --on-damaged keep accepts them",)
    again(tmp_path, tmp_path / "folder", on_damaged="keep")
    plant(tmp_path / "images", {"cat/1.jpg": b"<svg/>"})
    convert(tmp_path / "images", tmp_path / "store.lmdb", check="none", overwrite=True)
    report = export_store(tmp_path / "store.lmdb", tmp_path / "other")
    assert report.warnings == ("1 record in no known image format: convert --check none keeps them",)
    (tmp_path / "again.lmdb").unlink()
    again(tmp_path, tmp_path / "other", check="none")


@pytest.mark.parametrize(
    ("image", "fields", "message"),
    [
        (None, {}, "record 0 .* has no image, so it has no file"),
        (np.zeros((2, 2), np.float32), {}, r"record 0 .* has an array of float32 of the shape \(2, 2\)"),
        (np.zeros((2, 0, 3), np.uint8), {}, r"uint8 of the shape \(2, 0, 3\)"),
        (photo(), {"file_name": "x"}, "record 0 .* has a field 'file_name'"),
    ],
)
def test_record_unfit_for_a_folder_is_refused(tmp_path: Path, image: Any, fields: dict[str, Any], message: str) -> None:
    write_store([Record("cat/1.jpg", 0, image, fields=fields)], tmp_path / "store.lmdb", require_images=False)
    with pytest.raises(ExportError, match=rf"{message}.*: choose another format \(--format\)$"):
        export_store(tmp_path / "store.lmdb", tmp_path / "folder")
    assert children(tmp_path) == {"store.lmdb"}


def load(folder: Path, cache: Path) -> Any:
    return datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(cache), split="train")


@pytest.mark.slow
def test_hugging_face_reads_an_export(tmp_path: Path) -> None:
    png = encoded(Image.new("RGB", (3, 2), (9, 8, 7)), "PNG")
    names = ["../a.png", "cat/b.png", "caf\\xe9.png", None]
    records = [Record(name, n % 2, png, 3, 2, "PNG", fields={"n": n, "text": "x"}) for n, name in enumerate(names)]
    found = load(exported(tmp_path, records), tmp_path / "cache")
    assert [row["label"] for row in found] == ["cat", "dog", "cat", "dog"]
    assert [(row["n"], row["text"], row["name"]) for row in found] == [
        (0, "x", "../a.png"), (1, "x", None), (2, "x", "caf\\xe9.png"), (3, "x", None),
    ]  # fmt: skip
    assert all(row["image"].getpixel((0, 0)) == (9, 8, 7) for row in found)
