"""The report of the conversion, and the groups of duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import Record, convert, find_duplicates, open_store
from dbloader.stores.base import Store
from dbloader.viewing.reports import ConversionReport, list_duplicates
from tests.contracts.records import write
from tests.support.images import encoded, photo, plant, plant_kinds, scene


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


def test_duplicates_are_the_groups_of_the_last_search_of_these_records(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    files = [encoded(scene(seed), "JPEG") for seed in (0, 1, 2, 1, 0, 1)]
    write(place, [Record(name=f"{n}", label=1 if n > 4 else None, image=file) for n, file in enumerate(files)])

    def list_found(store: Store, start: int = 0, **options: Any) -> dict[str, Any]:
        found = list_duplicates(store, start, 10, **options)
        assert found is not None
        return found

    with open_store(place) as store:
        assert list_duplicates(store, 0, 10) is None
        find_duplicates(place, place)  # duplicates between two stores do not form groups within one store
        assert list_duplicates(store, 0, 10) is None
        find_duplicates(place, distance=3)
        found = list_found(store)
        assert (found["total"], found["duplicates"], found["distance"]) == (2, 3, 3)
        groups = found["groups"]
        rows = [(group["index"], group["count"], [row["index"] for row in group["others"]]) for group in groups]
        assert rows == [(0, 1, [4]), (1, 2, [3, 5])]
        assert [row["difference"] for row in groups[1]["others"]] == ["same", "same"]
        assert [groups[1]["class"], *(row["class"] for row in groups[1]["others"])] == [None, None, 1]
        assert (found["differing"], list_found(store, differing=True)["groups"]) == (1, groups[1:])
        assert list_found(store, 1)["groups"] == groups[1:]
        assert list_found(store, 2)["groups"] == []
        find_duplicates(place)
        assert list_found(store)["distance"] == 8
        kept = place.with_name("a.lmdb.duplicates")
        data = bytearray(kept.read_bytes())
        data[data.index(b"\n") + 1] ^= 1  # indices of the first group
        kept.write_bytes(data)
        assert list_duplicates(store, 0, 10) is None
        assert find_duplicates(place).groups == list_found(store)["total"] == 2
    write(place, [Record(image=file) for file in files[:3]], overwrite=True)
    with open_store(place) as store:
        assert list_duplicates(store, 0, 10) is None
        find_duplicates(place)
        counts = dict.fromkeys(("total", "differing", "duplicates"), 0)
        assert list_found(store) == {**counts, "distance": 8, "groups": []}
