"""Datasets over stores select records by where=, and accept copies of their stores."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dbloader import LMDBDataset, MongoDataset, copy_store
from dbloader.errors import OptionError, RecordNotFoundError, StoreError
from tests.contracts.dataset import EXPECTED, LENGTH, make, read_all
from tests.datasets.test_mongo import damaged


class QueryContract:
    """Subclasses have a fixture ``fresh``, an empty place."""

    kind: ClassVar[Callable[..., Any]]

    @pytest.fixture
    def stored(self, fresh: Any) -> Any:
        return make(fresh)

    def test_where_selects_the_records_that_match_a_query(self, stored: Any) -> None:
        query = 'width>=110 (class:a or caption~"2")'
        chosen = [index for index in range(10, LENGTH) if index % 7 == 0 or (index % 2 and "2" in str(index))]
        with self.kind(stored, decode=None, where=query) as dataset, self.kind(stored, decode=None) as whole:
            assert read_all(dataset) == [EXPECTED[index] for index in chosen]
            assert dataset.targets.tolist() == [index % 7 for index in chosen]
            assert list(dataset.names) == [f"{index}.x" for index in chosen]
            assert dataset.column("width").tolist() == [100 + index for index in chosen]
            assert dataset.column("caption").tolist() == [f"number {index}" if index % 2 else "" for index in chosen]
            assert [dataset.find(f"{index}.x") for index in chosen] == [*range(len(chosen))]
            with pytest.raises(RecordNotFoundError, match=r"the query does not select the record '3\.x'"):
                dataset.find("3.x")
            indices = hashlib.sha256(np.array(chosen, "<i8").tobytes()).hexdigest()
            assert dataset.content_digest == f"{whole.content_digest}/{indices}"
            assert repr(dataset).endswith(f"Where: {query} ({len(chosen)} of {LENGTH} records)")
            assert read_all(pickle.loads(pickle.dumps(dataset))) == read_all(dataset)  # noqa: S301
            assert whole.column("width").tolist() == [100 + index for index in range(LENGTH)]
        with pytest.warns(UserWarning, match="^the query 'width<3' finds no record of ") as caught:
            nothing = self.kind(stored, where="width<3")
        with nothing:
            assert len(nothing) == 0
        assert caught[0].filename == __file__

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"where": 3}, r"^where must be a query, such as 'score>0.5', got 3$"),
            ({"where": "size>3"}, "^query, letter 1: this store has no field 'size'; .*, event, caption; to find "),
        ],
    )
    def test_wrong_queries_are_refused_at_once(self, stored: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises((TypeError, OptionError), match=message):
            self.kind(stored, **options)

    def test_dataset_accepts_a_copy_in_place_of_its_store(self, fresh: Any, tmp_path: Path) -> None:
        make(fresh)
        with self.kind(fresh, decode=None) as dataset:
            copy_store(fresh, tmp_path / "copy.lmdb")
            copy_store(tmp_path / "copy.lmdb", fresh, overwrite=True)
            dataset.close()
            assert read_all(dataset) == EXPECTED


class TestLMDBDataset(QueryContract):
    kind = LMDBDataset

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Path:
        return tmp_path / "store.lmdb"


class TestMongoDataset(QueryContract):
    kind = MongoDataset

    @pytest.fixture
    def fresh(self, mongo_uri: str) -> str:
        return mongo_uri


@pytest.mark.parametrize("query", [{"label": 3}, {"label": 3, "width": {"$gt": 1}}, {"$or": [{"label": 3}]}], ids=str)
def test_store_without_indexes_answers_where_and_its_copy_answers_query(mongo_uri: str, query: dict[str, Any]) -> None:
    damaged(mongo_uri, lambda it: it.drop_indexes())
    with pytest.raises(StoreError, match="use where=, or copy the store"):
        MongoDataset(mongo_uri, query=query)
    found = [*MongoDataset(mongo_uri, where="label:3").names]
    copy = f"{mongo_uri}_copy"
    copy_store(mongo_uri, copy)
    assert [*MongoDataset(copy, query={"label": 3}).names] == found != []
