"""MongoDataset keeps the contract of datasets; a query makes a subset; a refresh takes over what has changed."""

from __future__ import annotations

import hashlib
import pickle
import re
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pymongo
import pytest
from bson.int64 import Int64
from typing_extensions import override

from dbloader import MongoDataset, Record, write_store
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    OptionError,
    RecordIndexError,
    RecordNotFoundError,
    StoreError,
)
from dbloader.loading.create import create_loader
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.records.record import encode
from dbloader.stores.mongo.store import MongoStore
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.dataset import (
    CLASSES,
    EXPECTED,
    LENGTH,
    DatasetContract,
    data_of,
    in_worker,
    make,
    read_all,
    record_of,
)
from tests.support.loaders import thread_loader
from tests.support.mongo import records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.mongo import Mongod, Server

# Python >= 3.12 warns of every fork of a process with threads, which every client of a server has.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

# For tests of what a dataset without records is.
finds_none = pytest.mark.filterwarnings("ignore:no record of .* is found by the query:UserWarning")


@pytest.fixture(scope="module")
def database(mongo_server: Server) -> Iterator[str]:
    """A database of which the tests of this module only read the stores that its fixtures make."""
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


# Beyond the contract


def test_a_name_that_no_record_of_a_query_has_is_a_key_error(place: str) -> None:
    with MongoDataset(place, query={"label": {"$gte": 0}}) as dataset:
        for name in ("none", "", "a\0b", "\ud800"):
            with pytest.raises(RecordNotFoundError) as raised:
                dataset.find(name)
            assert f" is named {name!r}" in str(raised.value)


# What cannot be opened is told at once


def test_a_batch_is_one_query(mongod: Mongod, mongod_uri: str) -> None:
    make(mongod_uri)
    with MongoDataset(mongod_uri, decode=None) as dataset:
        dataset.__getitems__([0])
        # Every find beyond the first fails, and is asked again.
        with mongod.fail_point("find", skip=1, error_code=6) as met:
            assert dataset.__getitems__(list(range(20))) == EXPECTED[:20]
            assert met() == 0


@pytest.mark.slow
def test_a_pickle_has_no_credentials_but_a_spawned_worker_gets_them(mongod_with_users: Mongod) -> None:
    place = mongod_with_users.place(f"dbloader_test_{uuid.uuid4().hex[:12]}")
    make(place)
    try:
        with MongoDataset(place, decode=None, query={"label": 1}) as dataset:
            assert "root" in place
            data = pickle.dumps(dataset)
            assert b"s3cret" not in data
            assert b"root:" not in data
            assert "s3cret" not in f"{dataset!r} {dataset.store!r} {dataset.root}"
            # Into a process that is being started they go with it.
            in_worker(dataset, "spawn")
    finally:
        mongod_with_users.drop(parse(place).database)


def test_an_unpickled_subset_knows_its_length_before_it_asks_the_server(place: str) -> None:
    with (
        MongoDataset(place, decode=None, query={"label": {"$gte": 3}}) as dataset,
        pickle.loads(pickle.dumps(dataset)) as copy,  # noqa: S301 - our own
    ):
        assert isinstance(copy.store, MongoStore)
        assert len(copy) == len(dataset)
        assert copy.store._handle is None
        assert copy.content_digest == dataset.content_digest
        assert read_all(copy) == read_all(dataset)
        assert copy.store is copy._origin  # one client, not two


# Queries

AS_STORED: dict[str, Any] = {"transform": None, "normalize": None, "device": None}  # for create_loader
QUERIES: list[tuple[dict[str, Any], Callable[[Record], bool]]] = [
    ({"label": 3}, lambda record: record.label == 3),
    (
        {"label": {"$in": [3, 5]}, "width": {"$gte": 110, "$lt": 120}},
        lambda record: record.label in (3, 5) and 110 <= (record.width or 0) < 120,
    ),
    ({"name": "17.x"}, lambda record: record.name == "17.x"),
    (
        {"name": {"$regex": r"^1\d"}},
        lambda record: str(record.name)[:-2].startswith("1") and str(record.name)[1] != ".",
    ),
    ({"caption": "number 5"}, lambda record: record.fields.get("caption") == "number 5"),
    ({"boxes.count": {"$gt": 2}}, lambda record: record.fields.get("boxes", {}).get("count", 0) > 2),
    ({"$or": [{"label": 1}, {"width": 100}]}, lambda record: record.label == 1 or record.width == 100),
    ({"$expr": {"$eq": [{"$mod": ["$width", 5]}, 0]}}, lambda record: (record.width or 0) % 5 == 0),
    ({"_id": {"$lt": 4}}, lambda record: int(str(record.name)[:-2]) < 4),
    ({"format": "RAW", "label": {"$ne": 0}}, lambda record: record.label != 0),
    ({}, lambda record: True),
    ({"label": 99}, lambda record: False),
    ({"store": {"$exists": True}}, lambda record: False),  # the document beside the records that names their store
]


@finds_none
@pytest.mark.parametrize(("query", "wanted"), QUERIES, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_query_is_the_subset_of_the_records_that_it_finds_in_their_order(
    place: str, query: dict[str, Any], wanted: Callable[[Record], bool]
) -> None:
    indices = [index for index in range(LENGTH) if wanted(record_of(index))]
    with MongoDataset(place, decode=None, query=query) as dataset:
        assert len(dataset) == len(indices)
        assert read_all(dataset) == [EXPECTED[index] for index in indices]
        assert dataset.targets.tolist() == [index % 7 for index in indices]
        assert list(dataset.names) == [f"{index}.x" for index in indices]
        assert list(dataset.samples) == [(f"{index}.x", index % 7) for index in indices]
        assert [dataset.record(position).index for position in range(len(indices))] == indices
        assert [dataset.find(f"{index}.x") for index in indices] == list(range(len(indices)))
        for index in (len(indices), -len(indices) - 1):
            with pytest.raises(RecordIndexError, match=rf"no record {index} in .*, which has {len(indices)}$"):
                dataset[index]
        if indices:
            assert dataset[-1] == EXPECTED[indices[-1]]
            assert dataset.record(-1).index == indices[-1]
        for index in set(range(LENGTH)) - set(indices):
            with pytest.raises(RecordNotFoundError, match=rf"named '{index}\.x' is not one of the query's"):
                dataset.find(f"{index}.x")
            break


@pytest.mark.parametrize(
    "query",
    [
        {"label": {"$in": [3, 5]}},
        {"name": "17.x"},
        {"label": {"$in": [3, 5]}, "width": {"$gte": 110}},
        {"width": {"$gte": 110}, "height": 50},
        {"_id": {"$lt": 4}},
        {},
    ],
    ids=str,
)
def test_a_query_about_columns_reads_no_record(mongod: Mongod, mongod_uri: str, query: dict[str, Any]) -> None:
    make(mongod_uri)
    at = parse(mongod_uri)
    with MongoDataset(mongod_uri, query=query) as dataset, mongod.client() as client:
        client[at.database].command("profile", 2)
        dataset.refresh()
        client[at.database].command("profile", 0)
        (asked,) = [
            entry
            for entry in client[at.database].system.profile.find({"command.projection": {"_id": 1}})
            if "$and" in entry["command"]["filter"]
        ]
        assert asked["nreturned"] == len(dataset)
        assert asked["docsExamined"] == 0, asked["planSummary"]


def test_finding_a_name_counts_the_records_only_where_it_finds_none(mongod: Mongod, mongod_uri: str) -> None:
    with create_store(mongod_uri) as writer:
        writer.write(encode(Record(name=name, label=label)) for label, name in enumerate("aabbc"))
        writer.finish()
    with MongoDataset(mongod_uri, decode=None, query={"label": {"$in": [1, 2, 4]}}) as dataset:
        with mongod.fail_point("aggregate", error_code=13, times=None) as count:
            assert [dataset.find(name) for name in "abc"] == [0, 1, 2]  # of "a", the first is not the query's
            assert count() == 0
        with pytest.raises(RecordNotFoundError, match=r"no record of .* is named 'd'"):
            dataset.find("d")
        with mongod.client() as client:
            records_of(client, mongod_uri).delete_one({"_id": 4})
        with pytest.raises(DamagedStoreError, match="has 4 records, and 5 were written"):
            dataset.find("c")


def test_a_query_of_nothing_but_a_field_that_no_record_has_finds_none(place: str) -> None:
    with pytest.warns(UserWarning, match=r"^no record of .* is found by the query \{'nothing': 1\}$") as caught:
        dataset = MongoDataset(place, query={"nothing": 1})
    assert caught[0].filename == __file__
    with dataset:
        assert len(dataset) == 0
        with pytest.raises(OptionError, match="dataset must have samples, got MongoDataset of length 0"):
            create_loader(dataset, batch_size=4)


def test_a_refresh_that_finds_nothing_warns(mongo_uri: str) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, query={"caption": "number 5"}) as dataset:
        with pymongo.MongoClient[Any](mongo_uri) as client:
            records_of(client, mongo_uri).update_one({"_id": 5}, {"$set": {"caption": "number 6"}})
        with pytest.warns(UserWarning, match="is found by the query {'caption': 'number 5'}"):
            dataset.refresh()
        assert len(dataset) == 0


def test_the_digest_tells_other_records_of_the_query(place: str) -> None:
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


def test_a_loaders_state_of_another_query_is_refused(place: str) -> None:
    def loader_of(label: int) -> Any:
        dataset = MongoDataset(place, query={"label": label}, decode=None)
        return create_loader(dataset, batch_size=2, collate_fn=list, num_workers=0, **AS_STORED)

    one, same, other = loader_of(4), loader_of(4), loader_of(5)
    assert len(one.dataset) == len(other.dataset)
    next(iter(one))
    same.load_state_dict(one.state_dict())
    assert same.state_dict() == one.state_dict()
    with pytest.raises(OptionError, match="the state is of another dataset"):
        other.load_state_dict(one.state_dict())
    for loader in (one, same, other):
        loader.dataset.close()


@pytest.mark.parametrize(
    "query",
    [{"$nonsense": 1}, {"label": {"$inn": [1]}}, {"label": {"$in": 3}}, {"$where": 3}, {"name": {"$regex": "("}}],
    ids=str,
)
def test_a_query_that_the_server_does_not_understand_is_one_clear_error(place: str, query: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=rf"^{re.escape(parse(place).redacted)}: .{{5,200}}$"):
        MongoDataset(place, query=query)


@pytest.mark.parametrize("query", [{"label": np.int64(3)}, {"label": {"$in": {3}}}, {3: 4}, "label", [("label", 3)]])
def test_a_query_that_cannot_be_sent_is_refused(place: str, query: Any) -> None:
    with pytest.raises(OptionError, match=r"^query must be one of MongoDB's, of Python's own "):
        MongoDataset(place, query=query)


def test_a_query_is_what_it_was_when_the_dataset_was_made(place: str) -> None:
    query = {"label": {"$in": [3]}}
    with MongoDataset(place, query=query) as dataset:
        query["label"]["$in"].append(5)
        dataset.refresh()
        assert dataset.query == {"label": {"$in": [3]}}
        assert set(dataset.targets.tolist()) == {3}


def test_the_index_among_the_fields_is_that_in_the_store(place: str) -> None:
    with MongoDataset(place, fields=("index", "caption"), query={"label": 3}) as dataset:
        assert read_all(dataset) == [
            {"index": 3, "caption": "number 3"},
            {"index": 10, "caption": None},
            {"index": 17, "caption": "number 17"},
        ]


def test_a_name_that_several_records_have_is_found_among_those_of_the_query(mongo_uri: str) -> None:
    write_store([Record(f"{index % 2}", index, b"") for index in range(6)], mongo_uri)
    with MongoDataset(mongo_uri, query={"label": {"$gte": 3}}) as dataset:
        assert dataset.store.find("0") == 0
        assert (dataset.find("1"), dataset.find("0")) == (0, 1)
        assert dataset.record(1).name == "0"


def test_the_repr_tells_the_query(place: str) -> None:
    with MongoDataset(place, query={"label": {"$in": [3, 5]}}) as dataset:
        assert repr(dataset).splitlines() == [
            "Dataset MongoDataset",
            "    Number of datapoints: 6",
            f"    Root location: {parse(place).redacted}",
            "    Classes: 7",
            "    Query: {'label': {'$in': [3, 5]}} (6 of 24 records)",
        ]


def test_a_query_is_answered_before_it_goes_to_workers(mongo_uri: str) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, decode=None, query={"caption": {"$exists": True}}) as dataset:
        with pymongo.MongoClient[Any](mongo_uri) as client:
            # Another would now find other records; the bytes of one matter only when that one is read.
            records_of(client, mongo_uri).update_one({"_id": 2}, {"$set": {"caption": "new"}})
        assert in_worker(dataset) == EXPECTED[1::2]
        with pickle.loads(pickle.dumps(dataset)) as sent:  # noqa: S301 - our own: what a spawned worker gets
            assert read_all(sent) == EXPECTED[1::2]
        with MongoDataset(mongo_uri, query=dataset.query) as now:
            assert len(now) == len(dataset) + 1
            assert now.content_digest != dataset.content_digest


# Stores that are replaced


def test_refresh_takes_in_what_the_query_finds_now(mongo_uri: str) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, query={"caption": "number 5"}) as dataset:
        before = dataset.content_digest
        assert dataset.targets.tolist() == [5]
        with pymongo.MongoClient[Any](mongo_uri) as client:
            records_of(client, mongo_uri).update_one({"_id": 9}, {"$set": {"caption": "number 5"}})
        assert len(dataset) == 1
        dataset.refresh()
        assert (len(dataset), dataset.targets.tolist(), list(dataset.names)) == (2, [5, 2], ["5.x", "9.x"])
        assert dataset.content_digest != before


@pytest.mark.parametrize(("query", "length"), [(None, 40), ({"label": {"$lt": 2}}, 10)])
def test_refresh_takes_in_a_store_that_has_come_to_the_place(
    mongo_uri: str, length: int, query: dict[str, Any] | None
) -> None:
    make(mongo_uri)
    classes = [name.upper() for name in CLASSES]

    def expected(count: int) -> list[Any]:
        return [(data_of(index), index % 7) for index in range(count) if query is None or index % 7 < 2]

    with MongoDataset(mongo_uri, decode=None, query=query) as dataset:
        assert len(dataset.targets) == len(dataset.names) == len(expected(LENGTH))
        make(mongo_uri, length, overwrite=True, classes=classes)
        assert read_all(dataset) == expected(LENGTH)  # as it was
        assert dataset.classes == list(CLASSES)
        dataset.refresh()
        assert read_all(dataset) == expected(length)
        assert dataset.classes == classes
        assert len(dataset) == len(dataset.targets) == len(dataset.names) == len(expected(length))
        assert dataset.content_digest.startswith(dataset.manifest.digest)
        assert [label for _, label in expected(length)] == dataset.targets.tolist()
        assert in_worker(dataset) == expected(length)


def test_a_refresh_that_fails_leaves_the_dataset_as_it_was(mongo_uri: str) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, fields=("caption",), query={"label": 3}) as dataset:
        digest, targets = dataset.content_digest, dataset.targets
        write_store([Record("another", 3, b"")] * 2, mongo_uri, overwrite=True)
        with pytest.raises(OptionError, match="has a field 'caption'"):
            dataset.refresh()
        assert (dataset.content_digest, dataset.targets is targets) == (digest, True)
        assert dataset[0] == {"caption": "number 3"}  # of the store that was replaced


def first_bytes(batches: Any) -> list[int]:
    return [data[0] for batch in batches for data in batch[0]]


def collated(samples: list[Any]) -> list[Any]:
    return [[image for image, _ in samples], [label for _, label in samples]]


@pytest.mark.parametrize(
    ("kind", "replaced"),
    [
        ("create_loader, processes", True),
        ("create_loader, none", False),
        ("threads", True),
    ],
)
def test_an_epoch_goes_on_with_what_it_began_with(mongo_uri: str, kind: str, replaced: bool) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, decode=bytes, query={"caption": {"$exists": True}}) as dataset:
        loader: Any
        if kind == "threads":
            loader = PrefetchLoader(thread_loader(dataset, 2, num_workers=2, collate_fn=collated), depth=0)
        else:
            workers: Any = kind.split(", ")[1].replace("none", "threads")
            options: dict[str, Any] = {
                **AS_STORED,
                "collate_fn": collated,
                "worker_type": workers,
                "prefetch_factor": 1,
            }
            loader = create_loader(dataset, batch_size=2, num_workers=0 if "none" in kind else 2, **options)
        epoch = iter(loader)
        # One of each worker: one that opens the store later finds another, and says so.
        first = [next(epoch), next(epoch)]
        if replaced:
            with create_store(mongo_uri, overwrite=True) as writer:
                writer.write(
                    encode(Record(f"new {n}", 1, b"\xff" * 9, fields={"caption": "x"})) for n in range(LENGTH + 9)
                )
                writer.finish(classes=CLASSES)
        else:
            with pymongo.MongoClient[Any](mongo_uri) as client:
                records_of(client, mongo_uri).update_one({"_id": 2}, {"$set": {"caption": "new"}})
        dataset.refresh()
        assert first_bytes([*first, *epoch]) == list(range(1, LENGTH, 2))
        assert len(dataset) == (LENGTH + 9 if replaced else LENGTH // 2 + 1)
        if replaced and kind == "threads":  # the next one takes what the dataset has then
            assert first_bytes(loader) == [255] * (LENGTH + 9)
        if hasattr(loader, "close"):
            loader.close()
        del epoch, loader


def test_datasets_made_before_and_after_a_store_was_replaced_keep_apart(mongo_uri: str) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, decode=None) as old:
        write_store([Record(f"new {index}", 0, b"new") for index in range(5)], mongo_uri, overwrite=True)
        with MongoDataset(mongo_uri, decode=None) as new:
            assert (len(old), len(new)) == (LENGTH, 5)
            for _ in range(2):
                assert read_all(old) == EXPECTED
                assert read_all(new) == [(b"new", 0)] * 5
            assert (old.names[1], new.names[1]) == ("1.x", "new 1")
            assert (old.find("1.x"), new.find("new 1")) == (1, 1)
            for dataset, name in ((old, "new 1"), (new, "1.x")):
                with pytest.raises(RecordNotFoundError, match=f"is named '{name}'"):
                    dataset.find(name)


# Stores that are damaged on the server


def damaged(place: str, change: Callable[[Any], object]) -> None:
    make(place)
    with pymongo.MongoClient[Any](place) as client:
        change(records_of(client, place))


@pytest.mark.parametrize(
    ("change", "query", "message"),
    [
        (lambda it: it.delete_many({"_id": {"$gte": 9}}), {"width": {"$gte": 0}}, "has 9 records, and 24 were written"),
        (lambda it: it.delete_one({"_id": 3}), {"label": 3}, "has 2 records of label 3, and 3 were written"),
        (lambda it: it.update_one({"_id": 3}, {"$set": {"label": Int64(4)}}), {"label": 3}, "has 2 records of label 3"),
        (lambda it: it.update_one({"_id": 3}, {"$set": {"label": "3"}}), {"label": 3}, "has 2 records of label 3"),
        (lambda it: it.update_one({"_id": 3}, {"$unset": {"label": 1}}), {"label": {"$ne": 9}}, "records of label 3"),
        (lambda it: it.insert_one({"_id": 3.5, "label": 9}), {"label": 9}, "labels that no record was written with: 9"),
        (lambda it: it.insert_one({"_id": 3.5, "caption": "a"}), {"caption": "a"}, "has 25 records, and 24 were"),
        (lambda it: it.drop(), {"label": 9}, "its collection of records is gone"),
    ],
    ids=["lost", "one lost", "edited", "another type", "no label", "another label", "another _id", "all"],
)
def test_a_query_of_a_damaged_store_is_never_silently_shorter(
    mongo_uri: str, change: Callable[[Any], object], query: dict[str, Any], message: str
) -> None:
    damaged(mongo_uri, change)
    with pytest.raises(DamagedStoreError, match=message):
        MongoDataset(mongo_uri, query=query)


def test_an_id_that_no_record_has_is_not_taken_for_one(mongo_uri: str) -> None:
    def change(records: Any) -> None:
        records.insert_one({**records.find_one_and_delete({"_id": 3}), "_id": 3.5})

    damaged(mongo_uri, change)
    with MongoDataset(mongo_uri, decode=None) as dataset:
        with pytest.raises(DamagedStoreError, match=r"has a document with the _id 3\.5, which no record has"):
            dataset.find("3.x")
        with pytest.raises(DamagedRecordError, match=r"record 3 \(3\.x\) of .* is damaged: it is missing"):
            dataset[3]
    for query in ({"caption": "number 3"}, {"name": "3.x"}, {"label": 3}):
        with pytest.raises(DamagedStoreError, match=r"_id 3\.5, which no record has"):
            MongoDataset(mongo_uri, query=query)


def test_a_copy_without_indexes_is_queried_all_the_same(mongo_uri: str) -> None:
    make(mongo_uri)
    query = {"label": 3, "width": {"$gte": 0}}
    with MongoDataset(mongo_uri, query=query) as dataset:
        before = dataset.content_digest
    with pymongo.MongoClient[Any](mongo_uri) as client:
        records_of(client, mongo_uri).drop_indexes()
    with MongoDataset(mongo_uri, query=query) as dataset:
        assert dataset.content_digest == before
        assert dataset.store.find("3.x") == 3
