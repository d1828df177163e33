"""mlcroissant, the reference reader, validates the description of an exported folder, and reads its records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlcroissant
import pytest

from dbloader.conversion.convert import convert
from dbloader.conversion.write_store import write_store
from dbloader.errors import OptionError
from dbloader.exports.export import export_store
from dbloader.records.record import Record
from tests.support.conversion import verified
from tests.support.images import picture, plant_photos

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")  # in mlcroissant


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a folder whose description has no error."""
    dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
    assert not dataset.metadata.issues.errors
    return [
        {name.removeprefix("records/"): value for name, value in record.items()}
        for record in dataset.records(record_set="records")
    ]


@pytest.mark.slow
def test_a_plain_folder_is_read_with_its_labels(tmp_path: Path) -> None:
    convert(plant_photos(tmp_path / "images", 6), tmp_path / "store.lmdb")
    export_store(tmp_path / "store.lmdb", tmp_path / "folder", croissant=True)
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"cat", "dog", "croissant.json"}
    found = read(tmp_path / "folder")
    assert [record["label"] for record in found] == [b"cat"] * 3 + [b"dog"] * 3
    assert [record["image"].size for record in found] == [(40, 30)] * 6
    again = convert(tmp_path / "folder", tmp_path / "again.lmdb")
    assert (again.digest, again.skipped) == (verified(tmp_path / "store.lmdb"), {".json": 1})


@pytest.mark.slow
def test_a_folder_with_metadata_is_read_with_its_columns(tmp_path: Path) -> None:
    records = [
        Record(
            name,
            number % 2,
            picture("PNG", number),
            24,
            18,
            "PNG",
            fields={"n": number, "x": number / 2, "mixed": mixed},
        )
        for number, (name, mixed) in enumerate(
            [("b.png", "a"), ("cat/a.png", 1), ("croissant.json", [1]), ("../c", None)]
        )
    ]
    write_store(records, tmp_path / "store.lmdb", classes=("dog", "cat"))
    export_store(tmp_path / "store.lmdb", tmp_path / "folder", croissant=True)
    found = read(tmp_path / "folder")
    assert [(r["file_name"], r["label"], r["n"], r["x"]) for r in sorted(found, key=lambda record: record["n"])] == [
        (b"b.png", b"dog", 0, 0.0),
        (b"cat/a.png", b"cat", 1, 0.5),
        (b"croissant.json.png", b"dog", 2, 1.0),
        (b"cat/000000003.png", b"cat", 3, 1.5),
    ]
    assert [record["image"].size for record in found] == [(24, 18)] * 4
    assert len({record["image"].tobytes() for record in found}) == 4
    assert json.loads((tmp_path / "folder" / "croissant.json").read_text())["name"] == "folder"
    assert convert(tmp_path / "folder", tmp_path / "again.lmdb").digest == verified(tmp_path / "store.lmdb")


def test_other_formats_are_not_described(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"croissant \(--croissant\) describes a folder of images: leave it out with"):
        export_store(tmp_path / "store.lmdb", tmp_path / "folder", format="webdataset", croissant=True)
