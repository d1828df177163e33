"""Writing survives failures of servers and connections, and a conversion that fails can be resumed."""

from __future__ import annotations

import functools
import time
from contextlib import ExitStack, suppress
from typing import Any

import pymongo
import pytest
from bson.int64 import Int64
from pymongo.database import Database
from pymongo.monitoring import CommandStartedEvent

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError, StoreError, StoreFullError, StoreUnreachableError
from dbloader.stores.mongo import connection
from dbloader.stores.mongo.catalog import Catalog
from dbloader.stores.open import create_store
from tests.contracts.records import (
    check_is,
    check_resumes,
    documents_of,
    make_records,
    write,
    write_one_by_one,
    write_partial,
)
from tests.support.mongo import Mongod, ReplicaSet, Server
from tests.support.mongo_stores import (
    StartListener,
    database_of,
    insert_late,
    paused,
    records_in,
    wait_for_all_members,
    write_through_fault,
)

RECORDS = make_records(60)


@pytest.fixture(autouse=True)
def _many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 1000)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of an LMDB store that contains RECORDS."""
    with create_store(tmp_path_factory.mktemp("writer") / "store.lmdb") as writer:
        write_one_by_one(writer, RECORDS)
        return writer.finish().digest


class WritesOfPlace(StartListener):
    """Records the write concern of each write to the manifest collection, and the fields that the write sets."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "update" and event.command["update"] == "store.manifest":
            for one in event.command["updates"]:
                self.seen.append(([*one["u"].get("$set", one["u"])], event.command["writeConcern"]))


def test_commit_and_publication_wait_for_majority_and_journal(mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = WritesOfPlace()
    monkeypatch.setattr(pymongo, "MongoClient", functools.partial(pymongo.MongoClient, event_listeners=[listener]))
    # Another appName, because an existing client would lack the listener.
    write(f"{mongo_uri}{'&' if '?' in mongo_uri else '?'}appName=other", RECORDS[:2])
    durable = [fields for fields, concern in listener.seen if concern == {"w": "majority", "j": True}]
    assert ["partial.progress"] in durable
    assert ["store", "manifest"] in durable
    assert {concern["w"] for _, concern in listener.seen} == {"majority"}


@pytest.mark.parametrize("skip", [1, 11, *(pytest.param(n, marks=pytest.mark.nightly) for n in (5, 17, 29))])
def test_writing_survives_failures_at_any_step(mongod: Mongod, mongod_uri: str, digest: str, skip: int) -> None:
    commands = ("find", "insert", "update", "delete", "createIndexes", "drop", "getMore", "aggregate", "distinct")
    write(mongod_uri, RECORDS[:2])
    write_through_fault(mongod, mongod_uri, RECORDS, *commands, skip=skip, close_connection=True)
    check_is(mongod_uri, RECORDS, digest)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["commit", "finish"])
def test_conversion_resumes_after_its_server_was_down(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, digest: str, at: str
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(connection, "SELECTION_SECONDS", 0.3)

    def write_on() -> None:
        with create_store(mongod_uri, resumable=True) as writer:
            write_one_by_one(writer, RECORDS[:40] if at == "commit" else RECORDS)
            writer.commit()
            mongod.kill()
            write_one_by_one(writer, RECORDS)
            writer.finish()

    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=r"^the server of .*store did not answer in time \(.*refused"):
        write_on()
    assert time.monotonic() - began < 10
    mongod.start()
    check_resumes(mongod_uri, RECORDS, [40 if at == "commit" else 60], digest)


@pytest.mark.parametrize("resumable", [False, True])
def test_full_disk_raises_and_keeps_commits(mongod: Mongod, mongod_uri: str, digest: str, resumable: bool) -> None:
    def write_on() -> None:
        with create_store(mongod_uri, resumable=resumable) as writer:
            write_one_by_one(writer, RECORDS[:20])
            writer.commit()
            with mongod.fail_point("insert", times=None, error_code=14031):
                write_one_by_one(writer, RECORDS[:40])
                writer.commit()

    with pytest.raises(StoreFullError, match=r"^no room is left for mongodb://.*store: "):
        write_on()
    check_resumes(mongod_uri, RECORDS, [20 if resumable else 0], digest)


@pytest.mark.parametrize("missing", [0, 1])
def test_commit_needs_free_space_of_twice_its_size_and_16_mb(
    mongo_uri: str, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """A server exits when its disk is full. Small disks cannot hold a server, so this test fakes the free space."""
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 2**30)
    room = 2 * sum(map(len, documents_of(RECORDS))) + 16 * 2**20 - missing
    command = Database.command

    def with_room(database: Database[Any], name: Any, *arguments: Any, **options: Any) -> Any:
        answer = command(database, name, *arguments, **options)
        return {**answer, "fsTotalSize": room, "fsUsedSize": 0} if name == "dbStats" else answer

    monkeypatch.setattr(Database, "command", with_room)
    if missing:
        with pytest.raises(StoreFullError, match=r"the disk of the server has .* left"):
            write(mongo_uri, RECORDS)
    else:
        write(mongo_uri, RECORDS)
        check_is(mongo_uri, RECORDS)


@pytest.mark.slow
def test_conversion_with_w_1_fails_if_confirmed_writes_are_lost(
    three_members: ReplicaSet, three_members_uri: str
) -> None:
    primary = three_members.primary

    def write_on() -> None:
        with create_store(f"{three_members_uri}&w=1") as writer:
            write_one_by_one(writer, RECORDS[:20])
            writer.commit()
            wait_for_all_members(three_members, three_members_uri)
            with ExitStack() as stack:
                for member in three_members.members:
                    if member is not primary:
                        stack.enter_context(paused(member, "stopReplProducer"))
                write_one_by_one(writer, RECORDS[:40])
                writer.commit()  # the primary confirms this write, and no other member has it
                primary.kill()
            write_one_by_one(writer, RECORDS)
            writer.finish()

    with pytest.raises(DamagedStoreError, match="is damaged: records on the server are missing or differ from the"):
        write_on()
    with open_store(three_members_uri) as store, pytest.raises(StoreError, match="does not exist"):
        len(store)


@pytest.mark.parametrize("change", ["missing", "other", "report"])
def test_store_with_lost_record_or_report_line_is_not_published(
    mongo_server: Server, mongo_uri: str, change: str
) -> None:
    def write_on() -> None:
        with create_store(mongo_uri) as writer, database_of(mongo_server, mongo_uri) as database:
            write_one_by_one(writer, RECORDS)
            writer.commit()
            if change == "missing":
                records_in(database).delete_one({"_id": 17})
            elif change == "other":
                records_in(database).update_one({"_id": 17}, {"$set": {"crc32": Int64(5)}})
            else:
                assert database["store.manifest"].delete_one({"_id": {"$regex": "/event/"}}).deleted_count
            writer.finish()

    lost = "lines of its report are" if change == "report" else "records on the server are"
    with pytest.raises(DamagedStoreError, match=f"is damaged: {lost} missing .*; begin again"):
        write_on()
    with open_store(mongo_uri) as store, pytest.raises(StoreError, match="store"):
        len(store)


def test_leftovers_of_other_writers_are_replaced_or_removed(mongo_server: Server, mongo_uri: str) -> None:
    records = RECORDS[:3]
    write_partial(mongo_uri, records[:1])
    with database_of(mongo_server, mongo_uri) as database:
        insert_late(database, {1: documents_of(make_records(3, seed=4))[1], 3: documents_of(RECORDS)[3]})
        store = records_in(database).name.removeprefix("store.")
        for number in (0, 2):
            key = f"{store}/event/{number:016x}"
            database["store.manifest"].insert_one({"_id": key, "event": {}, "run": 1})
        write(mongo_uri, records, resume=True)
        check_is(mongo_uri, records)
        assert records_in(database).count_documents({}) == 3
        assert database["store.manifest"].count_documents({"_id": {"$regex": "/event/"}}) == 2


@pytest.mark.parametrize(("value", "columns"), [(["no", "number"], {}), (0.5, {"x": "float"})])
def test_store_resumed_with_other_records_after_an_interrupted_commit_is_intact(
    mongo_uri: str, monkeypatch: pytest.MonkeyPatch, value: Any, columns: dict[str, str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("killed")

    numbers = [Record(fields={"x": number}) for number in range(3)]
    write_partial(mongo_uri, numbers)
    with monkeypatch.context() as patch, suppress(RuntimeError):
        patch.setattr(Catalog, "commit", fail)
        write_partial(mongo_uri, [*numbers, Record(fields={"x": value})], resume=True)
    write(mongo_uri, [*numbers, Record(fields={"x": 3})], resume=True)
    with open_store(mongo_uri) as store:
        assert store.manifest.columns == columns
        assert store.verify() == store.manifest.digest
