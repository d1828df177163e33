"""A query finds exactly the records that match its words, in every kind of store."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError, OptionError
from dbloader.viewing.selection import Selections
from tests.support.lmdb_files import tamper_with_records
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


def test_random_queries_find_the_records_that_match_one_by_one(place: str) -> None:
    records = some_records(COUNT, seed=1)
    events = some_events(records, seed=2)
    write_records(place, records, events)
    check(place, records, events, 100 if place.endswith("lmdb") else 40, seed=3)


def test_damaged_records_have_no_format(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(image=b"image", format=name) for name in ("JPEG", "PNG") * 20])
    tamper_with_records(tmp_path / "s.lmdb", {3: None, 5: b"", 7: b"\xff" * 99})
    with open_store(tmp_path / "s.lmdb") as damaged:
        assert [*Selections(damaged).select("format:png").indices] == [1, *range(9, 40, 2)]


@pytest.mark.parametrize("labels", [(-(2**15), 2**15 - 1), (-(10**17), 10**17), (70_000, 70_000)])
def test_labels_of_any_size_differ_from_no_label(tmp_path: Path, labels: tuple[int, int]) -> None:
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


def test_label_is_found_among_more_labels_than_are_counted(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=number * 10**12) for number in range(65_540)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert store.manifest.label_counts is None
        with pytest.raises(OptionError, match="ask for a label, such as label:3"):
            Selections(store).select("class:cat")
        assert [*Selections(store).select(f"label:{7 * 10**12}").indices] == [7]


def test_empty_store_has_empty_selections(place: str) -> None:
    write_records(place, [], classes=())
    with open_store(place) as store:
        selections = Selections(store)
        for text in ("", "cat", "width>1", "label:none", "index:0", "damaged", "-damaged"):
            assert len(selections.select(text).indices) == 0
        assert selections.position("", 0) is None


def test_part_of_a_name_is_not_found_across_two_names(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name=name) for name in ("ab", "cd", "bc", "b", "c", "abc")], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert [*Selections(store).select("bc").indices] == [2, 5]
        assert [*Selections(store).select("name:a -name:c").indices] == [0]


def test_query_for_a_format_returns_how_many_records_it_searched(place: str) -> None:
    records = some_records(COUNT, seed=6)
    write_records(place, records)
    with open_store(place) as store:
        selections = Selections(store, seconds=0)  # which is over after the first records
        wide = [index for index, record in enumerate(records) if (record.width or 0) > 100]
        indices, first = selections.select("format:png width>100")
        assert first == wide[4096]
        assert [*indices] == [index for index in wide if records[index].format == "PNG" and index < first]
        assert selections.select("format:png index:0-3000").first is None


def test_format_of_all_records_needs_no_reading(tmp_path: Path) -> None:
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
def test_query_for_what_the_store_lacks_is_refused_with_what_it_has(
    selections: Selections, text: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        selections.select(text)


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


def test_column_that_contradicts_the_manifest_is_damage(selections: Selections) -> None:
    manifest = selections.store.manifest
    object.__setattr__(manifest, "width", (0, 9))
    with pytest.raises(DamagedStoreError, match="its manifest does not know a width of the records 0 and following"):
        selections.select("width>1")
