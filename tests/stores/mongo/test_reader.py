"""Reading survives failures of servers and connections, and continues when the store is replaced."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import Any

import pytest

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError, NotAStoreError, StoreError, StoreFullError, StoreUnreachableError
from dbloader.stores.mongo import connection
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, documents_of, make_records, stored, write, write_nothing, write_one_by_one
from tests.support.mongo import Mongod, ReplicaSet, Server
from tests.support.mongo_stores import check_alone, database_of, fault, paused, records_in, wait_for_all_members

RECORDS = make_records(60)


def big_records(count: int) -> list[Record]:
    """Return records of 1 MiB each, 16 of which fit into one response."""
    return [Record(name=f"{number}", image=random.Random(number).randbytes(2**20)) for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "records", "codes"),
    [("find", make_records(18), (None, 6, 43, 91, 175, 189)), ("getMore", big_records(18), (None, 43, 237))],
    ids=["find", "getMore"],
)
def test_reading_survives_temporary_errors(
    mongod: Mongod, mongod_uri: str, command: str, records: list[Record], codes: tuple[int | None, ...]
) -> None:
    write(mongod_uri, records)
    expected = documents_of(records)
    indices = [5, 17, 0, *range(18)]
    with open_store(mongod_uri) as store:
        len(store)
        for code in codes:
            with fault(mongod, command, code=code) as count:
                assert [record.name for record in store.read(indices)] == [records[index].name for index in indices]
                assert count() == 1
            with fault(mongod, command, code=code) as count:
                assert stored(store, indices) == [expected[index] for index in indices]
                assert count() == 1


@pytest.mark.slow
def test_writing_and_reading_survive_elections(three_members: ReplicaSet, three_members_uri: str) -> None:
    with create_store(three_members_uri) as writer:
        for number in range(60):
            if number == 20:
                three_members.step_down()
            write_one_by_one(writer, RECORDS[: number + 1])
        writer.finish()
    check_is(three_members_uri, RECORDS)
    with open_store(three_members_uri) as store:
        read = []
        for start in range(0, 60, 4):
            if start == 36:
                three_members.kill_primary()
            read += stored(store, range(start, start + 4))
        assert read == documents_of(RECORDS)


@pytest.mark.slow
def test_absent_server_raises_one_error(mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(connection, "SELECTION_SECONDS", 0.3)
    with open_store(mongod_uri) as store:
        len(store)
        with (
            fault(mongod, "find", code=91, times=None),
            pytest.raises(StoreUnreachableError, match=r"^the server of .*store did not answer in time \("),
        ):
            store.read([3])
        assert stored(store, [3]) == documents_of(RECORDS)[3:4]
        mongod.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"did not answer in time \(.*refused"):
            store.read([3])
        assert time.monotonic() - began < 3
        mongod.start()
        assert stored(store, [3]) == documents_of(RECORDS)[3:4]


def test_read_is_not_retried_after_a_permanent_error(mongod: Mongod, mongod_uri: str) -> None:
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
            assert count() == 1


@pytest.mark.slow
def test_records_on_lagging_members_do_not_look_damaged(three_members: ReplicaSet, three_members_uri: str) -> None:
    secondaries = [member for member in three_members.members if member is not three_members.primary]
    with ExitStack() as stack, create_store(f"{three_members_uri}&w=1") as writer:
        write_one_by_one(writer, RECORDS[:30])
        writer.commit()
        wait_for_all_members(three_members, three_members_uri)
        for member in secondaries:
            stack.enter_context(paused(member, "rsSyncApplyStop"))
        write_one_by_one(writer, RECORDS)
        writer.finish()
        with open_store(f"{three_members_uri}&readPreference=secondary") as store:
            assert stored(store, range(60)) == documents_of(RECORDS)
            assert store.find(str(RECORDS[50].name)) == 50
            assert store.matching({"label": 1}).tolist() == [i for i, one in enumerate(RECORDS) if one.label == 1]  # type: ignore[attr-defined]
            assert store.verify() == store.manifest.digest
            assert len(list(store.events())) == 40


@pytest.mark.slow
def test_reader_reads_from_a_secondary_if_there_is_no_primary(replica_set: ReplicaSet, replica_set_uri: str) -> None:
    records = [*RECORDS, Record(name="large", image=bytes(17 * 2**20))]
    write(replica_set_uri, records)
    replica_set.step_down(60)
    with open_store(f"{replica_set_uri}&readPreference=secondaryPreferred") as store:
        assert stored(store, range(61)) == documents_of(records)
        assert store.find("large") == 60
        assert store.verify() == store.manifest.digest
    with replica_set.members[0].client() as client:
        assert not client.admin.command("hello")["isWritablePrimary"]


# ---- Stores that are replaced or removed while they are read


def test_replaced_store_is_readable_until_next_writer(mongo_server: Server, mongo_uri: str) -> None:
    old, new = make_records(5, seed=1), make_records(7, seed=2)
    write(mongo_uri, old)
    with open_store(mongo_uri) as store:
        len(store)
        write(mongo_uri, new, overwrite=True)
        assert stored(store, range(5)) == documents_of(old)
        assert store.find(str(old[2].name)) == 2
        assert store.matching({"label": {"$gte": 0}}).tolist() == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
        assert store.verify() == store.manifest.digest
        write_nothing(mongo_uri, overwrite=True)
        uses: Any = (
            lambda: store.read([0]),
            lambda: store.find("a"),
            lambda: store.column("label"),
            store.names,
            lambda: list(store.events()),
        )
        for use in uses:
            with pytest.raises(
                NotAStoreError, match=r"replaced or removed since it was opened, .*: open the store again"
            ):
                use()
        check_is(mongo_uri, new)
    with database_of(mongo_server, mongo_uri) as database:
        check_alone(database)
        assert len(database["store.manifest"].distinct("_id")) == 1 + 12 + sum(number % 3 > 0 for number in range(7))


def test_lost_collection_of_records_raises(mongo_server: Server, mongo_uri: str) -> None:
    write(mongo_uri, RECORDS)
    with open_store(mongo_uri) as store, database_of(mongo_server, mongo_uri) as database:
        len(store)
        records_in(database).drop()
        with pytest.raises(DamagedStoreError, match="its collection of records is missing; convert again"):
            store.read([1])
