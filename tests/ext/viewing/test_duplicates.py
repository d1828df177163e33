"""The search for duplicates that a user starts in the page, and the groups that the page lists."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Record, find_duplicates, open_store
from dbloader.errors import DamagedStoreError, OptionError
from dbloader.ext.viewing import duplicates
from dbloader.ext.viewing.duplicates import Duplicates, Leaks
from dbloader.ext.viewing.selection import Selections
from dbloader.records.field_columns import FieldColumn
from dbloader.stores.base import Store
from tests.contracts.records import write
from tests.ext.viewing.stores import CLASSES, write_records
from tests.support.images import WAIT_S, encoded, scene


@pytest.fixture
def place(tmp_path: Path) -> Path:
    images = [encoded(scene(seed), "JPEG") for seed in (0, 1, 0, 2)]
    write_records(tmp_path / "a.lmdb", [Record(f"{n}", image=image) for n, image in enumerate(images)])
    return tmp_path / "a.lmdb"


def finish(search: Duplicates | Leaks) -> None:
    """Wait for the end of a search without stopping it."""
    for thread in threading.enumerate():
        if thread.name == "duplicates":
            thread.join(WAIT_S)
    assert not search.describe()["running"]


def test_search_finds_what_the_page_lists(place: Path) -> None:
    with open_store(place) as store:
        search = Duplicates(Selections(store))
        assert search.describe() == {"running": False, "done": 0, "of": 4, "problem": ""}
        assert search.list(0, 10) is None
        search.start()
        finish(search)
        assert search.describe() == {"running": False, "done": 4, "of": 4, "problem": ""}
        found = search.list(0, 10)
        assert found is not None
        assert [(group["index"], group["others"][0]["index"]) for group in found["groups"]] == [(0, 2)]


def test_duplicates_are_the_groups_of_the_last_search_of_these_records(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    files = [encoded(scene(seed), "JPEG") for seed in (0, 1, 2, 1, 0, 1)]
    write(place, [Record(name=f"{n}", label=1 if n > 4 else None, image=file) for n, file in enumerate(files)])

    def list_found(store: Store, start: int = 0, **options: Any) -> dict[str, Any]:
        found = Duplicates(Selections(store)).list(start, 10, **options)
        assert found is not None
        return found

    with open_store(place) as store:
        assert Duplicates(Selections(store)).list(0, 10) is None
        find_duplicates(place, place)  # duplicates between two stores do not form groups within one store
        assert Duplicates(Selections(store)).list(0, 10) is None
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
        assert Duplicates(Selections(store)).list(0, 10) is None
        assert find_duplicates(place).groups == list_found(store)["total"] == 2
    write(place, [Record(image=file) for file in files[:3]], overwrite=True)
    with open_store(place) as store:
        assert Duplicates(Selections(store)).list(0, 10) is None
        find_duplicates(place)
        counts = dict.fromkeys(("total", "differing", "duplicates"), 0)
        assert list_found(store) == {**counts, "distance": 8, "groups": []}


def test_found_duplicates_can_be_queried_as_fields(place: Path) -> None:
    images = [encoded(scene(seed), "JPEG") for seed in (0, 1, 0, 1, 1, 2)]
    records = [Record(f"{n}", [0, 1, 0, 2, 1, 0][n], image) for n, image in enumerate(images)]
    write_records(place.with_name("b.lmdb"), records)
    with open_store(place.with_name("b.lmdb")) as store:
        selections = Selections(store)
        search = Duplicates(selections)
        search.join()
        with pytest.raises(OptionError, match=r"no field 'duplicates\.extra'"):
            selections.select("duplicates.extra=true")
        find_duplicates(store.place)  # in a terminal
        selections.join("marks", {"mark.drop": FieldColumn("bool", np.eye(1, 6, 4, dtype=np.uint8)[0])})
        search.join()
        revision = selections.revision
        search.join()
        assert selections.revision == revision
        assert selections.select("duplicates.extra").tolist() == [2, 3, 4]
        assert selections.select("duplicates.differ").tolist() == [1, 3]
        assert selections.select("duplicates.extra -mark.drop").tolist() == [2, 3]


def test_cancelled_search_ends_and_can_be_started_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def search_for_ever(_store: Any, _distance: int, progress: Any) -> None:
        while True:
            progress("Looking", 3, 4)
            begun.set()

    with open_store(place) as store:
        search = Duplicates(Selections(store))
        monkeypatch.setattr(duplicates, "search_store", search_for_ever)
        search.start()
        search.start()
        assert begun.wait(WAIT_S)
        assert search.describe() == {"running": True, "done": 3, "of": 4, "problem": ""}
        search.stop()
        assert search.describe() == {"running": False, "done": 3, "of": 4, "problem": ""}
        assert search.list(0, 10) is None
        monkeypatch.undo()
        search.start()
        finish(search)
        assert search.list(0, 10) is not None


def test_failed_search_describes_its_problem(place: Path) -> None:
    (place.parent / "a.lmdb.duplicates").mkdir()
    with open_store(place) as store:
        search = Duplicates(Selections(store))
        search.start()
        finish(search)
        assert "Is a directory" in search.describe()["problem"]
        search.join()
        assert search.list(0, 10) is None


def test_damaged_labels_raise_no_error_in_the_duplicates_page(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_duplicates(place)
    with open_store(place) as store:
        search = Duplicates(selections := Selections(store))
        monkeypatch.setattr(type(store), "column", damaged)
        search.join()
        assert selections.revision == 0
        monkeypatch.undo()
        search.join()
        assert selections.revision == 1


def damaged(*_: object) -> None:
    raise DamagedStoreError("chunk 0 of the labels is damaged")


def test_search_between_stores_finds_every_copy_in_each_store(tmp_path: Path) -> None:
    # In train, two records are copies of a record of val. Both leak, also if val has only one of them.
    seeds, opened = {"train": (0, 1, 0, 2), "val": (3, 0), "test": (2, 4)}, []
    with ExitStack() as stack:
        for name, some in seeds.items():
            images = [encoded(scene(seed), "JPEG", quality=60 if name == "val" else 90) for seed in some]
            write_records(tmp_path / name, [Record(f"{n}", label=n % 2, image=each) for n, each in enumerate(images)])
            opened.append(Selections(stack.enter_context(open_store(tmp_path / name))))
        search = Leaks(opened)
        assert search.describe() == {"running": False, "done": 0, "of": 8, "problem": ""}
        assert search.list(0, 10, number=0) is None
        search.start()
        finish(search)
        assert search.describe() == {"running": False, "done": 8, "of": 8, "problem": ""}
        assert [some.select("duplicates.leak").tolist() for some in opened] == [[0, 2, 3], [1], [0]]
        found = search.list(0, 10, number=0)
        assert found is not None
        assert found["leaks"] == [3, 1, 1]
        rows = [(pair["index"], pair["store"], pair["of"], pair["difference"]) for pair in found["pairs"]]
        assert rows == [(3, 2, 0, "same"), (0, 1, 1, "near"), (2, 1, 1, "near")]
        assert found["pairs"][0]["class"] == CLASSES[1]
        assert found["pairs"][0]["of_class"] == CLASSES[0]
        rest = search.list(1, 1, number=0)
        assert rest is not None
        assert rest["pairs"] == found["pairs"][1:2]


def test_search_between_stores_needs_two_stores(place: Path) -> None:
    with open_store(place) as store:
        search = Leaks([Selections(store)])
        search.start()
        finish(search)
        assert search.describe()["problem"].endswith("view two stores")
