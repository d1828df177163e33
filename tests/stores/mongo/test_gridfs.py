"""Records that exceed the size limit of a document are read back unchanged, and their damage is detected."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from bson.int64 import Int64

from dbloader import MongoDataset, Record, open_store
from dbloader.errors import DamagedRecordError, DamagedStoreError
from dbloader.records.record import encode
from dbloader.stores.mongo import partial
from dbloader.stores.mongo.gridfs import LargeRecords
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, stored, write, write_nothing, write_one_by_one
from tests.support.mongo import Mongod, Server
from tests.support.mongo_stores import check_alone, database_of, fault, records_in, write_through_fault

MAX_ON_SERVER = 16 * 2**20  # the limit of the server and of docs/format.md
# With the limit that `_small_limit` sets, each record has three chunks in GridFS.
LARGE = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(5)]


@pytest.fixture
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "MAX_ON_SERVER", 10_000)


@pytest.mark.slow
def test_large_records_are_read_back_unchanged(mongo_server: Server, mongo_uri: str) -> None:
    fits = Record(name="fits", label=1)
    fits.image = bytes(MAX_ON_SERVER - len(encode(Record(name="fits", label=1, image=b"")).document(1, 0)))
    over = Record(name="over", label=1, image=bytes(len(fits.image) + 1))
    huge = Record(name="huge", label=2, image=random.Random(3).randbytes(20 * 2**20), width=5, fields={"caption": "c"})
    records = [Record(name="a", image=b"a"), fits, over, huge, Record(name="z", label=2, fields={"caption": "d"})]
    documents = documents_of(records)
    assert len(documents[1]) == MAX_ON_SERVER
    write(mongo_uri, records)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        assert database[f"{records_in(database).name}.large.files"].count_documents({}) == 2
        assert stored(store, [3, 1, 2, 3]) == [documents[index] for index in (3, 1, 2, 3)]
        assert [record.name for record in store.read([4, 2, 3])] == ["z", "over", "huge"]
        assert store.read([3])[0].fields == {"caption": "c"}
        assert (store.find("huge"), store.name(3)) == (3, "huge")
        assert store.verify() == store.manifest.digest
        queries: dict[int, Any] = {3: {"caption": "c"}, 4: {"caption": {"$ne": "c", "$exists": True}}}
        for index, query in queries.items():  # queries find their fields as in other records
            with MongoDataset(mongo_uri, query=query, decode=None, fields=("index", "image")) as dataset:
                assert [(sample["index"], sample["image"]) for sample in dataset.__getitems__([0])] == [
                    (index, records[index].image)
                ]
        # The GridFS files are removed with their store.
        write(mongo_uri, records[:1], overwrite=True)
        assert stored(store, [3]) == documents[3:4]
        write_nothing(mongo_uri, overwrite=True)
        check_alone(database)


def test_stub_over_16_mib_lacks_the_largest_field(mongo_server: Server, mongo_uri: str) -> None:
    fields = {"small": "x", "mask": bytes(MAX_ON_SERVER), "other": bytes(2**20)}
    records = [Record(name="a", label=3, image=b"image", fields=fields)]
    write(mongo_uri, records)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        assert list(records_in(database).find_one({"small": "x"})) == [
            "_id", "gridfs", "name", "label", "small", "other", "crc32"
        ]  # fmt: skip
        assert stored(store, [0]) == documents_of(records)
        assert store.verify() == store.manifest.digest


@pytest.mark.usefixtures("_small_limit")
def test_damaged_large_record_raises(mongo_server: Server, mongo_uri: str) -> None:
    write(mongo_uri, LARGE)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        large = f"{records_in(database).name}.large"
        files = sorted(database[f"{large}.files"].distinct("_id"))
        chunks = database[f"{large}.chunks"]
        chunks.delete_one({"files_id": files[1], "n": 1})
        database[f"{large}.files"].delete_one({"_id": files[2]})
        middle = chunks.find_one({"files_id": files[3], "n": 1})
        assert middle
        chunks.update_one({"_id": middle["_id"]}, {"$set": {"data": middle["data"][:-1] + b"!"}})
        for index, what in ((1, "it is incomplete in GridFS"), (2, "it is missing in GridFS"), (3, "its CRC-32 is")):
            for use in (lambda: store.read([0, index]), lambda: store[index]):  # noqa: B023 - called here
                with pytest.raises(DamagedRecordError, match=rf"^record {index} \({index}\) of \S+ is damaged: {what}"):
                    use()
        with pytest.raises(DamagedRecordError, match="record 1"):
            store.verify()
        assert stored(store, [0, 4]) == [documents_of(LARGE)[index] for index in (0, 4)]
        for change in ({"$set": {"chunkSize": 0}}, {"$set": {"length": "abc"}}, {"$unset": {"length": ""}}):
            database[f"{large}.files"].update_one({"_id": files[0]}, change)
            with pytest.raises(DamagedRecordError, match=r"^record 0 .* is damaged: "):
                store.read([0])


@pytest.mark.usefixtures("_small_limit")
def test_edited_field_of_large_record_raises(mongo_server: Server, mongo_uri: str) -> None:
    fields: dict[str, Any] = {"caption": "y", "score": float("nan"), "none": None, "boxes": [[1, 1.5], []]}
    fields |= {"nested": {"b": 1, "a": {"b": 2, "flag": True}}, "mask": np.arange(6.0).reshape(2, 3), "big": 2**40}
    pixels = np.zeros((400, 500, 3), np.uint8)
    write(mongo_uri, [Record(name="a", label=2, image=pixels, fields=fields)])
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        assert store.verify() == store.manifest.digest
        np.testing.assert_array_equal(store[0].image, pixels)
        records = records_in(database)
        stub = records.find_one({})
        for change in (
            {"$set": {"label": Int64(3)}},
            {"$set": {"caption": "x"}},
            {"$rename": {"caption": "other"}},
            {"$unset": {"boxes.0": ""}},
            {"$set": {"nested.a.b": 2.0}},
        ):
            assert records.update_one({"_id": 0}, change).modified_count == 1
            with pytest.raises(
                DamagedRecordError, match=r"^record 0 \(a\) of \S+ is damaged: its document disagrees with its file"
            ):
                store.verify()
            records.replace_one({"_id": 0}, stub)


@pytest.mark.usefixtures("_small_limit")
@pytest.mark.parametrize("change", ["lost entry", "lost chunk", "another record's file"])
def test_store_with_lost_large_record_is_not_published(mongo_server: Server, mongo_uri: str, change: str) -> None:
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, LARGE[:1])
        writer.commit()
        with database_of(mongo_server, mongo_uri) as database:
            records = records_in(database)
            if change == "lost entry":
                database[f"{records.name}.large.files"].delete_one({})
            elif change == "lost chunk":
                database[f"{records.name}.large.chunks"].delete_one({"n": 1})
            else:  # a complete file with the same index, as another writer can leave
                other = LargeRecords(database, *records.name.split(".")).put(0, *documents_of(LARGE[1:2], writer.salt))
                assert records.update_one({"_id": 0}, {"$set": {"gridfs": other}}).modified_count == 1
        with pytest.raises(DamagedStoreError, match=r"record 0 in GridFS is missing or differs"):
            writer.finish()


@pytest.mark.slow
@pytest.mark.usefixtures("_small_limit")
@pytest.mark.parametrize(("code", "skip"), [(None, 2), pytest.param(9001, 4, marks=pytest.mark.nightly)])
def test_large_record_survives_temporary_errors(mongod: Mongod, mongod_uri: str, code: int | None, skip: int) -> None:
    write(mongod_uri, [])
    fails: Any = {"close_connection": code is None, "error_code": code}
    write_through_fault(mongod, mongod_uri, LARGE, "insert", "delete", skip=skip, **fails)
    with open_store(mongod_uri) as store:
        assert store.verify() == store.manifest.digest
        with database_of(mongod, mongod_uri) as database:
            files = database[f"{records_in(database).name}.large.files"]
            assert files.count_documents({}) >= 5  # an interrupted attempt leaves its own file
        for code_of_reads in (None, 43, 91):
            with fault(mongod, "find", code=code_of_reads, times=2):
                assert stored(store, range(5)) == documents_of(LARGE)
