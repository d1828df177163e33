"""The stores of a place: interrupted publications, the view, and collections of other programs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dbloader import Record
from dbloader.errors import PlaceError, StoreExistsError
from dbloader.records.columns import COLUMNS
from dbloader.stores.mongo import catalog, connection, partial
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, make_records, write, write_nothing, write_one_by_one
from tests.support.children import in_child
from tests.support.mongo import Mongod, Server
from tests.support.mongo_stores import database_of, document_of, records_in

RECORDS = make_records(60)


@pytest.fixture
def database(mongo_server: Server, mongo_uri: str) -> Iterator[Any]:
    with database_of(mongo_server, mongo_uri) as database:
        yield database


@pytest.mark.slow
@pytest.mark.parametrize(
    "replacing", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["fresh", "overwrite"]
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_writer_killed_while_publishing_has_published_or_can_resume(
    mongo_server: Server, mongo_uri: str, replacing: bool, after: bool
) -> None:
    if replacing:
        write(mongo_uri, RECORDS[:4])
    assert in_child(lambda: publish_and_die(mongo_uri, after)) == -signal.SIGKILL
    if not after:
        if replacing:
            check_is(mongo_uri, RECORDS[:4])
        with create_store(mongo_uri, resume=True) as writer:
            assert writer.length == len(RECORDS)
            writer.finish()
    else:
        with pytest.raises(StoreExistsError, match="is already finished: there is nothing to resume"):
            write(mongo_uri, RECORDS[:2], resume=True)
    check_is(mongo_uri, RECORDS)
    write_nothing(mongo_uri, overwrite=True)
    with database_of(mongo_server, mongo_uri) as database:
        assert database["store"].count_documents({}) == len(RECORDS)
    write(mongo_uri, RECORDS[:5], overwrite=True)
    check_is(mongo_uri, RECORDS[:5])


def publish_and_die(place: str, after: bool) -> None:
    publish = catalog.Catalog.publish

    def die(*arguments: Any) -> None:
        if after:
            publish(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    with create_store(place, overwrite=True, resumable=True) as writer:
        write_one_by_one(writer, RECORDS)
        catalog.Catalog.publish = die  # type: ignore[method-assign, assignment]
        writer.finish()


def test_store_is_published_if_the_old_view_cannot_be_changed(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.2)
    write(mongod_uri, RECORDS[:2])
    with mongod.fail_point("collMod", times=None, error_code=91) as count, database_of(mongod, mongod_uri) as database:
        write(mongod_uri, RECORDS, overwrite=True)
        check_is(mongod_uri, RECORDS)
        assert count()
        assert database["store"].count_documents({}) == 2


def test_place_is_a_view_of_the_published_store(mongo_uri: str, database: Any) -> None:
    for records in (RECORDS[:3], RECORDS[:5], RECORDS[:4]):
        write(mongo_uri, records, overwrite=True)
        assert [found.get("name") for found in database["store"].find({}, {"name": 1})] == [
            record.name for record in records
        ]
        assert database["store"].find_one({"_id": 2})["label"] == records[2].label
    # A collection of that name that another program made stays unchanged, and the store can still be read.
    database.drop_collection("store")
    database["store"].insert_one({"precious": 1})
    write(mongo_uri, RECORDS[:6], overwrite=True)
    check_is(mongo_uri, RECORDS[:6])
    assert database["store"].count_documents({"precious": 1}) == 1


def test_collections_indexes_and_keys_are_as_documented(
    mongo_uri: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "MAX_ON_SERVER", 10_000)
    records = [Record("a", 1, b"image", 2, 3, "PNG"), Record("b", 2, bytes(20_000), fields={"caption": "c"})]
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, records[:1])
        writer.commit()
        unfinished = document_of(database)
    assert set(unfinished) == {"_id", "partial", "writer"}
    assert set(unfinished["partial"]) == {"store", "writer", "run", "progress"}
    assert set(unfinished["writer"]) == {"token", "host", "machine", "pid", "began", "expires"}
    write(mongo_uri, records, resume=True)
    place = document_of(database)
    assert set(place) == {"_id", "store", "manifest"}
    assert re.fullmatch("[0-9a-f]{24}", place["store"])
    own = records_in(database)
    assert {name: info["key"] for name, info in own.index_information().items()} == {
        "_id_": [("_id", 1)],
        "dbloader_columns": [(name, 1) for name in ("_id", "label", "width", "height", "name", "crc32")],
        "dbloader_name": [("name", 1), ("_id", 1)],
        "dbloader_label": [("label", 1), ("_id", 1)],
    }
    assert list(own.find_one({"_id": 0})) == ["_id", "name", "label", "image", "width", "height", "format", "crc32"]
    stub = own.find_one({"_id": 1})
    assert list(stub) == ["_id", "gridfs", "name", "label", "caption", "crc32"]
    assert re.fullmatch(r"record/0000000000000001/[0-9a-f]{24}", stub["gridfs"])
    assert database[f"{own.name}.large.files"].distinct("_id") == [stub["gridfs"]]
    others = {found.pop("_id"): found for found in database["store.manifest"].find({"_id": {"$ne": "store"}})}
    columns = {f"{place['store']}/column/{name}/{0:016x}": {"data", "run"} for name in (*COLUMNS, "field.caption")}
    event = f"{place['store']}/event/{0:016x}"
    assert {key: set(found) for key, found in others.items()} == columns | {event: {"event", "run"}}
    # The second writer's first commit wrote all these records again.
    assert {found["run"] for found in others.values()} == {2 << 32 | 1}


def test_longest_name_of_a_place_allows_large_records(mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "MAX_ON_SERVER", 10_000)
    at = parse(mongo_uri)
    at = at._replace(collection="c" * (217 - len(f"{at.database}.")))
    write(at.uri, [Record("a", image=bytes(20_000))])
    check_is(at.uri, [Record("a", image=bytes(20_000))])
    with pytest.raises(PlaceError, match=r"\.c+ is too long: the limit is 217 bytes$"):
        create_store(at._replace(collection=f"{at.collection}c").uri)


# ---- Other programs


@pytest.mark.parametrize("name", ["a" * 24, "b" * 24 + ".notes", "c" * 24 + ".large.files"])
def test_collection_named_like_part_of_store_is_kept(mongo_uri: str, database: Any, name: str) -> None:
    other = database[f"store.{name}"]
    other.insert_many([{"precious": number} for number in range(3)])
    for _ in range(3):
        write(mongo_uri, RECORDS[:1], overwrite=True)
    assert other.count_documents({}) == 3


@pytest.mark.parametrize(
    "document",
    [
        {"_id": "store", "x": 1},
        {"_id": "store", "store": "Ann's"},
        {"_id": "store", "manifest": {"format": "dbloader"}},
        {"_id": "store", "replaced": 3},
        {"_id": "store", "replaced": None},
        {"_id": "store", "writer": "Ann"},
    ],
)
def test_foreign_manifest_collection_is_kept(mongo_uri: str, database: Any, document: dict[str, Any]) -> None:
    database["store.manifest"].insert_one(document)
    options: Any
    remedy = "name another collection, or remove that collection"
    message = rf"store\.manifest has a document 'store' that dbloader did not write: {remedy}$"
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(StoreExistsError, match=message):
            write_nothing(mongo_uri, **options)
    assert list(database["store.manifest"].find()) == [document]


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_foreign_view_is_kept(mongo_uri: str, database: Any, options: dict[str, bool]) -> None:
    """The store contract tests the same for a collection."""
    database["other"].insert_one({"precious": 1})
    database.create_collection("store", viewOn="other", pipeline=[])
    with pytest.raises(StoreExistsError, match=r"is not a dbloader store and will not be overwritten"):
        write_nothing(mongo_uri, **options)
    assert [found["precious"] for found in database["store"].find()] == [1]


def test_system_database_is_refused() -> None:
    message = r"local\.store is in one of MongoDB's own databases \(admin, config, local\)"
    with pytest.raises(PlaceError, match=message):
        create_store("mongodb://host/local.store")
