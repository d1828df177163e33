"""A query finds exactly the records for which its words hold, in every store."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError, OptionError
from dbloader.stores.lmdb.keys import record_key
from dbloader.viewing.columns import Recent
from dbloader.viewing.selection import Selections
from tests.contracts.records import WAIT_S
from tests.support.hostile import Tampering
from tests.viewing.stores import random_query, some_events, some_records, write_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 9_000  # three chunks of columns


@pytest.fixture(params=["lmdb", "mongodb"])
def place(request: pytest.FixtureRequest, tmp_path: Path, mongo_uri: str) -> str:
    return str(tmp_path / "s.lmdb") if request.param == "lmdb" else mongo_uri


@pytest.fixture
def selections(tmp_path: Path) -> Iterator[Selections]:
    """The selections of a small LMDB store."""
    write_records(tmp_path / "small.lmdb", some_records(300, seed=5))
    with open_store(tmp_path / "small.lmdb") as store:
        yield Selections(store)


def check(place: str, records: list[Record], events: list[dict[str, str]], queries: int, seed: int) -> None:
    """Compare random queries with their words evaluated record by record."""
    rng = random.Random(seed)
    with open_store(place) as store:
        selections = Selections(store, seconds=60)
        for _ in range(queries):
            text, holds = random_query(rng, len(records), events)
            found = selections.select(text)
            expected = [index for index, record in enumerate(records) if holds(index, record)]
            assert [*found.indices] == expected, text
            assert found.first is None
            if expected and not isinstance(found.indices, range):
                assert found.indices.dtype == np.uint32


def test_random_queries_find_what_a_look_at_each_record_finds(place: str) -> None:
    records = some_records(COUNT, seed=1)
    events = some_events(records, seed=2)
    write_records(place, records, events)
    check(place, records, events, 100 if place.endswith("lmdb") else 40, seed=3)


def test_damaged_records_have_no_format_and_the_others_are_found(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(image=b"image", format=name) for name in ("JPEG", "PNG") * 20])
    store = Tampering(tmp_path / "s.lmdb")
    store.put(b"records", record_key(3), None)
    store.put(b"records", record_key(5), b"")
    store.put(b"records", record_key(7), b"\xff" * 99)
    store.close()
    with open_store(tmp_path / "s.lmdb") as damaged:
        assert [*Selections(damaged).select("format:png").indices] == [1, *range(9, 40, 2)]


@pytest.mark.parametrize("labels", [(-(2**15), 2**15 - 1), (-(10**17), 10**17), (70_000, 70_000)])
def test_labels_of_any_size_are_told_from_no_label(tmp_path: Path, labels: tuple[int, int]) -> None:
    records = [*some_records(300, seed=4, labels=labels), *(Record(label=label) for label in labels)]
    write_records(tmp_path / "s.lmdb", records, classes=())
    texts = ["label:none", "-label:none", *(f"label:{label}" for label in (labels[0], labels[1], 0))]
    with open_store(tmp_path / "s.lmdb") as store:
        for text in texts:
            wanted = text.partition(":")[2]
            expected = [
                index
                for index, record in enumerate(records)
                if (str(record.label) == wanted.replace("none", "None")) != text.startswith("-")
            ]
            assert [*Selections(store).select(text).indices] == expected


def test_a_store_of_more_kinds_of_labels_than_are_counted(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=number * 10**12) for number in range(65_540)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert store.manifest.label_counts is None
        assert [*Selections(store).select(f"label:{7 * 10**12}").indices] == [7]


def test_an_empty_store_and_an_empty_selection(place: str) -> None:
    write_records(place, [], classes=())
    with open_store(place) as store:
        selections = Selections(store)
        for text in ("", "cat", "width>1", "label:none", "index:0", "damaged", "-damaged"):
            assert len(selections.select(text).indices) == 0
        assert selections.position("", 0) is None


def test_a_name_is_not_found_across_the_end_of_another(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name=name) for name in ("ab", "cd", "bc", "b", "c", "abc")], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert [*Selections(store).select("bc").indices] == [2, 5]
        assert [*Selections(store).select("name:a -name:c").indices] == [0]


def test_a_selection_by_format_says_how_far_it_has_looked(place: str) -> None:
    records = some_records(COUNT, seed=6)
    write_records(place, records)
    with open_store(place) as store:
        selections = Selections(store, seconds=0)  # which is over after the first records
        wide = [index for index, record in enumerate(records) if (record.width or 0) > 100]
        indices, first = selections.select("format:png width>100")
        assert first == wide[4096]
        assert [*indices] == [index for index in wide if records[index].format == "PNG" and index < first]
        assert selections.select("format:png index:0-3000").first is None


def test_a_format_of_all_records_needs_no_reading(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(format="PNG", image=b"1")] * 5_000, classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store, seconds=0)
        assert selections.select("format:PNG") == (range(5_000), None)
        assert len(selections.select("-format:PNG").indices) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width>1 class:cats", "letter 9: no class is called 'cats'; classes are 'cat', …"),
        ("format:gif", r"letter 1: no record has the format 'gif'; formats are JPEG, PNG, WEBP"),
        ("event:moved", "letter 1: no record has the event 'moved'; the report has none"),
    ],
)
def test_what_the_store_does_not_have_is_an_error_that_says_what_it_has(
    selections: Selections, text: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        selections.select(text)


def test_a_class_of_a_store_without_class_names(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=3)], classes=())
    with open_store(tmp_path / "s.lmdb") as store, pytest.raises(OptionError, match="ask for a label, such as label:3"):
        Selections(store).select("class:cat")


def test_positions_and_runs_of_classes(tmp_path: Path) -> None:
    labels = [0, 0, 1, None, None, 2, 1, 1]
    write_records(
        tmp_path / "s.lmdb", [Record(label=label, name=f"{at}") for at, label in enumerate(labels)], classes=()
    )
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        assert [selections.position("", index) for index in (0, 7, 8, 10**18)] == [0, 7, None, None]
        assert [selections.position("-index:2,3", index) for index in (2, 4, 10**18)] == [2, 2, None]
        assert [selections.neighbor("", at, forward=True) for at in range(8)] == [2, 2, 3, 5, 5, 6, None, None]
        assert [selections.neighbor("", at, forward=False) for at in range(8)] == [None, None, 0, 2, 2, 3, 5, 5]
        some = "-index:2,5"  # labels 0 0 - - 1 1
        assert [selections.neighbor(some, at, forward=True) for at in range(6)] == [2, 2, 4, 4, None, None]
        assert [selections.neighbor(some, at, forward=False) for at in range(6)] == [None, None, 0, 0, 2, 2]
        with pytest.raises(OptionError, match="no position 6 in the selection, which has 6 records"):
            selections.neighbor(some, 6, forward=True)


def test_equal_queries_at_the_same_time_do_the_work_once() -> None:
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def make() -> str:
        calls.append(1)
        begun.set()
        assert go_on.wait(WAIT_S)
        return "made"

    recent = Recent[str](100, len)
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(recent.get, "key", make)
        assert begun.wait(WAIT_S)
        second = executor.submit(recent.get, "key", make)
        go_on.set()
        assert (first.result(WAIT_S), second.result(WAIT_S)) == ("made", "made")
    assert len(calls) == 1


def test_results_are_kept_up_to_some_bytes_and_errors_are_not() -> None:
    recent = Recent[str](10, len)
    recent.get("a", lambda: "aaaa")
    recent.get("b", lambda: "bbbb")
    recent.get("a", lambda: "not made again")
    recent.get("c", lambda: "cccc")  # b was not asked for the longest time
    assert recent.get("a", lambda: "again") == "aaaa"
    assert recent.get("b", lambda: "again") == "again"
    with pytest.raises(ZeroDivisionError):
        recent.get("error", lambda: str(1 // 0))
    assert recent.get("error", lambda: "fine") == "fine"
    assert recent.get("large", lambda: "x" * 50) == "x" * 50


def test_many_threads_get_the_same_selections(selections: Selections) -> None:
    texts = [f"width>{number}" for number in range(0, 300, 20)]
    with ThreadPoolExecutor(8) as executor:
        found = [*executor.map(lambda text: [*selections.select(text).indices], texts * 4)]
    assert found[: len(texts)] * 4 == found


def test_columns_that_the_manifest_does_not_fit_are_damage(selections: Selections) -> None:
    manifest = selections.store.manifest
    object.__setattr__(manifest, "width", (0, 9))
    with pytest.raises(DamagedStoreError, match="its manifest does not know a width of the records 0 and following"):
        selections.select("width>1")
