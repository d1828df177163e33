"""What servers, connections and other writers do to a store in MongoDB, and that nothing is lost, doubled or mixed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.timestamp import Timestamp

from dbloader import Record, create_store, open_store
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    FieldError,
    NotAStoreError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreLockedError,
    StoreUnreachableError,
)
from dbloader.records.columns import CHUNK
from dbloader.records.record import encode
from dbloader.stores.mongo import catalog as catalog
from dbloader.stores.mongo import clients, connection, lease
from dbloader.stores.mongo.schema import MAX_ON_SERVER, is_own_collection, record_file
from dbloader.stores.mongo.uri import parse
from tests.contracts.store import documents_of, make_records, small_records, write_one_by_one
from tests.support.mongo import Proxy, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.database import Database

    from tests.support.mongo import Mongod, ReplicaSet, Server

WAIT_S = 60.0
PASSING = (6, 89, 91, 262, 9001, 10107, 11600)
RECORDS = make_records(60)


@pytest.fixture(autouse=True)
def _many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 1000)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of an LMDB store of RECORDS."""
    with create_store(tmp_path_factory.mktemp("faults") / "store.lmdb") as writer:
        write_one_by_one(writer, RECORDS)
        return writer.finish().digest


def big_records(count: int = 24) -> list[Record]:
    """Several answers' worth."""
    return [Record(name=f"{number}", image=random.Random(number).randbytes(2**20)) for number in range(count)]


def write(place: str, records: list[Record], **options: bool) -> None:
    with create_store(place, **options) as writer:
        write_one_by_one(writer, records)
        writer.finish()


def check_is(place: str, records: list[Record], digest: str | None = None) -> None:
    with open_store(place) as store:
        assert store.documents(range(len(store))) == documents_of(records)
        assert store.verify() == store.manifest.digest
        assert digest in (None, store.manifest.digest)
        events = [event["reason"] for event in store.events()]
        assert events == [f"number {position}" for position in range(len(records)) if position % 3]


@contextmanager
def database_of(server: Server, place: str) -> Iterator[Database[Any]]:
    with server.client() as client:
        yield client[parse(place).database]


def fault(server: Mongod, *commands: str, code: int | None, times: int | None = 1) -> Any:
    return server.fail_point(*commands, times=times, error_code=code, close_connection=code is None)


# ---- Reading


@pytest.mark.parametrize("command", ["find", "getMore"])
def test_reading_survives_what_passes(mongod: Mongod, mongod_uri: str, command: str) -> None:
    records = big_records()
    write(mongod_uri, records)
    expected = documents_of(records)
    indices = [5, 23, 0, *range(24)]
    with open_store(mongod_uri) as store:
        len(store)
        for code in (None, 43, 175, 189, 11602, *PASSING):
            with fault(mongod, command, code=code, times=2) as count:
                assert [record.name for record in store.read(indices)] == [str(index) for index in indices]
            with fault(mongod, command, code=code, times=2) as count:
                assert store.documents(indices) == [expected[index] for index in indices]
                assert count() == (2 if command == "find" else 1)  # the rest is one answer


def test_after_a_cut_only_what_is_missing_is_asked_for_again(mongod: Mongod, mongod_uri: str) -> None:
    records = big_records(60)
    write(mongod_uri, records)
    with Proxy(mongod.port) as proxy, open_store(proxy.through(mongod_uri)) as store:
        len(store)

        def cut_often() -> None:
            for part in (33, 50):
                while proxy.bytes_to_client < part * 2**20 and not done.wait(0.001):
                    pass
                proxy.cut()

        done = threading.Event()
        cutter = threading.Thread(target=cut_often)
        cutter.start()
        try:
            assert store.documents(range(60)) == documents_of(records)
        finally:
            done.set()
            cutter.join()
        # An answer that was not whole comes again, not those before it.
        assert proxy.bytes_to_client < (60 + 2 * 17) * 2**20
        assert proxy.connections > 3


def test_an_epoch_survives_restarts_of_the_server(mongod: Mongod, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    expected = documents_of(RECORDS)
    with open_store(mongod_uri) as store:
        read = []
        for start in range(0, 60, 4):
            if start in (8, 24, 40):
                (mongod.kill if start == 24 else mongod.stop)()
                mongod.launch()
            read += store.documents(range(start, start + 4))
        assert read == expected
        mongod.kill()
        mongod.launch()
        assert list(store.names()) == [record.name or "" for record in RECORDS]
        mongod.restart()
        assert store.find(str(RECORDS[5].name)) == 5


def test_an_epoch_survives_elections(three_members: ReplicaSet, three_members_uri: str) -> None:
    write(three_members_uri, RECORDS)
    with open_store(three_members_uri) as store:
        read = []
        for start in range(0, 60, 4):
            if start == 12:
                three_members.step_down()
            if start == 36:
                three_members.kill_primary()
            read += store.documents(range(start, start + 4))
        assert read == documents_of(RECORDS)


def test_a_server_that_stays_away_is_one_clear_error(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(clients, "SELECTION_SECONDS", 0.3)
    with open_store(mongod_uri) as store:
        len(store)
        with (
            fault(mongod, "find", code=91, times=None),
            pytest.raises(StoreUnreachableError, match=r"^the server of .*store was away for too long \("),
        ):
            store.read([3])
        assert store.documents([3]) == documents_of(RECORDS)[3:4]
        mongod.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"was away for too long \(.*refused"):
            store.read([3])
        assert time.monotonic() - began < 3
        mongod.start()
        assert store.documents([3]) == documents_of(RECORDS)[3:4]


def test_a_failure_after_a_long_success_is_tried_again(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    with open_store(mongod_uri) as store:
        len(store)
        with mongod.fail_point("find", error_code=91, block_s=0.4):
            assert len(store.read([3])) == 1


def test_what_does_not_pass_is_not_tried_again(mongod: Mongod, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(mongod_uri) as store:
        len(store)
        for code, kind in ((8, StoreError), (13, PermissionError), (14031, StoreFullError)):
            with (
                mongod.fail_point("find", error_code=code, times=None) as count,
                pytest.raises(kind, match="store") as caught,
            ):
                store.read([3])
            assert type(caught.value) is not StoreFullError or code == 14031
            assert count() <= 2  # once more by the driver, at most


def test_a_lack_of_room_is_not_read_into_any_word(mongo_uri: str) -> None:
    from pymongo.errors import OperationFailure

    linked = connection.Connection(parse(mongo_uri))
    for text, kind in (
        ("namespace not found", StoreError),
        ("28: No space left on device", StoreFullError),
        ("you are over your space quota, using 513 MB of 512 MB", StoreFullError),
    ):
        assert type(linked.explained(OperationFailure(text, 26 if kind is StoreError else 8000))) is kind
    linked.close()


@pytest.mark.parametrize("both", [False, True], ids=["all", "some"])
def test_members_that_lag_behind_are_not_taken_for_damaged(
    three_members: ReplicaSet, three_members_uri: str, both: bool
) -> None:
    place = f"{three_members_uri}&w=1"
    secondaries = [member for member in three_members.members if member is not three_members.primary]
    with ExitStack() as stack, create_store(place) as writer:
        if both:
            write_one_by_one(writer, RECORDS[:30])
            writer.commit()
            with three_members.client() as client:  # all members have these
                client[parse(place).database].get_collection("other").with_options(
                    write_concern=all_of_three()
                ).insert_one({})
        for member in secondaries:
            stack.enter_context(paused_replication(member))
        write_one_by_one(writer, RECORDS)
        writer.finish()
        with open_store(f"{three_members_uri}&readPreference=secondary") as store:
            assert store.documents(range(60)) == documents_of(RECORDS)
            assert store.find(str(RECORDS[50].name)) == 50
            assert store.matching({"label": 1}).tolist() == [i for i, one in enumerate(RECORDS) if one.label == 1]  # type: ignore[attr-defined]
            assert store.verify() == store.manifest.digest
            assert len(list(store.events())) == 40


def all_of_three() -> Any:
    from pymongo.write_concern import WriteConcern

    return WriteConcern(3)


@contextmanager
def paused_replication(member: Mongod) -> Iterator[None]:
    with member.client() as client:
        client.admin.command("configureFailPoint", "rsSyncApplyStop", mode="alwaysOn")
    try:
        yield
    finally:
        with member.client() as client:
            client.admin.command("configureFailPoint", "rsSyncApplyStop", mode="off")


# ---- Stores that are replaced or renamed while they are read


def test_a_replaced_store_stays_readable_until_the_next_writer_removes_it(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_records(5, seed=1), make_records(7, seed=2)
    write(mongo_uri, old)
    with open_store(mongo_uri) as store, open_store(mongo_uri) as other:
        len(store)
        write(mongo_uri, new, overwrite=True)
        assert store.documents(range(5)) == documents_of(old)
        assert store.find(str(old[2].name)) == 2
        assert store.matching({"label": {"$gte": 0}}).tolist() == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
        assert store.verify() == store.manifest.digest
        len(other)
        with create_store(mongo_uri, overwrite=True):
            pass
        for use in (
            lambda: store.read([0]),
            lambda: store.find("a"),
            lambda: store.column("label"),
            store.names,
            lambda: list(store.events()),
        ):
            with pytest.raises(NotAStoreError, match=r"replaced or removed since it was opened, .*: open it again"):
                use()
        check_is(mongo_uri, new)
    with database_of(mongo_server, mongo_uri) as database:
        assert_alone(database)
        assert len(database["store.manifest"].distinct("_id")) == 1 + 7 + sum(number % 3 > 0 for number in range(7))


def assert_alone(database: Database[Any]) -> None:
    """Nothing is there but the store, its manifest and the view of it."""
    store = database["store.manifest"].find_one({"_id": "store"})
    assert store
    names = set(database.list_collection_names()) - {"system.views"}
    assert names == {"store", f"store.{store['store']}", "store.manifest"}


def test_the_name_of_the_place_is_a_view_of_the_store_that_is_there(mongo_server: Server, mongo_uri: str) -> None:
    with database_of(mongo_server, mongo_uri) as database:
        for records in (RECORDS[:3], RECORDS[:5], RECORDS[:4]):
            write(mongo_uri, records, overwrite=True)
            assert [found.get("name") for found in database["store"].find({}, {"name": 1})] == [
                record.name for record in records
            ]
            assert database["store"].find_one({"_id": 2})["label"] == records[2].label  # type: ignore[index]
        # Somebody else's collection of that name is left alone, and the store is read nevertheless.
        database.drop_collection("store")
        database["store"].insert_one({"precious": 1})
        write(mongo_uri, RECORDS[:6], overwrite=True)
        check_is(mongo_uri, RECORDS[:6])
        assert database["store"].count_documents({"precious": 1}) == 1


class Reader(threading.Thread):
    """Calls a function meanwhile."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error

    def result(self) -> Any:
        self.join(WAIT_S)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_records_that_are_gone_with_their_collection_are_told_so(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mongo_uri, RECORDS)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        len(store)
        database.drop_collection(records_of(database.client, mongo_uri))
        with pytest.raises(DamagedStoreError, match="its collection of records is gone; convert again"):
            store.read([1])


# ---- Writing


@pytest.mark.parametrize(
    "command", ["find", "insert", "update", "delete", "createIndexes", "listCollections", "collMod", "drop"]
)
def test_writing_survives_what_passes(mongod: Mongod, mongod_uri: str, digest: str, command: str) -> None:
    write(mongod_uri, RECORDS[:3])
    write(mongod_uri, RECORDS[:3], overwrite=True)  # so that there is something to drop
    for code in (None, 9001, 91) if command != "insert" else (None, *PASSING):
        with fault(mongod, command, code=code, times=2) as count:
            write(mongod_uri, RECORDS, overwrite=True)
            assert count() == 2
        check_is(mongod_uri, RECORDS, digest)


def test_writing_survives_failures_at_any_step(mongod: Mongod, mongod_uri: str, digest: str) -> None:
    commands = (
        "find",
        "insert",
        "update",
        "delete",
        "createIndexes",
        "collMod",
        "getMore",
        "aggregate",
        "distinct",
    )
    for skip in (1, 5, 11, 17, 29):
        with mongod.fail_point(*commands, skip=skip, close_connection=True):
            writing = Reader(lambda: write(mongod_uri, RECORDS, overwrite=True))
            time.sleep(0.1)
        writing.result()
        check_is(mongod_uri, RECORDS, digest)


def write_while_killing(member: Mongod, place: str) -> None:
    with create_store(place) as writer:
        for number in range(len(RECORDS)):
            if number in (0, 25, 59):
                member.kill()
                member.launch()
            write_one_by_one(writer, RECORDS[: number + 1])
            if number in (24, 40):
                writer.commit()
        member.kill()
        member.launch()
        writer.finish()


def test_writing_survives_kills_of_the_server(mongod: Mongod, mongod_uri: str, digest: str) -> None:
    write_while_killing(mongod, mongod_uri)
    check_is(mongod_uri, RECORDS, digest)


def test_writing_survives_kills_of_a_replica_set(replica_set: ReplicaSet, replica_set_uri: str, digest: str) -> None:
    write_while_killing(replica_set.members[0], replica_set_uri)
    check_is(replica_set_uri, RECORDS, digest)


def events_of(number: int) -> list[dict[str, str]]:
    return [{"name": f"{number}", "event": "repaired", "reason": f"number {number}"}] if number % 3 else []


def test_writing_survives_elections(three_members: ReplicaSet, three_members_uri: str, digest: str) -> None:
    with create_store(three_members_uri) as writer:
        for number, record in enumerate(RECORDS):
            if number == 20:
                three_members.step_down()
            if number == 45:
                three_members.kill_primary()
            writer.write([encode(record)], events=events_of(number), outcome={"repaired": len(events_of(number))})
        writer.finish()
    check_is(three_members_uri, RECORDS, digest)


@pytest.mark.parametrize("at", ["commit", "finish"])
def test_a_server_that_stays_away_leaves_what_can_be_resumed(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, digest: str, at: str
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(clients, "SELECTION_SECONDS", 0.3)

    def write_on() -> None:
        with create_store(mongod_uri, resumable=True) as writer:
            write_one_by_one(writer, RECORDS[:40] if at == "commit" else RECORDS)
            writer.commit()
            mongod.kill()
            write_one_by_one(writer, RECORDS)
            writer.finish()

    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=r"^the server of .*store was away for too long \(.*refused"):
        write_on()
    assert time.monotonic() - began < 10
    mongod.start()
    with create_store(mongod_uri, resume=True) as writer:
        assert writer.length == (40 if at == "commit" else 60)
        write_one_by_one(writer, RECORDS)
        writer.finish()
    check_is(mongod_uri, RECORDS, digest)


@pytest.mark.parametrize("resumable", [False, True])
def test_a_full_disk_is_told_and_loses_nothing_that_was_committed(
    mongod: Mongod, mongod_uri: str, digest: str, resumable: bool
) -> None:
    def write_on() -> None:
        with create_store(mongod_uri, resumable=resumable) as writer:
            write_one_by_one(writer, RECORDS[:20])
            writer.commit()
            with mongod.fail_point("insert", times=None, error_code=14031):
                write_one_by_one(writer, RECORDS[:40])
                writer.commit()

    with pytest.raises(StoreFullError, match=r"^no room is left for mongodb://.*store: "):
        write_on()
    with create_store(mongod_uri, resume=True) as writer:
        assert writer.length == (20 if resumable else 0)
        write_one_by_one(writer, RECORDS)
        writer.finish()
    check_is(mongod_uri, RECORDS, digest)


@pytest.mark.parametrize("again", [False, True], ids=["once", "with records that are there already"])
def test_a_store_whose_indexes_somebody_drops_meanwhile_is_written_all_the_same(
    mongo_server: Server, mongo_uri: str, digest: str, again: bool
) -> None:
    with create_store(mongo_uri) as writer, database_of(mongo_server, mongo_uri) as database:
        write_one_by_one(writer, RECORDS)
        writer.commit()
        mine: Any = writer
        database[f"store.{mine._id}"].drop_indexes()
        if again:
            mine._unfinished._insert(list(enumerate(documents_of(RECORDS))))
        writer.finish()
    check_is(mongo_uri, RECORDS, digest)


# ---- Large records


def large_records() -> list[Record]:
    rng = random.Random(3)
    fits = Record(name="fits", label=1)
    fits.image = bytes(MAX_ON_SERVER - len(encode(Record(name="fits", label=1, image=b"")).document(1)))
    over = Record(name="over", label=1, image=bytes(len(fits.image) + 1))
    return [
        Record(name="a", image=b"a"),
        fits,
        over,
        Record(name="huge", label=2, image=rng.randbytes(20 * 2**20), width=5, fields={"caption": "c"}),
        Record(name="z", label=2),
    ]


def test_records_over_the_limit_of_a_document_come_back_as_they_were(mongo_server: Server, mongo_uri: str) -> None:
    records = large_records()
    assert len(documents_of(records)[1]) == MAX_ON_SERVER
    write(mongo_uri, records)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        own = f"store.{store._open().store}"  # type: ignore[attr-defined]
        assert database[f"{own}.large.files"].count_documents({}) == 2
        assert store.documents([3, 1, 2, 3]) == [documents_of(records)[index] for index in (3, 1, 2, 3)]
        assert [record.name for record in store.read([4, 2, 3])] == ["z", "over", "huge"]
        assert store.read([3])[0].fields == {"caption": "c"}
        assert (store.find("huge"), store.name(3)) == (3, "huge")
        assert store.matching({"label": 2}).tolist() == [3, 4]  # type: ignore[attr-defined]
        assert store.verify() == store.manifest.digest
        # They go with their store.
        write(mongo_uri, RECORDS[:2], overwrite=True)
        assert store.documents([3]) == documents_of(records)[3:4]
        with create_store(mongo_uri, overwrite=True):
            pass
        assert_alone(database)


def test_damage_to_a_large_record_is_noticed(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(5)]
    write(mongo_uri, records)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        large = f"store.{store._open().store}.large"  # type: ignore[attr-defined]
        files = sorted(database[f"{large}.files"].distinct("_id"))
        chunks = database[f"{large}.chunks"]
        chunks.delete_one({"files_id": files[1], "n": 1})
        database[f"{large}.files"].delete_one({"_id": files[2]})
        middle = chunks.find_one({"files_id": files[3], "n": 1})
        assert middle
        chunks.update_one({"_id": middle["_id"]}, {"$set": {"data": middle["data"][:-1] + b"!"}})
        for index, what in ((1, "it is not whole in GridFS"), (2, "it is missing in GridFS"), (3, "its CRC-32 is")):
            for use in (lambda: store.read([0, index]), lambda: store[index]):  # noqa: B023 - called here
                with pytest.raises(DamagedRecordError, match=rf"^record {index} \({index}\) of \S+ is damaged: {what}"):
                    use()
        with pytest.raises(DamagedRecordError, match="record 1"):
            store.verify()
        assert store.documents([0, 4]) == [documents_of(records)[index] for index in (0, 4)]


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"label": Int64(3)}},
        {"$unset": {"name": ""}},
        {"$set": {"caption": "x"}},
        {"$unset": {"caption": ""}},
        {"$set": {"other": "x"}},
        {"$rename": {"caption": "other"}},
        {"$unset": {"boxes.0": ""}},
        {"$set": {"nested.a.b": 2.0}},
    ],
)
def test_fields_of_a_large_record_that_somebody_edits_are_noticed(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    fields: dict[str, Any] = {"caption": "y", "score": float("nan"), "none": None, "boxes": [[1, 1.5], []]}
    fields |= {"nested": {"b": 1, "a": {"b": 2, "flag": True}}, "mask": np.arange(6.0).reshape(2, 3), "big": 2**40}
    write(mongo_uri, [Record(name="a", label=2, image=bytes(600_000), fields=fields)])
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        assert store.verify() == store.manifest.digest
        changed = records_of(database.client, mongo_uri).update_one({"_id": 0}, change)
        assert changed.modified_count == 1
        with pytest.raises(
            DamagedRecordError, match=r"^record 0 \(a\) of \S+ is damaged: its fields among the records"
        ):
            store.verify()


@pytest.mark.parametrize("lost", ["files", "chunks"])
def test_a_store_whose_large_records_the_server_lost_is_not_published(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    with create_store(mongo_uri, resumable=True) as writer:
        writer.write([encode(Record(name=str(number), image=bytes(600_000))) for number in range(3)])
        writer.commit()
        with database_of(mongo_server, mongo_uri) as database:
            large = database[f"store.{writer._id}.large.{lost}"]  # type: ignore[attr-defined]
            large.delete_one({"n": 1} if lost == "chunks" else {})
        with pytest.raises(DamagedStoreError, match=r"does not have record \d in GridFS as it was sent"):
            writer.finish()


def test_a_store_of_which_a_large_record_has_another_file_is_not_published(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other file is whole, and a record of the same index, as one of a writer that was overtaken."""
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    mine, other = (Record(name="a", image=bytes([number]) * 600_000) for number in range(2))
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, [mine])
        writer.commit()
        unfinished: Any = writer._unfinished  # type: ignore[attr-defined]
        file = unfinished._large.put(record_file(0), *documents_of([other]))
        with database_of(mongo_server, mongo_uri) as database:
            records = database[f"store.{unfinished._id}"]
            assert records.update_one({"_id": 0}, {"$set": {"gridfs": file}}).modified_count == 1
        with pytest.raises(DamagedStoreError, match="does not have record 0 in GridFS as it was sent"):
            writer.finish()


def test_what_was_left_in_gridfs_behind_the_last_record_may_be_damaged(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(3)]
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, records[:2])
        writer.commit()
        unfinished: Any = writer._unfinished  # type: ignore[attr-defined]
        unfinished._insert([(2, documents_of(records)[2])])  # a commit that was cut off
        with database_of(mongo_server, mongo_uri) as database:
            chunks = database[f"store.{unfinished._id}.large.chunks"]
            left = {"files_id": {"$regex": f"^{record_file(2)}"}, "n": 1}
            assert chunks.delete_one(left).deleted_count == 1
        writer.finish()
    check_is(mongo_uri, records[:2])


def test_each_large_record_has_time_of_its_own_to_be_checked(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 4.0)
    records = [Record(name=str(number), image=random.Random(number).randbytes(600_000)) for number in range(9)]
    with (
        Proxy(mongod.port) as proxy,
        create_store(f"{proxy.through(mongod_uri)}?socketTimeoutMS=300") as writer,
    ):
        writer.write([encode(record) for record in records])
        writer.commit()
        proxy.bytes_per_s = 6e5  # a second for each, which is silence, and nine for all
        writer.finish()
    with open_store(mongod_uri) as store:
        assert store.documents(range(9)) == documents_of(records)


def test_a_large_record_survives_what_passes(mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(5)]
    write(mongod_uri, [])
    for code in (None, 9001):
        for skip in (2, 4, 7):
            with mongod.fail_point("insert", "delete", skip=skip, close_connection=code is None, error_code=code):
                writing = Reader(lambda: write(mongod_uri, records, overwrite=True))
                time.sleep(0.1)
            writing.result()
            with open_store(mongod_uri) as store:
                assert store.verify() == store.manifest.digest
                large = f"store.{store._open().store}.large"  # type: ignore[attr-defined]
                with database_of(mongod, mongod_uri) as database:
                    assert database[f"{large}.files"].count_documents({}) >= 5  # what an attempt left stays
                for code_of_reads in (None, 43, 91):
                    with fault(mongod, "find", code=code_of_reads, times=2):
                        assert store.documents(range(5)) == documents_of(records)


def test_what_was_stored_after_the_last_commit_and_is_not_of_the_store_is_removed(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 300_000) for number in range(3)]
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, records[:1])
        writer.commit()
        unfinished: Any = writer._unfinished  # type: ignore[attr-defined]
        unfinished._insert(list(enumerate(documents_of(make_records(3, seed=4))))[1:])
        unfinished._insert([(3, documents_of(RECORDS)[3])])
        for number in (0, 2):
            unfinished._meta.insert_one({"_id": f"{unfinished._id}/event/{number:016x}", "event": {}, "run": 1})
    with create_store(mongo_uri, resume=True, resumable=True) as writer:
        write_one_by_one(writer, records)
        writer.finish()
    check_is(mongo_uri, records)
    with database_of(mongo_server, mongo_uri) as database:
        assert database[f"store.{unfinished._id}"].count_documents({}) == 3
        assert database["store.manifest"].count_documents({"_id": {"$regex": "/event/"}}) == 2


def test_names_over_the_limit_of_a_document_come_back_as_they_were(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str
) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 8 * 2**20)
    names = [f"{number:05}".ljust(5000, "ä") for number in range(CHUNK + 3)]
    records = small_records(CHUNK + 3, names.__getitem__)
    with create_store(mongo_uri, resumable=True) as writer:
        writer.write([encode(record) for record in records[:2500]])
        writer.commit()
    with create_store(mongo_uri, resume=True) as writer:
        assert writer.length == 2500
        writer.write([encode(record) for record in records[2500:]])
        manifest = writer.finish()
    with open_store(mongo_uri) as store:
        assert list(store.names()) == names
        assert (store.name(17), store.name(CHUNK + 1)) == (names[17], names[CHUNK + 1])
        assert store.find(names[CHUNK - 1]) == CHUNK - 1
        assert store.verify() == manifest.digest
        with database_of(mongo_server, mongo_uri) as database:
            database[f"store.{store._open().store}.large.chunks"].delete_many({})  # type: ignore[attr-defined]
        with pytest.raises(DamagedStoreError, match="chunk 0 of its column name is missing or damaged"):
            store.names()


def test_a_name_over_the_limit_of_a_document_is_refused(mongo_uri: str) -> None:
    with pytest.raises(FieldError, match="the name of record 0 is too long"):
        write(mongo_uri, [Record(name="a" * 2**24)])


@pytest.mark.parametrize("run", [2**63 - 1, 2**31, -5])
def test_a_number_of_writers_that_cannot_be_is_damage(mongo_server: Server, mongo_uri: str, run: int) -> None:
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, RECORDS[:9])
        writer.commit()
    with database_of(mongo_server, mongo_uri) as database:
        database["store.manifest"].update_one({"_id": "store"}, {"$set": {"partial.run": Int64(run)}})
    with pytest.raises(DamagedStoreError, match=r"is damaged: the number of its writers is .*; begin again"):
        write(mongo_uri, RECORDS, resume=True)
    write(mongo_uri, RECORDS, overwrite=True)
    check_is(mongo_uri, RECORDS)


# ---- Writers that were overtaken


def make_silent(monkeypatch: pytest.MonkeyPatch, place: str, *, overwrite: bool = False) -> Any:
    """Return a writer that thinks its claim is fresh, when another can take the place."""
    writer: Any = create_store(place, overwrite=overwrite, resume=not overwrite, resumable=True)
    with monkeypatch.context() as patch:
        patch.setattr(lease, "LEASE_SECONDS", 0.05)
        writer.__enter__()
        writer._lease._stop.set()
        writer._lease._thread.join()
        writer._lease._try_to_take()
    writer._lease._fresh_until = float("inf")
    time.sleep(0.1)
    return writer


def leave(silent: Any) -> None:
    with suppress(StoreLockedError):  # the same that its commit had
        silent.__exit__(None, None, None)


@pytest.fixture
def others() -> list[Record]:
    return make_records(60, seed=5)


@pytest.mark.parametrize("resumable", [False, True])
def test_a_writer_that_was_overtaken_neither_mixes_nor_publishes_nor_removes(
    monkeypatch: pytest.MonkeyPatch, mongo_uri: str, others: list[Record], digest: str, resumable: bool
) -> None:
    with create_store(mongo_uri, resumable=True) as writer:
        write_one_by_one(writer, RECORDS[:10])
        writer.commit()
    silent = make_silent(monkeypatch, mongo_uri)
    silent.resumable = resumable
    assert silent.length == 10
    with create_store(mongo_uri, resume=True, resumable=True) as writer:
        assert writer.length == 10
        write_one_by_one(writer, RECORDS[:20])
        writer.commit()
        # It comes before the other with one record and after it with others.
        silent._unfinished._insert([(25, documents_of(others)[25])])
        with pytest.raises(StoreLockedError, match="another process has taken over the conversion"):
            write_and_commit(silent, others[:40])
        leave(silent)
        write_one_by_one(writer, RECORDS)
        assert writer.finish().digest == digest
    check_is(mongo_uri, RECORDS, digest)


def write_and_commit(writer: Any, records: list[Record]) -> None:
    write_one_by_one(writer, records)
    writer.commit()


@pytest.mark.parametrize("finished", [False, True], ids=["before the other", "after the other"])
def test_a_writer_that_was_overtaken_cannot_finish(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str, digest: str, finished: bool
) -> None:
    silent = make_silent(monkeypatch, mongo_uri)
    write_and_commit(silent, RECORDS[:30])
    with create_store(mongo_uri, resume=True, resumable=True) as writer:
        write_one_by_one(writer, RECORDS)
        if not finished:
            with pytest.raises(StoreLockedError, match="another process has taken over the conversion"):
                silent.finish()
        assert writer.finish().digest == digest
    if finished:
        with pytest.raises(StoreError, match="store"):
            silent.finish()
        # What it may insert where the records were.
        silent._unfinished._insert([(0, documents_of(RECORDS)[0])])
    leave(silent)
    with create_store(mongo_uri, overwrite=True):
        pass
    check_is(mongo_uri, RECORDS, digest)
    with database_of(mongo_server, mongo_uri) as database:
        assert_alone(database)


def test_a_writer_that_was_overtaken_before_its_first_record_is_told(
    monkeypatch: pytest.MonkeyPatch, mongo_uri: str
) -> None:
    silent = make_silent(monkeypatch, mongo_uri)
    with create_store(mongo_uri, resume=True, resumable=True):
        with pytest.raises(StoreLockedError, match="another process has taken over the conversion"):
            silent.commit()
        leave(silent)


def test_a_claim_that_ran_out_and_was_taken_is_noticed(monkeypatch: pytest.MonkeyPatch, mongo_uri: str) -> None:
    silent = make_silent(monkeypatch, mongo_uri)
    with create_store(mongo_uri, resume=True, resumable=True):
        silent._lease._fresh_until = 0.0
        with pytest.raises(
            StoreLockedError, match=r"this process was silent for over 60 s, and another one has written"
        ):
            write_and_commit(silent, RECORDS[:2])
        leave(silent)


@pytest.mark.parametrize("committed", [False, True])
def test_a_claim_that_another_has_had_is_not_taken_again(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str, others: list[Record], committed: bool
) -> None:
    silent = make_silent(monkeypatch, mongo_uri)
    if committed:
        write_and_commit(silent, RECORDS[:2])
    with database_of(mongo_server, mongo_uri) as database:
        began = database["store.manifest"].find_one({"_id": "store"}, {"partial": 1})
        with create_store(mongo_uri, resume=True, resumable=True) as writer:
            write_one_by_one(writer, (RECORDS if committed else others)[:9])
            writer.finish()
        # What was begun without a commit says nothing of what it is to be: it is not gone on with.
        store = database["store.manifest"].find_one({"_id": "store"}, {"store": 1})
        assert began
        assert store
        assert (store["store"] == began["partial"]["store"]) == committed
    silent._lease._fresh_until = 0.0  # the other one has left the place
    with pytest.raises(StoreLockedError, match="another one has written"):
        write_and_commit(silent, RECORDS[:20])
    leave(silent)
    check_is(mongo_uri, (RECORDS if committed else others)[:9])


def test_a_claim_that_ran_out_is_renewed_if_nobody_has_taken_it(
    monkeypatch: pytest.MonkeyPatch, mongo_uri: str
) -> None:
    silent = make_silent(monkeypatch, mongo_uri)
    silent._lease._fresh_until = 0.0
    write_one_by_one(silent, RECORDS)
    silent.finish()
    silent.__exit__(None, None, None)
    check_is(mongo_uri, RECORDS)


def test_a_claim_is_kept_fresh(monkeypatch: pytest.MonkeyPatch, mongo_uri: str) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(lease, "_REFRESH_SECONDS", 0.05)
    with create_store(mongo_uri) as writer:
        time.sleep(0.8)
        with pytest.raises(StoreLockedError, match="another process is writing"), create_store(mongo_uri):
            pass
        writer.finish()


def test_the_claim_of_a_killed_process_of_this_machine_is_taken_at_once(mongo_uri: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=enter_and_die, args=(mongo_uri,))
    process.start()
    process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    began = time.monotonic()
    write(mongo_uri, RECORDS)
    assert time.monotonic() - began < 10
    check_is(mongo_uri, RECORDS)


def enter_and_die(place: str) -> None:
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, RECORDS[:5])
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_claim_of_another_machine_is_taken_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str
) -> None:
    identity = {"host": "elsewhere", "machine": "another/pid:[1]", "pid": 7, "began": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(lease, "LEASE_SECONDS", 1.0)
        patch.setattr(lease, "_identity", lambda: identity)
        linked = connection.Connection(parse(mongo_uri), writing=True)
        held = lease.Lease(linked, linked.database["store.manifest"])
        assert held._try_to_take()
    message = r"another process is writing mongodb://.* now \(process 7 on elsewhere\).* its claim ends after 60 s"
    with pytest.raises(StoreLockedError, match=message), create_store(mongo_uri):
        pass
    time.sleep(1.1)
    write(mongo_uri, RECORDS[:3])
    linked.close()
    with database_of(mongo_server, mongo_uri) as database:
        assert "writer" not in (database["store.manifest"].find_one({"_id": "store"}) or {})


def test_a_claim_whose_release_was_cut_off_is_released(mongod: Mongod, mongod_uri: str) -> None:
    with ExitStack() as stack:
        with create_store(mongod_uri) as writer:
            writer.finish()
            count = stack.enter_context(fault(mongod, "update", code=None))
        assert count() == 1
    with database_of(mongod, mongod_uri) as database:
        assert set(database["store.manifest"].find_one({"_id": "store"}) or {}) == {"_id", "store", "manifest"}


# ---- Publications that were cut off


@pytest.mark.parametrize("step", ["publish", "show"])
@pytest.mark.parametrize("replacing", [False, True], ids=["fresh", "overwrite"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_killed_while_it_publishes_has_published_or_can_be_resumed(
    mongo_server: Server, mongo_uri: str, digest: str, step: str, replacing: bool, after: bool
) -> None:
    if replacing:
        write(mongo_uri, RECORDS[:4])
    process = multiprocessing.get_context("fork").Process(target=publish_and_die, args=(mongo_uri, step, after))
    process.start()
    process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    if (step, after) == ("publish", False):
        if replacing:
            check_is(mongo_uri, RECORDS[:4])
        with create_store(mongo_uri, resume=True) as writer:
            assert writer.length == len(RECORDS)
            writer.finish()
    else:
        with pytest.raises(StoreExistsError, match="is finished already: there is nothing to resume"):
            write(mongo_uri, RECORDS[:2], resume=True)
    check_is(mongo_uri, RECORDS, digest)
    with create_store(mongo_uri, overwrite=True):
        pass
    with database_of(mongo_server, mongo_uri) as database:
        assert database["store"].count_documents({}) == len(RECORDS)
    write(mongo_uri, RECORDS[:5], overwrite=True)
    check_is(mongo_uri, RECORDS[:5])


def test_a_store_at_the_place_is_not_removed_whatever_is_noted(mongo_server: Server, mongo_uri: str) -> None:
    write(mongo_uri, RECORDS)
    with database_of(mongo_server, mongo_uri) as database:
        place = database["store.manifest"].find_one({"_id": "store"})
        assert place
        database["store.manifest"].update_one({"_id": "store"}, {"$set": {"replaced": [place["store"]]}})
    with create_store(mongo_uri, overwrite=True):
        pass
    check_is(mongo_uri, RECORDS)


def publish_and_die(place: str, step: str, after: bool) -> None:
    function = getattr(catalog.Catalog, step)

    def die(*arguments: Any) -> None:
        if after:
            function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    with create_store(place, overwrite=True, resumable=True) as writer:
        write_one_by_one(writer, RECORDS)
        setattr(catalog.Catalog, step, die)
        writer.finish()


@pytest.mark.parametrize("ended", ["finished", "still writing", "resumed and left"])
def test_a_writer_that_stalls_before_it_publishes_changes_nothing_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str, others: list[Record], ended: str
) -> None:
    write(mongo_uri, RECORDS[:4])
    silent = make_silent(monkeypatch, mongo_uri, overwrite=True)
    write_and_commit(silent, RECORDS)
    with monkeypatch.context() as patch, ExitStack() as stack:

        def stall(*arguments: Any) -> None:
            """All that another writer does happens between the last look at the claim and the publishing write."""
            patch.undo()
            if ended == "resumed and left":
                with create_store(mongo_uri, resume=True, resumable=True) as writer:
                    assert writer.length == len(RECORDS)
            else:
                writer = stack.enter_context(create_store(mongo_uri, overwrite=True, resumable=True))
                write_one_by_one(writer, others)
                if ended == "finished":
                    writer.finish()
                    stack.close()
            publish(*arguments)

        publish = catalog.Catalog.publish
        patch.setattr(catalog.Catalog, "publish", stall)
        with pytest.raises(StoreError, match=r"has taken over the conversion|exists already"):
            silent.finish()
        leave(silent)
        if ended == "still writing":
            check_is(mongo_uri, RECORDS[:4])
            writing: Any = stack.pop_all()
            with writing:
                pass
        check_is(mongo_uri, others if ended == "finished" else RECORDS[:4])
    if ended == "resumed and left":
        write(mongo_uri, RECORDS, resume=True)
        check_is(mongo_uri, RECORDS)


def test_a_store_is_published_even_if_the_view_of_it_cannot_be_made_yet(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.2)
    write(mongod_uri, RECORDS[:2])
    with (
        create_store(mongod_uri, overwrite=True) as writer,
        mongod.fail_point("collMod", times=None, error_code=91) as count,
    ):
        write_one_by_one(writer, RECORDS)
        writer.finish()
        check_is(mongod_uri, RECORDS, digest)
        assert count()
    with create_store(mongod_uri, overwrite=True):
        pass
    check_is(mongod_uri, RECORDS, digest)


def test_a_claim_of_a_far_time_ends_as_any_other(
    monkeypatch: pytest.MonkeyPatch, mongo_server: Server, mongo_uri: str
) -> None:
    write(mongo_uri, RECORDS[:2])
    far = datetime(2999, 1, 1, tzinfo=timezone.utc)
    with database_of(mongo_server, mongo_uri) as database:
        place: Any = database["store.manifest"]
        for expires in (far, Timestamp(2**31 - 1, 1), MaxKey()):
            writer = {"token": "a", "host": "elsewhere", "machine": "b", "pid": 3, "began": "1", "expires": expires}
            place.update_one({"_id": "store"}, {"$set": {"writer": writer}})
            message = "another process is writing .* its claim ends after 60 s"
            with pytest.raises(StoreLockedError, match=message), create_store(mongo_uri, overwrite=True):
                pass
            ends = place.find_one({"_id": "store"})["writer"]["expires"]
            assert ends < datetime.now() + timedelta(days=1)
            # Its time passes.
            place.update_one({"_id": "store"}, {"$set": {"writer.expires": datetime(2001, 1, 1, tzinfo=timezone.utc)}})
            write(mongo_uri, RECORDS[:3], overwrite=True)
        for strange in ("x", 3, [1], {"token": 3}, {"token": "a", "expires": "z", "pid": "y"}, None):
            place.update_one({"_id": "store"}, {"$set": {"writer": strange}})
            with suppress(StoreExistsError):  # that document is none of ours
                write(mongo_uri, RECORDS[:3], overwrite=True)
            place.update_one({"_id": "store"}, {"$unset": {"writer": ""}})
    check_is(mongo_uri, RECORDS[:3])


@pytest.mark.parametrize("change", ["missing", "other"])
def test_a_store_of_which_the_server_lost_something_is_not_published(
    mongo_server: Server, mongo_uri: str, change: str
) -> None:
    def write_on() -> None:
        with create_store(mongo_uri) as writer, database_of(mongo_server, mongo_uri) as database:
            write_one_by_one(writer, RECORDS)
            writer.commit()
            (own,) = [name for name in database.list_collection_names() if is_own_collection(name, "store")]
            if change == "missing":
                database[own].delete_one({"_id": 17})
            else:
                database[own].update_one({"_id": 17}, {"$set": {"crc32": Int64(5)}})
            writer.finish()

    with pytest.raises(
        DamagedStoreError, match="the server does not have all of its records as they were sent; begin again"
    ):
        write_on()
    with open_store(mongo_uri) as store, pytest.raises(StoreError, match="store"):
        len(store)
