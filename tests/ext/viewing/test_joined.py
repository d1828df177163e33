"""A joined listing gives each record the values of its row. A listing that may belong to other records is refused."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Record, open_store, view
from dbloader.errors import OptionError, SourceError
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.joined import join_listings
from dbloader.ext.viewing.selection import Selections
from dbloader.ext.viewing.sorting import sort_records
from dbloader.records.field_columns import NO_BOOL, FieldColumn
from dbloader.stores.base import Store
from tests.ext.viewing.stores import write_records
from tests.ext.viewing.test_summary import check_histogram


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    records = [Record(name=f"r{n}", label=None if n == 5 else n % 2, width=n + 1, height=1) for n in range(6)]
    write_records(tmp_path / "s.lmdb", [*records, Record(name="r1", label=0)], classes=("cat", "dog"))
    with open_store(tmp_path / "s.lmdb") as opened:
        yield opened


def listing(tmp_path: Path, text: str | list[dict[str, Any]], kind: str = "csv") -> Path:
    path = tmp_path / f"predictions.{kind}"
    path.write_text(text if isinstance(text, str) else "\n".join(map(json.dumps, text)))
    return path


CSV = """name,prediction,loss,top5,id,note,label,width,two words
r0,cat,0.5,true,007,,9,9,1
r1,cat,2,false,1,a b,9,9,1
r4,dog,nan,true,2,"A, B",9,9,1
r5,dog,1e-3,,3,c,9,9,1
gone,dog,7,true,4,d,9,9,1
"""


def test_joined_csv_gives_each_record_the_values_of_its_row(tmp_path: Path, store: Store) -> None:
    said: list[str] = []
    with pytest.warns(UserWarning, match="1 row has no record in"):
        joined = join_listings([store], listing(tmp_path, CSV), said.append)[0]
    kinds = {name: column.kind for name, column in joined.items()}
    assert kinds == {
        "prediction": "text", "loss": "float", "top5": "bool", "id": "text", "note": "text", "two words": "int",
        "labels.differ": "bool",
    }  # fmt: skip
    values = {name: [*column.values] for name, column in joined.items()}
    # Two records are named r1, and both get the row of r1.
    assert values["prediction"] == ["cat", "cat", "", "", "dog", "dog", "cat"]
    assert [None if math.isnan(loss) else loss for loss in values["loss"]] == [0.5, 2, None, None, None, 0.001, 2]
    assert values["top5"] == [1, 0, NO_BOOL, NO_BOOL, 1, NO_BOOL, 0]
    assert values["id"][:2] == ["007", "1"]
    assert joined["labels.differ"].values.tolist() == [0, 1, NO_BOOL, NO_BOOL, 1, NO_BOOL, 0]
    assert "2 of 7 records have no row" in said[0]
    assert "left out: label, width;" in said[1]


def test_warning_about_unknown_names_points_to_the_caller_of_view(tmp_path: Path, store: Store) -> None:
    with pytest.warns(UserWarning, match="1 row has no record in") as caught:
        view(store.place, port=0, listing=listing(tmp_path, CSV)).close()
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:.*no record in:UserWarning")
def test_joined_columns_are_searched_sorted_and_counted(tmp_path: Path, store: Store) -> None:
    selections = Selections(store, join_listings([store], listing(tmp_path, CSV))[0])

    def found(text: str, by: str = "") -> list[int]:
        return [*sort_records(selections, text, by)]

    assert found("prediction=cat") == [0, 1, 6]
    assert found("class:cat prediction=dog") == [4]
    assert found("labels.differ") == found("labels.differ=true") == [1, 4]
    assert found("top5=true") == [0, 4]
    assert found("loss>0.5") == found("loss=2") == [1, 6]
    assert found("-loss<=1") == [1, 2, 3, 4, 6]
    assert found('note~"B"') == [1, 4, 6]
    assert found("", "-loss") == [1, 6, 0, 5, 2, 3, 4]
    assert found("", "prediction") == [0, 1, 6, 4, 5, 2, 3]
    values = summary.field(selections, "width>1", "prediction")
    assert values == {"values": [("dog", 2), ("cat", 1)], "different": 2, "of": 5}
    assert summary.field(selections, "", "top5")["values"] == [("false", 2), ("true", 2)]
    assert summary.field(selections, "", "loss")["ends"] == [0.001, 2]
    assert summary.rows(selections, "index:1", 0, 1, "loss")["rows"][0][6] == {"loss": 2.0, "prediction": "cat"}
    assert selections.columns.describe(5, selections.columns.kinds) == {
        "prediction": "dog", "loss": 0.001, "top5": None, "id": "3", "note": "c", "two words": 1, "labels.differ": None
    }  # fmt: skip
    compared = summary.compare_labels(selections, "", "prediction")
    assert sorted(compared["pairs"]) == [(0, "dog", 1), (1, "cat", 1)]
    assert sorted(compared["cells"]) == [(0, "cat", 2), (0, "dog", 1), (1, "cat", 1)]
    assert sorted(compared["worst"]) == [0, 1]
    assert (compared["total"], compared["equal"], compared["different"]) == (4, 2, 2)
    for text, what in (
        ("loss~5", "use < or <= or > or >= or = or != after loss, not ~"),
        ("top5=maybe", "true or false"),
        ("loss>x", "needs a number"),
    ):
        with pytest.raises(OptionError, match=what):
            found(text)
    with pytest.raises(OptionError, match="a column must be one of prediction, id, note, two words, got 'loss'"):
        summary.compare_labels(selections, "", "loss")


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 7,
        [-3.5, -1, 0, 0.25, 7, 7, 100],
        [10.0**-n for n in range(0, 301, 50)],
        [1.7e9 + n / 8 for n in range(7)],
        [math.inf, math.nan, -math.inf, 1, 1e-9, 2, 1e5],
        [math.nan] * 7,
    ],
)
def test_histogram_of_a_field_counts_every_finite_value(store: Store, values: list[float]) -> None:
    selections = Selections(store, {"loss": FieldColumn("float", np.array(values))})
    finite = [value for value in values if math.isfinite(value)]
    found = summary.field(selections, "", "loss")
    json.dumps(found, allow_nan=False)
    check_histogram(found, finite)
    assert len(selections.select("loss<=0")) == sum(value <= 0 for value in values)


def test_json_integers_are_labels_and_lists_are_skipped(tmp_path: Path, store: Store) -> None:
    first, second = {"index": 0, "prediction": 1, "p": 1}, {"index": 1, "prediction": 1, "p": 0.5, "vector": [1, 2]}
    rows: list[dict[str, Any]] = [first, second]
    joined = join_listings([store], listing(tmp_path, rows, "jsonl"))[0]
    assert [*joined] == ["prediction", "p", "labels.differ"]
    assert joined["labels.differ"].values.tolist()[:3] == [1, 0, NO_BOOL]
    assert joined["p"].values.tolist()[:2] == [1.0, 0.5]
    selections = Selections(store, joined)
    assert [*selections.select("prediction=1 label:1")] == [1]
    assert summary.compare_labels(selections, "", "prediction")["equal"] == 1


@pytest.mark.filterwarnings("ignore:.*no record in:UserWarning")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("name,p\nr0,1\nr2,1\nr0,2\n", "row 4: an earlier row has the same record"),
        ("name,p\nx,1\ny,2\n", "no row has the name, path or index of a record of .*s.lmdb"),
        ("index,name,p\n0,r1,1\n", "record 0 of .* is 'r0', not 'r1': the listing belongs to another store"),
        ("name,prediction\nr0,bird\n", "no prediction is the name of a class, such as 'cat'"),
        ("p,q\n1,2\n", "row 2: has no value in a column called name"),
    ],
)
def test_listing_of_other_records_is_refused(tmp_path: Path, store: Store, text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        join_listings([store], listing(tmp_path, text))


def test_classes_named_like_other_labels_need_json(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name="a", label=1)], classes=("1", "10"))
    with open_store(tmp_path / "s.lmdb") as store:
        with pytest.raises(SourceError, match=r"write a \.jsonl, with class names as texts or labels as integers"):
            join_listings([store], listing(tmp_path, "name,prediction\na,1\n"))
        rows: list[dict[str, Any]] = [{"name": "a", "prediction": "10"}]
        assert join_listings([store], listing(tmp_path, rows, "jsonl"))[0]["labels.differ"].values.tolist() == [0]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Store]]:
    """Two stores: r0 to r5 and v0 to v2. Both have a record called both."""
    with ExitStack() as opened:
        stores = []
        for prefix, count in (("r", 6), ("v", 3)):
            records = [Record(name=f"{prefix}{n}", label=n % 2) for n in range(count)]
            write_records(tmp_path / f"{prefix}.lmdb", [*records, Record(name="both", label=0)], classes=("cat", "dog"))
            stores.append(opened.enter_context(open_store(tmp_path / f"{prefix}.lmdb")))
        yield stores


def test_listing_of_one_of_two_stores_starts_the_viewer(tmp_path: Path, two: list[Store]) -> None:
    said: list[str] = []
    csv = listing(tmp_path, "name,prediction\nv0,cat\nv1,cat\n")
    assert [[*joined] for joined in join_listings(two, csv, said.append)] == [[], ["prediction", "labels.differ"]]
    of = [f"{csv}: no row has a record of {two[0].place}"]
    of += [f"{csv}: columns prediction, labels.differ; 2 of 4 records of {two[1].place} have no row"]
    assert said == of
    with view(*(store.place for store in two), port=0, listing=csv):
        pass
    gone = listing(tmp_path, "name,p\ngone,1\n")
    with (
        pytest.raises(SourceError, match=r"no row has the name, path or index of a record of .*r\.lmdb or .*v\.lmdb"),
        pytest.warns(UserWarning, match=r"1 row has no record in .*r\.lmdb or .*v\.lmdb"),
    ):
        join_listings(two, gone)


def test_listing_of_two_stores_gives_each_record_its_row(tmp_path: Path, two: list[Store]) -> None:
    said: list[str] = []
    rows: list[dict[str, Any]] = [{"name": "r1", "loss": 1}, {"name": "v1", "loss": 2}, {"name": "both", "loss": 3}]
    rows += [{"name": "v2", "index": 2, "loss": 4}]
    first, second = join_listings(two, listing(tmp_path, rows, "jsonl"), said.append)
    known = [{n: value for n, value in enumerate(one["loss"].array().tolist()) if value > 0} for one in (first, second)]
    assert known == [{1: 1, 6: 3}, {1: 2, 2: 4, 3: 3}]
    assert said[0].endswith("1 row with a name in several stores: joined to each record")


def test_index_without_a_name_is_refused_for_two_stores(tmp_path: Path, two: list[Store]) -> None:
    csv = listing(tmp_path, "index,p\n1,2\n")
    with pytest.raises(
        SourceError, match=r"row 2: has an index but no name, so it may be a record of .*r\.lmdb or .*v"
    ):
        join_listings(two, csv)
    assert [*join_listings([two[1]], csv)[0]] == ["p"]


def test_table_of_labels_has_the_classes_with_the_most_differences(tmp_path: Path) -> None:
    classes = [f"c{n:02}" for n in range(40)]
    rng = random.Random(3)
    labels, values = ([rng.randrange(40) for _ in range(3000)] for _ in range(2))
    guesses = [value if rng.random() < 0.3 else label for label, value in zip(labels, values, strict=True)]
    write_records(tmp_path / "s.lmdb", [Record(label=label) for label in labels], classes=classes)
    rows = [{"index": n, "prediction": classes[guess]} for n, guess in enumerate(guesses)]
    with open_store(tmp_path / "s.lmdb") as store:
        found = summary.compare_labels(
            Selections(store, join_listings([store], listing(tmp_path, rows, "jsonl"))[0]), "", "prediction"
        )
    pairs = list(zip(labels, guesses, strict=True))
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    score = {n: sum((label == n) + (guess == n) for label, guess in wrong) for n in range(40)}
    assert len(found["worst"]) == len({*found["worst"]}) == 24
    assert [score[n] for n in found["worst"]] == sorted(score.values(), reverse=True)[:24]
    cells = {(label, value): count for label, value, count in found["cells"]}
    among = [pair for pair in pairs if {*pair} <= {*found["worst"]}]
    assert cells == Counter((label, classes[guess]) for label, guess in among)
    assert (found["equal"], found["total"]) == (3000 - len(wrong), 3000)


def test_quantiles_are_values_of_the_images(store: Store) -> None:
    found = summary.quantiles(Selections(store))
    assert found["width"] == [1, 1, 2, 3, 4, 5, 6]
    assert found["height"] == [1] * 7
    assert found["bytes"] == []
