"""With silent and slow servers, reading and converting end in time with one error, but not too early."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dbloader import Record, open_store
from dbloader.errors import StoreError, StoreUnreachableError
from dbloader.stores.mongo import connection
from dbloader.stores.open import create_store
from tests.contracts.records import check_resumes, documents_of, make_records, stored, write, write_one_by_one
from tests.support.mongo import Mongod, Proxy
from tests.support.mongo_stores import database_of, records_in, wait_until

RECORDS = make_records(30)
SHORT = "timeoutMS=1000&serverSelectionTimeoutMS=500&connectTimeoutMS=500"
SILENT = r"^the server of mongodb://.*store did not answer in time \("


@pytest.fixture
def proxy(mongod: Mongod) -> Iterator[Proxy]:
    with Proxy(mongod.port) as proxy:
        yield proxy


@pytest.mark.slow
def test_reading_and_opening_end_in_time_if_the_server_is_silent(proxy: Proxy, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(f"{proxy.through(mongod_uri)}?{SHORT}") as store:
        assert stored(store, [3]) == documents_of(RECORDS)[3:4]
        proxy.stall()
        place = f"{proxy.through(mongod_uri)}?{SHORT}"
        for use in (
            lambda: store.read([3, 5]),
            lambda: len(open_store(f"{place}&appName=other")),
            lambda: create_store(f"{place}&appName=another").__enter__(),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnreachableError, match=rf"no server answers at|{SILENT}"):
                use()
            assert time.monotonic() - began < 10  # normally 1 to 4 s
        proxy.flow()
        assert stored(store, [5]) == documents_of(RECORDS)[5:6]


@pytest.mark.slow
@pytest.mark.parametrize("at", ["commit", "finish"])
def test_writing_ends_in_time_if_the_server_is_silent(proxy: Proxy, mongod_uri: str, at: str) -> None:
    def write_on() -> None:
        with create_store(f"{proxy.through(mongod_uri)}?{SHORT}", resumable=True) as writer:
            write_one_by_one(writer, RECORDS[:20] if at == "commit" else RECORDS)
            writer.commit()
            proxy.stall()
            write_one_by_one(writer, RECORDS)
            writer.finish()

    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=SILENT):
        write_on()
    assert time.monotonic() - began < 20
    proxy.flow()
    check_resumes(mongod_uri, RECORDS, [20 if at == "commit" else 30])


def test_read_is_repeated_on_another_connection_after_silence(proxy: Proxy, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(f"{proxy.through(mongod_uri)}?socketTimeoutMS=500") as store:
        len(store)
        for _ in range(2):
            proxy.forget()  # like a firewall, which drops open connections silently while new connections work
            began = time.monotonic()
            assert stored(store, [3]) == documents_of(RECORDS)[3:4]
            assert time.monotonic() - began < 20


# The lines below carry 1 MB a second, so each answer of 2 MB takes longer than this.
SLOW = "socketTimeoutMS=500"


def slow_records() -> list[Record]:
    return [Record(name=f"{number}", image=random.Random(number).randbytes(250_000)) for number in range(8)]


@pytest.mark.slow
def test_reading_over_slow_line_succeeds(mongod: Mongod, mongod_uri: str) -> None:
    write(mongod_uri, slow_records())
    with Proxy(mongod.port, bytes_per_s=1e6) as proxy, open_store(f"{proxy.through(mongod_uri)}?{SLOW}") as store:
        assert stored(store, range(8)) == documents_of(slow_records())
        # Only an incomplete response is sent again.
        assert proxy.bytes_to_client < 1.8 * 2e6


# ---- Queries for which the server may have to read all documents

# The driver checks on a separate connection that the server is running.
ASKED_OFTEN = f"{SHORT}&socketTimeoutMS=300&heartbeatFrequencyMS=500"


@pytest.mark.slow
def test_query_ends_when_server_falls_silent(mongod: Mongod, proxy: Proxy, mongod_uri: str) -> None:
    query = {"$where": "sleep(5000) || true"}  # the server sleeps this long for each of 30 records
    running: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": {"command.projection": {"_id": 1}, "active": True}}]

    def ask() -> None:
        with pytest.raises(StoreUnreachableError, match=SILENT):
            store.matching(query)  # type: ignore[attr-defined]

    write(mongod_uri, RECORDS)
    with (
        mongod.client() as client,
        open_store(f"{proxy.through(mongod_uri)}?{ASKED_OFTEN}") as store,
        ThreadPoolExecutor(1) as executor,
    ):
        len(store)
        ended = executor.submit(ask)
        wait_until(lambda: ended.done() or bool(list(client.admin.aggregate(running))))
        proxy.stall()
        ended.result()
        proxy.flow()
        assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["aggregate", "find"])
def test_reader_waits_for_a_slow_scan(mongod: Mongod, mongod_uri: str, command: str) -> None:
    """The server works for twice as long as a reader waits for a silent server."""
    write(mongod_uri, RECORDS)
    with database_of(mongod, mongod_uri) as database:
        records_in(database).drop_indexes()  # like a copy made without indexes
    with open_store(f"{mongod_uri}?{ASKED_OFTEN}") as store:
        len(store)
        with mongod.fail_point(command, times=1, block_s=2.0) as count:
            if command == "find":
                assert store.find(str(RECORDS[3].name)) == 3
            else:
                assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]
            assert count() == 1  # the query is not repeated


@pytest.mark.slow
def test_too_long_scan_raises_with_remedy(mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "SCAN_SECONDS", 0.5)
    message = r"store: the server has not finished a search within 0\.5 s: make an index of"
    with open_store(f"{mongod_uri}?socketTimeoutMS=200") as store:
        len(store)
        with pytest.raises(StoreError, match=message) as caught:
            store.matching({"$where": "sleep(100) || true"})  # type: ignore[attr-defined]
        assert not isinstance(caught.value, StoreUnreachableError)


@pytest.mark.slow
def test_query_that_fails_after_long_work_is_repeated(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fails after more than RETRY_SECONDS, but only the time after a failure counts."""
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    with open_store(mongod_uri) as store:
        len(store)
        with mongod.fail_point("find", times=1, error_code=91, block_s=0.7) as count:
            assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]
            assert count() == 1
