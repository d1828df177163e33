"""Each kind of source, exported in each format and converted again, gives the same records, classes and digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, export_store, open_store
from tests.contracts.records import stored
from tests.support.images import plant
from tests.support.sources import FILES, SOURCES


@pytest.mark.parametrize("format", ["folder", "webdataset", "parquet"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_store_survives_any_export(
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
