"""Comparing two stores, and the groups of duplicates, as the page gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dbloader import Record, create_store, find_duplicates, open_store
from dbloader.errors import OptionError
from dbloader.records.record import encode
from dbloader.viewing.compare import Comparison
from dbloader.viewing.duplicates import list_groups
from dbloader.viewing.selection import Selections
from tests.contracts.records import write
from tests.support.images import encoded, photo, scene
from tests.support.lmdb_files import tamper_with_records

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.stores.base import Store


def compared(*places: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the page has once it has asked often enough."""
    comparison = Comparison([Selections(open_store(place)) for place in places])
    while not (found := comparison.look())["finished"]:
        assert found["done"] <= found["total"]
    assert comparison.look() == found
    return found


def images(*seeds: int) -> list[Record]:
    return [Record(name=f"{seed}.jpg", image=photo(seed, 40, 30), width=40, height=30) for seed in seeds]


def brute_force(one: Sequence[Record], two: Sequence[Record]) -> int:
    return sum(record.image is not None and record.image in [other.image for other in one] for record in two)


def test_images_in_both_are_found_in_lmdb_and_mongodb(tmp_path: Path, mongo_uri: str) -> None:
    one, two = images(*range(40), 3), images(*range(30, 55), 31)
    two[5].name = "3.jpg"  # 35.jpg, under another name
    one.append(Record(name="no image"))
    two.append(Record(name="none either"))
    write(tmp_path / "a.lmdb", one)
    write(f"{mongo_uri}.b", two)
    found = compared(tmp_path / "a.lmdb", f"{mongo_uri}.b")
    assert found["images"] == brute_force(one, two) == 11
    assert all(one[i].image == two[j].image for i, j in found["pairs"])
    assert len({j for _, j in found["pairs"]}) == 11
    assert (found["damaged"], found["more"]) == (0, False)


def test_arrays_of_equal_bytes_but_other_shapes_are_not_the_same_image(tmp_path: Path) -> None:
    values = [np.zeros((2, 6), "u1"), np.zeros((3, 4), "u1"), np.zeros((2, 6), "u1")]
    write(tmp_path / "a.lmdb", [Record(image=value) for value in values[:2]])
    write(tmp_path / "b.lmdb", [Record(image=value) for value in values[1:2] * 2 + values[2:]])
    assert sorted(compared(tmp_path / "a.lmdb", tmp_path / "b.lmdb")["pairs"]) == [[0, 2], [1, 0], [1, 1]]


def test_one_store_is_not_compared(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", images(0))
    with pytest.raises(OptionError, match="name two to compare them"):
        Comparison([Selections(open_store(tmp_path / "a.lmdb"))]).look()


def test_damaged_records_are_counted_and_the_others_compared(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.lmdb", images(0, 1, 2))
    tamper_with_records(tmp_path / "b.lmdb", {1: None})
    found = compared(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    assert (found["images"], found["damaged"], found["pairs"].count([1, 1])) == (2, 1, 0)


def test_classes_are_matched_by_name_and_sizes_by_the_same_edges(tmp_path: Path) -> None:
    for name, classes, labels, side in (("a", ["cat", "dog"], [0, 0, 1], 10), ("b", ["dog", "owl"], [0, 1, 1, 1], 30)):
        with create_store(tmp_path / f"{name}.lmdb") as writer:
            records = [Record(label=label, image=b"x", width=side, height=side + label) for label in labels]
            writer.write(map(encode, records))
            writer.finish(classes=classes)
    found = compared(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    assert found["classes"] == [["owl", 0, 3], ["cat", 2, 0], ["dog", 1, 1]]
    width = found["histograms"]["width"]
    assert [sum(counts) for counts in width["counts"]] == [3, 4]
    assert (width["edges"][0], width["counts"][0][0], width["counts"][1][-1]) == (10, 3, 4)


def test_an_error_of_a_store_does_not_end_the_comparison(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.lmdb", images(0))
    (tmp_path / "a.lmdb").rename(tmp_path / "moved.lmdb")
    comparison = Comparison([Selections(open_store(tmp_path / f"{name}.lmdb")) for name in "ab"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        comparison.look()
    (tmp_path / "moved.lmdb").rename(tmp_path / "a.lmdb")
    while not (found := comparison.look())["finished"]:
        pass
    assert found["pairs"] == [[0, 0]]


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
