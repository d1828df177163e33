"""What lies beside a store in MongoDB and is another program's: it is neither touched nor taken for ours."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pymongo
import pytest

from dbloader import MongoDataset, Record, create_store, open_store
from dbloader.errors import PlaceError, StoreExistsError
from dbloader.records.record import encode
from dbloader.stores.mongo.store import MongoStore
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = b"x" * (17 * 2**20)


@pytest.fixture
def database(mongo_uri: str) -> Iterator[Any]:
    client: pymongo.MongoClient[Any]
    with pymongo.MongoClient(mongo_uri) as client:
        yield client[parse(mongo_uri).database]


def write(place: str, *records: Record, **options: bool) -> None:
    with create_store(place, **options) as writer:
        writer.write(encode(record) for record in records)
        writer.finish()


@pytest.mark.parametrize(
    "name", ["a" * 24, "b" * 24 + ".notes", "c" * 24 + ".large.files", "0123456789abcdef01234567.large.chunks"]
)
def test_a_collection_with_the_name_of_a_store_of_ours_is_left_alone(mongo_uri: str, database: Any, name: str) -> None:
    other = database[f"store.{name}"]
    other.insert_many([{"precious": number} for number in range(3)])
    options: Any
    for options in ({}, {"overwrite": True}, {"overwrite": True}):
        write(mongo_uri, Record("a", 1), **options)
    assert other.count_documents({}) == 3


def test_a_replaced_store_goes_with_all_that_is_in_gridfs(mongo_uri: str, database: Any) -> None:
    write(mongo_uri, Record("a", 1, LARGE))
    for _ in range(3):
        write(mongo_uri, Record("b", 2), overwrite=True)
    names = database.list_collection_names()
    assert not [name for name in names if ".large" in name]
    assert (
        len(set(names) - {"system.views"}) == 4
    )  # the store, the view of it, its manifest, and the one that was replaced last


@pytest.mark.parametrize(
    "document",
    [
        {"_id": "store", "x": 1},
        {"_id": "store", "store": "Ann's"},
        {"_id": "store", "manifest": {"format": "dbloader"}},
    ],
)
def test_a_manifest_collection_of_another_program_is_left_alone(
    mongo_uri: str, database: Any, document: dict[str, Any]
) -> None:
    other = database["store.manifest"]
    other.insert_one(document)
    options: Any
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with (
            pytest.raises(
                StoreExistsError,
                match=r"store\.manifest has a document 'store' that dbloader did not write, .*: choose another",
            ),
            create_store(mongo_uri, **options),
        ):
            pass
    assert list(other.find()) == [document]


def test_a_collection_that_is_no_store_is_told_before_overwriting_is_advised(mongo_uri: str, database: Any) -> None:
    database["store"].insert_one({"precious": 1})
    with (
        pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
        create_store(mongo_uri),
    ):
        pass


def test_a_conversion_into_somebody_elses_collection_is_neither_resumed_nor_finished(
    mongo_uri: str, database: Any
) -> None:
    database["store"].insert_one({"precious": 1})
    options: Any
    for options in ({"resume": True}, {"resume": True, "resumable": True}):
        with (
            pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
            create_store(mongo_uri, **options),
        ):
            pass
    assert [found["precious"] for found in database["store"].find()] == [1]
    # Nor is a view of something else taken for one of a store.
    database.drop_collection("store")
    database["other"].insert_one({"precious": 1})
    database.create_collection("store", viewOn="other", pipeline=[])
    with (
        pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
        create_store(mongo_uri, overwrite=True),
    ):
        pass


@pytest.mark.parametrize("name", ["admin", "config", "local"])
def test_a_database_of_the_servers_own_is_refused(mongo_uri: str, name: str) -> None:
    place = mongo_uri.replace(parse(mongo_uri).database, name)
    with pytest.raises(
        PlaceError, match=rf"{name}\.store is in a database of the server's own \(admin, config, local\)"
    ):
        create_store(place)


def test_a_query_finds_records_in_gridfs_by_all_their_fields(mongo_uri: str) -> None:
    records = [Record(f"{n}", 1, LARGE if n == 1 else b"x", fields={"caption": f"hit {n % 2}"}) for n in range(4)]
    write(mongo_uri, *records)
    for query, found in (
        ({"caption": "hit 1"}, [1, 3]),
        ({"caption": {"$ne": "hit 1"}}, [0, 2]),
        ({"caption": {"$exists": True}}, [0, 1, 2, 3]),
    ):
        with MongoDataset(mongo_uri, query=query, decode=None, fields=("index", "image")) as dataset:
            assert [sample["index"] for sample in dataset.__getitems__(range(len(dataset)))] == found
    with open_store(mongo_uri) as store:
        assert store[1].image == LARGE
        assert store.verify() == store.manifest.digest


def test_a_copy_within_the_process_has_the_credentials() -> None:
    store = MongoStore("mongodb://user:s3cret@nowhere/db.images")
    for copied in (copy.copy(store), copy.deepcopy(store)):
        assert copied._place.uri == store._place.uri
        assert "s3cret" not in repr(copied)
