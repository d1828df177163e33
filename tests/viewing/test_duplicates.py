"""The groups of duplicates, as the page gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dbloader import Record, find_duplicates, open_store
from dbloader.errors import OptionError
from dbloader.viewing.duplicates import list_groups
from tests.contracts.records import write
from tests.support.images import encoded, scene

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.stores.base import Store


def test_groups_of_duplicates_are_those_of_the_last_search_of_these_records(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    files = [encoded(scene(seed), "JPEG") for seed in (0, 1, 2, 1, 0, 1)]
    write(place, [Record(name=f"{n}", image=file) for n, file in enumerate(files)])

    def refused(store: Store) -> None:
        with pytest.raises(OptionError, match=rf"run this, and load the page again: dbloader duplicates {place}"):
            list_groups(store, 0, 10)

    with open_store(place) as store:
        refused(store)
        find_duplicates(place, place)  # duplicates between two stores are no groups of one
        refused(store)
        find_duplicates(place, distance=3)
        found = list_groups(store, 0, 10)
        assert (found["total"], found["duplicates"], found["distance"]) == (2, 3, 3)
        groups = found["groups"]
        rows = [(group["index"], group["count"], [row["index"] for row in group["others"]]) for group in groups]
        assert rows == [(0, 1, [4]), (1, 2, [3, 5])]
        assert [row["difference"] for row in groups[1]["others"]] == ["same", "same"]
        assert list_groups(store, 1, 10)["groups"] == groups[1:]
        assert list_groups(store, 2, 10)["groups"] == []
        find_duplicates(place)
        assert list_groups(store, 0, 10)["distance"] == 8
        kept = place.with_name("a.lmdb.duplicates")
        data = bytearray(kept.read_bytes())
        data[data.index(b"\n") + 1] ^= 1  # the first group
        kept.write_bytes(data)
        refused(store)
        assert find_duplicates(place).groups == list_groups(store, 0, 10)["total"] == 2
    write(place, [Record(image=file) for file in files[:3]], overwrite=True)
    with open_store(place) as store:
        refused(store)
        find_duplicates(place)
        assert list_groups(store, 0, 10) == {"total": 0, "duplicates": 0, "distance": 8, "groups": []}
