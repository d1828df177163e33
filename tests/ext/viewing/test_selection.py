"""A query finds exactly the records that match its words, in every kind of store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dbloader import Record, open_store
from dbloader.errors import OptionError
from dbloader.ext.viewing.selection import Selections
from dbloader.ext.viewing.sorting import find_position
from tests.ext.viewing.stores import random_query, some_events, some_records, write_records

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
    """Compare the results of random queries with an evaluation record by record."""
    rng = random.Random(seed)
    with open_store(place) as store:
        selections = Selections(store)
        for _ in range(queries):
            text, holds = random_query(rng, len(records), events)
            found = selections.select(text)
            expected = [index for index, record in enumerate(records) if holds(index, record)]
            assert [*found] == expected, text
            if expected and not isinstance(found, range):
                assert found.dtype == np.uint32


def test_random_queries_find_the_records_that_a_full_check_finds(place: str) -> None:
    records = some_records(COUNT, seed=1)
    events = some_events(records, seed=2)
    write_records(place, records, events)
    check(place, records, events, 100 if place.endswith("lmdb") else 40, seed=3)


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
            assert [*Selections(store).select(text)] == expected


def test_label_is_found_among_more_labels_than_the_viewer_counts(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=number * 10**12) for number in range(65_540)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert store.manifest.label_counts is None
        with pytest.raises(OptionError, match="the store has no class names"):
            Selections(store).select("class:cat")
        assert [*Selections(store).select(f"label:{7 * 10**12}")] == [7]


def test_empty_store_has_empty_selections(place: str) -> None:
    write_records(place, [], classes=())
    with open_store(place) as store:
        selections = Selections(store)
        for text in ("", "cat", "width>1", "label:none", "index:0", "damaged", "-damaged"):
            assert len(selections.select(text)) == 0
        assert find_position(selections, "", "", 0) is None


def test_search_text_is_not_matched_across_two_names(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name=name) for name in ("ab", "cd", "bc", "b", "c", "abc")], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert [*Selections(store).select("bc")] == [2, 5]
        assert [*Selections(store).select("name:a -name:c")] == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width>1 class:cats", "letter 9: no class is called 'cats'; classes are "),
        ("event:moved", "letter 1: no record has the event 'moved'; the report has no events"),
    ],
)
def test_query_for_an_unknown_value_lists_the_known_ones(selections: Selections, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        selections.select(text)


def test_position_is_of_the_first_selected_record_at_or_after_an_index(tmp_path: Path) -> None:
    labels = [0, 0, 1, None, None, 2, 1, 1]
    write_records(tmp_path / "s.lmdb", [Record(f"{at}", label) for at, label in enumerate(labels)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        assert [find_position(selections, "", "", index) for index in (0, 7, 8, 10**18)] == [0, 7, None, None]
        assert [find_position(selections, "-index:2,3", "", index) for index in (2, 4, 10**18)] == [2, 2, None]
