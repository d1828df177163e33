"""Each kind of source, exported in each format and converted again, gives the same records, classes and digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import ImageFormat, LMDBDataset, convert, export_store, open_store
from tests.contracts.records import stored
from tests.support.conversion import records
from tests.support.images import encoded, photo, plant
from tests.support.jpegs import draw
from tests.support.sources import FILES, SOURCES

FORMATS = ["folder", "webdataset", "parquet"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_store_survives_export_and_conversion_in_any_format(
    source: Callable[[Path], dict[str, Any]],
    format: str,  # noqa: A002
    tmp_path: Path,
) -> None:
    plant(tmp_path / "files", FILES)
    before = convert(**source(tmp_path), destination=tmp_path / "before.lmdb")
    assert before.records >= 2
    assert not before.rejected
    assert not export_store(tmp_path / "before.lmdb", tmp_path / "export", format=format).warnings
    after = convert(tmp_path / "export", tmp_path / "after.lmdb")
    with open_store(tmp_path / "before.lmdb") as one, open_store(tmp_path / "after.lmdb") as other:
        assert stored(one, range(len(one))) == stored(other, range(len(other)))  # byte for byte
        assert one.manifest.classes == other.manifest.classes
        assert {*one.manifest.file_fields} == {*other.manifest.file_fields}
        assert not [*other.events()]
    assert after.digest == before.digest


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("label", [0.5, ["dog", "cat"], "a caption"])
def test_target_survives_export_and_conversion(tmp_path: Path, format: str, label: Any) -> None:  # noqa: A002
    folder = plant(tmp_path / "images", {"1.jpg": photo(1), "2.jpg": photo(2)})
    rows = [{"path": "1.jpg", "label": label}, {"path": "2.jpg", "label": [] if isinstance(label, list) else label}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "list.txt").write_text("1.jpg\ta caption\n2.jpg\ta caption\n")
    listing = tmp_path / ("list.txt" if isinstance(label, str) else "list.jsonl")
    before = convert(folder, tmp_path / "before.lmdb", listing=listing)
    assert not export_store(tmp_path / "before.lmdb", tmp_path / "export", format=format).warnings
    after = convert(tmp_path / "export", tmp_path / "after.lmdb")
    assert (after.digest, after.warnings) == (before.digest, ())
    with LMDBDataset(tmp_path / "before.lmdb") as one, LMDBDataset(tmp_path / "after.lmdb") as other:
        assert other.target == one.target != "label"
        assert other.classes == one.classes
        assert np.array_equal(other[0][1], one[0][1])


@pytest.mark.parametrize("format", FORMATS)
def test_raw_pixels_are_exported_as_png_and_converted_back(tmp_path: Path, format: str) -> None:  # noqa: A002
    folder = plant(tmp_path / "images", {"cat/1.jpg": photo(1), "cat/gray.png": encoded(draw(24, 18, "L"), "PNG")})
    before = convert(folder, tmp_path / "before.lmdb", images=ImageFormat(raw=True, short_side=16))
    assert export_store(tmp_path / "before.lmdb", tmp_path / "export", format=format).warnings == (
        "2 records stored as pixels and written as PNG: convert --raw stores pixels again",
    )
    files = convert(tmp_path / "export", tmp_path / "files.lmdb").place
    assert {record.format for record in records(files)} == {"PNG"}
    assert convert(tmp_path / "export", tmp_path / "after.lmdb", images=ImageFormat(raw=True)).digest == before.digest
