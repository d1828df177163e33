"""Rows, counts and histograms of a selection equal a computation record by record."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record, open_store
from dbloader.errors import OptionError
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.selection import Selections
from dbloader.stores.lmdb.keys import event_key
from tests.ext.viewing.stores import random_query, some_events, some_records, write_records
from tests.support.lmdb_files import tamper
from tests.support.stores import store_records

SIZES: dict[str, Callable[[Record], Any]] = {
    "width": lambda record: record.width,
    "height": lambda record: record.height,
    "aspect": lambda record: record.width / record.height if record.width and record.height else None,
    "bytes": lambda record: len(record.image or b"") or None,
}


def histograms(tmp_path: Path, records: list[Record]) -> dict[str, Any]:
    """Return the histograms of a new store, after comparing each with the records and with a query for each bin."""
    place = tmp_path / "sizes.lmdb"
    place.unlink(missing_ok=True)
    write_records(place, records, classes=())
    with open_store(place) as store:
        selections = Selections(store)
        found: dict[str, Any] = {what: summary.field(selections, "", what) for what in SIZES}
        for what, value_of in SIZES.items():
            check_histogram(found[what], [value_of(record) for record in records])
            edges, counts = found[what]["edges"], found[what]["counts"]
            for number in range(0, len(counts), 9):
                low = f"{what}>={edges[number]!r}" if number else ""  # the query that a click on a bar makes
                high = f"{what}<{edges[number + 1]!r}" if number < len(counts) - 1 else f"{what}>0"
                assert len(selections.select(f"{low} {high}")) == counts[number]
    return found


def check_histogram(found: dict[str, Any], values: list[Any]) -> None:
    known, edges = [value for value in values if value is not None], found["edges"]
    assert found["ends"] == ([min(known), max(known)] if known else None)
    assert len(found["counts"]) == max(0, len(edges) - 1) <= 45
    assert edges[:-1] == sorted(set(edges[:-1]))
    assert [edges[:1], edges[-1:]] == ([[min(known)], [max(known)]] if known else [[], []])
    inner = pairwise([*edges[:-1], math.inf]) if known else []
    expected = [sum(low <= value < high for value in known) for low, high in inner]
    assert found["counts"] == expected
    assert sum(expected) == len(known)
    assert not expected or (expected[0] and expected[-1])


def check_bins(found: dict[str, Any], values: list[Any], everything: dict[str, Any]) -> None:
    """Check the histogram of a search, which has the same bins as the histogram of all records."""
    known, edges = [value for value in values if value is not None], found["edges"]
    assert (edges, found["all"]) == (everything["edges"], everything["counts"])
    assert found["ends"] == ([min(known), max(known)] if known else None)
    bins = pairwise([*edges[:-1], math.inf])
    assert found["counts"] == [sum(low <= value < high for value in known) for low, high in bins]


def test_counts_equal_counting_record_by_record(tmp_path: Path) -> None:
    records = some_records(2_000, seed=1)
    events = some_events(records, seed=2)
    write_records(tmp_path / "s.lmdb", records, events)
    rng = random.Random(3)
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        for text, holds in [("", lambda *_: True), *(random_query(rng, len(records), events) for _ in range(60))]:
            chosen = [record for index, record in enumerate(records) if holds(index, record)]
            found = json.loads(json.dumps(summary.count(selections, text), allow_nan=False))
            assert found["count"] == len(chosen) == len(selections.select(text))
            assert dict(found["labels"]) == Counter(record.label for record in chosen)
            for event, count in found["events"].items():
                names = {line["name"] for line in events if line["event"] == event}
                assert count == sum(record.name in names for record in chosen)
            for what, value_of in SIZES.items():
                values, found = [value_of(record) for record in chosen], summary.field(selections, text, what)
                if len(chosen) == len(records):
                    check_histogram(found, values)
                    assert found["all"] is None
                else:
                    check_bins(found, values, summary.field(selections, "", what))
        everything = summary.count(selections, "")
        assert everything["formats"] == Counter(record.format for record in records if record.format)
        assert {"damaged", "repaired", "rejected", "odd"} == everything["events"].keys()
        assert summary.count(selections, "index:0-9")["formats"] is None


def test_rows_are_the_selected_records(tmp_path: Path) -> None:
    records = some_records(9_000, seed=4)
    kept = {7, 8_000}
    lines = [{"name": "once", "event": "damaged", "reason": "so"}, {"name": "twice", "event": "repaired", "reason": ""}]
    for at, name in ((7, "once"), (8_000, "once"), (9, "twice")):
        records[at] = replace(records[at], name=name)
    write_records(tmp_path / "s.lmdb", records, lines)
    rng = random.Random(5)
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        for text, holds in [("", lambda *_: True), *(random_query(rng, len(records), []) for _ in range(20))]:
            if "odd" in text:
                continue
            expected: list[Any] = [
                [at, one.name, one.label, one.width, one.height, len(one.image or b"") or None, {}, at in kept]
                for at, one in enumerate(records)
                if holds(at, one)
            ]
            for start in (0, 3, max(0, len(expected) - 5), len(expected), 10**12):
                found = json.loads(json.dumps(summary.rows(selections, text, start, 500)))
                assert found == {"start": start, "rows": expected[start : start + 500]}
        for start, count in ((-1, 5), (0, 501), (0, -1)):
            with pytest.raises(OptionError, match="count from 0 to 500"):
                summary.rows(selections, "", start, count)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [(None, None)] * 5,
        [(1, 1)],
        [(100, 100)] * 3 + [(None, None)],
        [(57, 100)] * 3,
        [(number, 50) for number in range(1, 35)],
        [(number, 2**32 - 1) for number in range(1, 3_000)],
        [(300 + number % 200, 400) for number in range(3_000)] + [(60_000, 1), (1, 60_000)],
        [(2**32 - 1, 1), (1, 2**32 - 1), (7, 9)],
        [(width, 10**6) for width in (3, 5, 5, 6, 7)],
    ],
)
def test_histogram_counts_every_value(tmp_path: Path, sizes: list[tuple[Any, Any]]) -> None:
    histograms(tmp_path, [Record(width=width, height=height) for width, height in sizes])


def test_bin_edges_are_round_and_fit_most_values(tmp_path: Path) -> None:
    rng = random.Random(6)
    records = [Record(width=rng.randint(300, 500), height=400, image=bytes(rng.randint(1, 3000))) for _ in range(3_000)]
    records += [Record(width=60_000, height=20, image=b"1")] * 5
    found = histograms(tmp_path, records)
    assert found["width"]["edges"][:3] == [300, 310, 320] or found["width"]["edges"][:3] == [300, 305, 310]
    assert found["width"]["edges"][-1] == 60_000
    assert sum(count > 0 for count in found["width"]["counts"]) > 15
    assert {10, 100, 1000} & {*found["bytes"]["edges"]}


def test_damaged_report_does_not_affect_other_counts(tmp_path: Path) -> None:
    records = some_records(20, seed=1)
    write_records(tmp_path / "s.lmdb", records, some_events(records, seed=2))
    tamper(tmp_path / "s.lmdb", b"meta", {event_key(1): b"\xff"})
    with open_store(tmp_path / "s.lmdb") as store:
        found = summary.count(Selections(store), "")
        assert (found["count"], found["events"]) == (20, {})
        assert "event 1 of its report is damaged" in found["problem"]


def test_more_than_65536_labels_are_not_listed(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=number) for number in range(65_540)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        found = summary.count(Selections(store), "label:7")
        assert (found["count"], found["labels"]) == (1, [])


def test_formats_are_counted_if_all_records_have_the_same_format(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name=f"{n}", format="PNG") for n in range(20)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        assert summary.count(Selections(store), "index:0-4")["formats"] == {"PNG": 5}
    write_records(tmp_path / "t.lmdb", [Record(format="PNG"), Record()], classes=())
    with open_store(tmp_path / "t.lmdb") as store:
        # this is known only after a record is read
        assert summary.count(Selections(store), "index:0")["formats"] is None


def test_labels_can_be_counted_among_the_records_of_another_query(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(label=n % 3, width=n + 1, height=1) for n in range(9)])
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        found = summary.count(selections, "label:1 width<8", among="width<8")
        assert (found["count"], found["labels"]) == (2, [[0, 3], [1, 2], [2, 2]])
        assert summary.count(selections, "label:1 width<8")["labels"] == [[1, 2]]


def test_captions_that_all_differ_are_not_compared_with_labels(tmp_path: Path) -> None:
    records = (Record(str(number), 0, fields={"caption": f"caption {number}"}) for number in range(2**16 + 1))
    store_records(tmp_path / "a.lmdb", records)
    with open_store(tmp_path / "a.lmdb") as store:
        selections = Selections(store)
        with pytest.raises(OptionError, match="caption has 65,537 different values; at most 65,536 can be names of cl"):
            summary.compare_labels(selections, "", "caption")
        found = summary.field(selections, "index<2", "caption")
        assert (found["values"][:2], found["different"]) == ([("caption 0", 1), ("caption 1", 1)], 65_537)
