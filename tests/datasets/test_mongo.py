"""MongoDataset keeps the contract of datasets, and selects records by a query of MongoDB."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymongo
import pytest
from bson.int64 import Int64
from typing_extensions import override

from dbloader import MongoDataset, Record
from dbloader.errors import DamagedStoreError, OptionError, RecordNotFoundError, StoreError
from dbloader.loading.create import create_loader
from dbloader.stores.mongo.uri import parse
from tests.contracts.dataset import (
    EXPECTED,
    LENGTH,
    DatasetContract,
    make,
    read_all,
    record_of,
)
from tests.support.mongo import Mongod, Server, records_of

# Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

finds_none = pytest.mark.filterwarnings("ignore:the query .* finds no record of:UserWarning")


@pytest.fixture(scope="module")
def database(mongo_server: Server) -> Iterator[str]:
    """A database whose stores the tests of this module never change."""
    name = f"dbloader_test_{uuid.uuid4().hex[:12]}"
    yield name
    mongo_server.drop(name)


@pytest.fixture(scope="module")
def place(mongo_server: Server, database: str) -> str:
    place = mongo_server.place(database)
    make(place)
    return place


class TestMongoDataset(DatasetContract):
    kind = MongoDataset

    @pytest.fixture
    def stored(self, place: str) -> str:
        return place

    @pytest.fixture
    def fresh(self, mongo_uri: str) -> str:
        return mongo_uri

    @override
    def damage(self, place: str, index: int) -> None:
        with pymongo.MongoClient[Any](place) as client:
            records_of(client, place).update_one({"_id": index}, {"$set": {"image": b"another image"}})


def test_batch_is_read_in_one_query(mongod: Mongod, mongod_uri: str) -> None:
    make(mongod_uri)
    with MongoDataset(mongod_uri, decode=None) as dataset:
        dataset.__getitems__([0])
        # Every later find command fails and is repeated.
        with mongod.fail_point("find", skip=1, error_code=6) as met:
            assert dataset.__getitems__(list(range(20))) == EXPECTED[:20]
            assert met() == 0


QUERIES: list[tuple[dict[str, Any], Callable[[Record], bool]]] = [
    (
        {"label": {"$in": [3, 5]}, "width": {"$gte": 110, "$lt": 120}},
        lambda record: record.label in (3, 5) and 110 <= (record.width or 0) < 120,
    ),
    ({"boxes.count": {"$gt": 2}}, lambda record: record.fields.get("boxes", {}).get("count", 0) > 2),
    ({}, lambda record: True),
    ({"label": 99}, lambda record: False),
    ({"store": {"$exists": True}}, lambda record: False),  # only a document outside the records has this field
]


@finds_none
@pytest.mark.parametrize(("query", "wanted"), QUERIES, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_query_selects_records_in_the_order_of_the_store(
    place: str, query: dict[str, Any], wanted: Callable[[Record], bool]
) -> None:
    indices = [index for index in range(LENGTH) if wanted(record_of(index))]
    with MongoDataset(place, decode=None, query=query) as dataset:
        assert len(dataset) == len(indices)
        assert read_all(dataset) == [EXPECTED[index] for index in indices]
        assert dataset.targets.tolist() == [index % 7 for index in indices]
        assert [dataset.find(f"{index}.x") for index in indices] == list(range(len(indices)))
        if len(indices) < LENGTH:
            other = min(set(range(LENGTH)) - set(indices))
            with pytest.raises(RecordNotFoundError, match=rf"^the query does not select the record '{other}\.x' of "):
                dataset.find(f"{other}.x")


@pytest.mark.parametrize("query", [{"label": {"$in": [3, 5]}}, {"name": "17.x", "width": {"$gte": 110}}, {}], ids=str)
def test_query_of_columns_reads_no_document(mongod: Mongod, mongod_uri: str, query: dict[str, Any]) -> None:
    make(mongod_uri)
    with mongod.client() as client:
        database = client[parse(mongod_uri).database]
        database.command("profile", 2)
        with MongoDataset(mongod_uri, query=query) as dataset:
            length = len(dataset)
        database.command("profile", 0)
        found = database.system.profile.find({"command.projection": {"_id": 1}})
        (asked,) = [entry for entry in found if "$and" in entry["command"]["filter"]]
    assert (asked["nreturned"], asked["docsExamined"]) == (length, 0), asked["planSummary"]


def test_query_without_results_warns(place: str) -> None:
    with pytest.warns(UserWarning, match=r"^the query \{'nothing': 1\} finds no record of ") as caught:
        dataset = MongoDataset(place, query={"nothing": 1})
    assert caught[0].filename == __file__
    with dataset:
        assert len(dataset) == 0
        with pytest.raises(OptionError, match="dataset must have samples, got MongoDataset of length 0"):
            create_loader(dataset, batch_size=4)


def test_digest_depends_on_selected_records(place: str) -> None:
    with (
        MongoDataset(place) as whole,
        MongoDataset(place, query={"label": {"$gte": 0}}) as all_of_them,
        MongoDataset(place, query={"label": {"$in": [2, 3]}}) as some,
        MongoDataset(place, query={"label": {"$in": [3, 2]}}) as same,
        MongoDataset(place, query={"label": {"$in": [3, 4]}}) as other,
    ):
        assert whole.content_digest == all_of_them.content_digest == whole.manifest.digest
        chosen = [index for index, label in enumerate(whole.targets) if label in (2, 3)]
        indices = hashlib.sha256(np.array(chosen, "<i8").tobytes()).hexdigest()
        assert some.content_digest == same.content_digest == f"{whole.manifest.digest}/{indices}"
        assert some.content_digest != other.content_digest
        assert some.content_digest != whole.content_digest


@pytest.mark.parametrize(
    "query",
    [{"$nonsense": 1}, {"label": {"$inn": [1]}}, {"label": {"$in": 3}}, {"$where": 3}, {"name": {"$regex": "("}}],
    ids=str,
)
def test_query_that_the_server_refuses_is_a_store_error(place: str, query: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=rf"^{re.escape(parse(place).redacted)}: .{{5,200}}$"):
        MongoDataset(place, query=query)


@pytest.mark.parametrize("query", [{"label": np.int64(3)}, {"label": {"$in": {3}}}, {3: 4}, "label", [("label", 3)]])
def test_query_that_cannot_be_encoded_is_refused(place: str, query: Any) -> None:
    with pytest.raises(OptionError, match=r"^query must be a MongoDB query of Python's own "):
        MongoDataset(place, query=query)


@pytest.mark.parametrize("query", [{"label": 3}, {"label": 3, "width": {"$gt": 1}}, {"$or": [{"label": 3}]}], ids=str)
def test_query_without_the_indexes_names_what_answers_instead(mongo_uri: str, query: dict[str, Any]) -> None:
    damaged(mongo_uri, lambda it: it.drop_indexes())
    with pytest.raises(
        StoreError, match="query= needs indexes that this store has lost: use where=, or copy the store"
    ):
        MongoDataset(mongo_uri, query=query)


def damaged(place: str, change: Callable[[Any], object]) -> None:
    make(place)
    with pymongo.MongoClient[Any](place) as client:
        change(records_of(client, place))


@pytest.mark.parametrize(
    ("change", "query", "message"),
    [
        (lambda it: it.delete_many({"_id": {"$gte": 9}}), {"width": {"$gte": 0}}, "has 9 records, but 24 were written"),
        (lambda it: it.delete_one({"_id": 3}), {"label": 3}, "has 2 records of label 3, but 3 were written"),
        (lambda it: it.update_one({"_id": 3}, {"$set": {"label": Int64(4)}}), {"label": 3}, "has 2 records of label 3"),
        (lambda it: it.update_one({"_id": 3}, {"$unset": {"label": 1}}), {"label": {"$ne": 9}}, "records of label 3"),
        (
            lambda it: it.insert_one({"_id": 3.5, "label": 9}),
            {"label": 9},
            "labels that were not written by dbloader: 9",
        ),
        (lambda it: it.insert_one({"_id": 3.5, "caption": "a"}), {"caption": "a"}, "has 25 records, but 24 were"),
        (lambda it: it.drop(), {"label": 9}, "its collection of records is missing"),
    ],
    ids=["lost", "one lost", "edited", "no label", "another label", "another _id", "all"],
)
def test_query_of_a_damaged_store_is_an_error(
    mongo_uri: str, change: Callable[[Any], object], query: dict[str, Any], message: str
) -> None:
    damaged(mongo_uri, change)
    with pytest.raises(DamagedStoreError, match=message):
        MongoDataset(mongo_uri, query=query)
