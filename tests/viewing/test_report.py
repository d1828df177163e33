"""The report of the conversion."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import convert, open_store
from dbloader.viewing.report import read_report
from tests.support.images import photo, plant, plant_kinds


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    root = folder / "images"
    root.mkdir()
    plant_kinds(root, "photo", "no end marker", "half", "text", "empty")
    plant(root, {f"cat/cut {n:03}.jpg": photo(n)[:-2] for n in range(30)})
    convert(root, folder / "a.lmdb", on_damaged="keep")
    return folder / "a.lmdb"


def test_report_is_filtered_counted_and_paged(reported: Path) -> None:
    with open_store(reported) as store:
        whole = read_report(store)
        assert whole["counts"] == {"repaired": 31, "damaged": 1, "rejected": 2}
        assert (whole["total"], len(whole["rows"])) == (34, 34)
        for row in whole["rows"]:
            assert (row["index"] is None) == (row["event"] == "rejected")
            assert row["index"] is None or store[row["index"]].name == row["name"]
        rejected = read_report(store, "rejected")
        assert [row["event"] for row in rejected["rows"]] == ["rejected"] * 2
        assert rejected["counts"] == whole["counts"]
        assert [row["name"] for row in read_report(store, text="CUT 02")["rows"]] == [
            f"cat/cut 02{n}.jpg" for n in range(10)
        ]
        assert read_report(store, text="is empty")["total"] == 1
        paged = [row for start in range(0, 34, 10) for row in read_report(store, start=start, count=10)["rows"]]
        assert paged == whole["rows"]
        assert read_report(store, start=99)["rows"] == []
        assert read_report(store, "none")["total"] == 0
