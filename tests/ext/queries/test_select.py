"""Queries find the records of a real store."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from dbloader import LMDBDataset, Record, write_store
from dbloader.errors import OptionError
from dbloader.ext.queries.columns import Columns, column_of
from dbloader.ext.queries.select import select
from dbloader.stores.open import open_store
from tests.support.images import photo
from tests.support.stores import store_records


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


TEXTS = ("A red car", "Straße", "STRASSE", "ﬁne", "", "K\N{KELVIN SIGN}", "İstanbul", None, "red", "CAR")
PARTS = ("RED", "strasse", "ß", "fi", "k", "i\N{COMBINING DOT ABOVE}", "edC", "", "dc", "ﬁN", "ar")


@pytest.mark.parametrize("is_joined", [False, True])
def test_search_in_texts_ignores_the_case_as_casefold_does(tmp_path: Path, is_joined: bool) -> None:
    texts = [*TEXTS] * 900  # more than two chunks, in which each text has every position
    records = [Record(f"{n}.jpg", fields={} if is_joined or text is None else {"caption": text}) for n, text in
               enumerate(texts)]  # fmt: skip
    store_records(tmp_path / "s.lmdb", records)
    joined = column_of([text or None for text in texts], len(texts))
    assert joined is not None
    with open_store(tmp_path / "s.lmdb") as store:
        columns = Columns(store, {"caption": joined} if is_joined else {})
        for part in PARTS:
            wanted = [n for n, text in enumerate(texts) if text and part.casefold() in text.casefold()]
            assert [*select(columns, f'caption~"{part}"')] == wanted, part
        assert [*select(columns, "caption=red")] == [n for n, text in enumerate(texts) if text == "red"]
        assert [*select(columns, "caption!=red")] == [n for n, text in enumerate(texts) if text and text != "red"]
        assert columns.common("caption", range(len(texts)), 3) == ([(text, 900) for text in sorted(TEXTS[:3])], 8)


def test_search_in_long_texts_keeps_only_a_part_of_them_in_memory(tmp_path: Path) -> None:
    length, letters = 60_000, 600
    texts = (f"{n:0{letters}}" for n in range(length))
    store_records(tmp_path / "s.lmdb", [Record(str(n), fields={"caption": text}) for n, text in enumerate(texts)])
    with open_store(tmp_path / "s.lmdb") as store:
        columns = Columns(store)
        tracemalloc.start()
        try:
            assert [*select(columns, "caption~0012345")] == [12_345]
            assert columns.common("caption", range(length), 1)[1] == length
            assert tracemalloc.get_traced_memory()[1] < length * letters * 0.6
        finally:
            tracemalloc.stop()
