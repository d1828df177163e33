"""Queries find the records of a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import LMDBDataset, Record, write_store
from dbloader.errors import OptionError
from tests.support.images import photo


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of which only the first record has values in its fields."""
    place = tmp_path_factory.mktemp("queries") / "s.lmdb"
    fields = {"score": -1.5, "n": 0, "caption": "none", "is_test": False}
    records = [
        Record("a.jpg", 0, photo(0), fields=fields),
        Record("OR&b.jpg", 1, photo(1)),
        Record("c.jpg", 2, photo(2)),
    ]
    write_store(records, place, classes=["cat", "R&B", "ant"])
    return place


def found(place: Path, where: str) -> list[int]:
    with LMDBDataset(place, where=where, fields=("index",)) as dataset:
        return [sample["index"] for sample in dataset[:]]


def test_capital_keywords_mean_the_same_as_small_ones(place: Path) -> None:
    assert found(place, "class:cat OR class:ant") == found(place, "class:cat or class:ant") == [0, 2]
    assert found(place, "NOT class:cat AND Not label=2") == [1]
    assert found(place, '"OR" "&b"') == [1]  # quoted words are parts of names
    assert found(place, "class:R&B") == [1]


@pytest.mark.parametrize("condition", ["score=null", "n!=none", "caption=null", "is_test=NaN"])
def test_form_that_an_error_recommends_finds_records_without_a_value(place: Path, condition: str) -> None:
    with pytest.raises(OptionError, match="to find records without a value, write ") as caught:
        found(place, condition)
    form = str(caught.value).partition(", write ")[2].partition(";")[0]
    assert found(place, form) == [1, 2]
    assert found(place, form.removeprefix("not ")) == [0]


def test_unknown_class_with_an_operator_is_an_error_with_the_right_form(place: Path) -> None:
    with pytest.raises(OptionError, match=r"no class is called 'cat\|ant'; classes are cat, R&B, ant; write or$"):
        found(place, "class:cat|ant")
