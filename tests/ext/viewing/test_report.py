"""The report of the conversion."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, open_store
from dbloader.ext.viewing.selection import ConversionReport
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
        report = ConversionReport(store)
        whole = report.read()
        assert whole["counts"] == {"repaired": 31, "damaged": 1, "rejected": 2}
        assert (whole["total"], len(whole["rows"])) == (34, 34)
        for row in whole["rows"]:
            assert (row["index"] is None) == (row["event"] == "rejected")
            assert row["index"] is None or store[row["index"]].name == row["name"]
        rejected = report.read("rejected")
        assert [row["event"] for row in rejected["rows"]] == ["rejected"] * 2
        assert rejected["counts"] == whole["counts"]
        assert [row["name"] for row in report.read(text="CUT 02")["rows"]] == [f"cat/cut 02{n}.jpg" for n in range(10)]
        assert report.read(text="is empty")["total"] == 1
        paged = [row for start in range(0, 34, 10) for row in report.read(start=start, count=10)["rows"]]
        assert paged == whole["rows"]
        assert report.read(start=99)["rows"] == []
        assert report.read("none")["total"] == 0


def test_lines_of_a_text_are_counted_once(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(reported) as store:
        events, read = store.events, 0

        def counted_events() -> Iterator[dict[str, Any]]:
            nonlocal read
            for line in events():
                read += 1
                yield line

        monkeypatch.setattr(store, "events", counted_events)
        report = ConversionReport(store)
        first = report.read(text="cut", count=5)
        read = 0
        assert report.read(text="CUT", count=5) == first
        last_row = 1 + [*map(itemgetter("name"), events())].index(first["rows"][-1]["name"])
        assert read == last_row < first["total"] == 30
        read = 0
        assert report.read(text="cut", start=30)["rows"] == report.read("rejected", "cut")["rows"] == []
        assert read == 0
