"""Servers that are silent or slow: reading and converting end in time, with one error, and not before."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import MongoDataset, Record, open_store
from dbloader.errors import StoreError, StoreUnreachableError
from dbloader.records.record import encode
from dbloader.stores.mongo import connection
from dbloader.stores.open import create_store
from tests.contracts.records import WAIT_S, check_resumes, documents_of, make_records, stored, write, write_one_by_one
from tests.support.mongo import Proxy
from tests.support.mongo_stores import database_of, records_in, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.mongo import Mongod

RECORDS = make_records(30)
SHORT = "timeoutMS=1000&serverSelectionTimeoutMS=500&connectTimeoutMS=500"
SILENT = r"^the server of mongodb://.*store was away for too long \("


@pytest.fixture
def proxy(mongod: Mongod) -> Iterator[Proxy]:
    with Proxy(mongod.port) as proxy:
        yield proxy


@pytest.mark.slow
def test_reading_and_opening_end_in_time(proxy: Proxy, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(f"{proxy.through(mongod_uri)}?{SHORT}") as store:
        assert stored(store, [3]) == documents_of(RECORDS)[3:4]
        proxy.stall()
        place = f"{proxy.through(mongod_uri)}?{SHORT}"
        for use in (
            lambda: store.read([3, 5]),
            lambda: store.find("a"),
            lambda: store.column("label"),
            lambda: len(open_store(f"{place}&appName=other")),
            lambda: create_store(f"{place}&appName=another").__enter__(),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnreachableError, match=rf"no server answers at|{SILENT}"):
                use()
            assert time.monotonic() - began < 10  # of which 1 to 4 were waited for
        proxy.flow()
        assert stored(store, [5]) == documents_of(RECORDS)[5:6]


@pytest.mark.slow
@pytest.mark.parametrize("at", ["commit", "finish"])
def test_writing_ends_in_time_and_can_be_resumed(proxy: Proxy, mongod_uri: str, at: str) -> None:
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


def test_one_silent_connection_costs_its_time_and_no_more(proxy: Proxy, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(f"{proxy.through(mongod_uri)}?socketTimeoutMS=500") as store:
        len(store)
        proxy.forget()  # as a firewall does: what is open leads nowhere, and what is opened now does
        began = time.monotonic()
        assert stored(store, [3]) == documents_of(RECORDS)[3:4]
        assert time.monotonic() - began < 20


# Of it the line below carries 1 MB in each second, which is silence of over half a second; of 12 s all comes through.
SLOW = "socketTimeoutMS=500"


def slow_records() -> list[Record]:
    return [Record(name=f"{number}", image=random.Random(number).randbytes(250_000)) for number in range(8)]


@pytest.mark.slow
def test_reading_over_a_slow_line_takes_its_time(mongod: Mongod, mongod_uri: str) -> None:
    write(mongod_uri, slow_records())
    with (
        Proxy(mongod.port, bytes_per_s=1e6) as proxy,
        open_store(f"{proxy.through(mongod_uri)}?{SLOW}") as store,
    ):
        for _ in range(2):
            assert stored(store, range(8)) == documents_of(slow_records())
        # What was not whole came once more for the first batch; the second is given its time at once.
        assert proxy.bytes_to_client < 3.5 * 2e6


@pytest.mark.slow
def test_writing_over_a_slow_line_takes_its_time(mongod: Mongod, mongod_uri: str) -> None:
    with (
        Proxy(mongod.port, bytes_per_s=1e6) as proxy,
        create_store(f"{proxy.through(mongod_uri)}?{SLOW}") as writer,
    ):
        for _ in range(2):
            writer.write(encode(record) for record in slow_records())
            writer.commit()
        writer.finish()
    with open_store(mongod_uri) as store:
        assert stored(store, range(8)) == documents_of(slow_records())
        assert len(store) == 16
        assert store.verify() == store.manifest.digest


@pytest.mark.slow
def test_a_slow_line_of_too_little_ends_in_time(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 2.0)
    write(mongod_uri, slow_records())
    with (
        Proxy(mongod.port, bytes_per_s=1e5) as proxy,
        open_store(f"{proxy.through(mongod_uri)}?{SLOW}") as store,
    ):
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=SILENT):
            store.documents(range(8))
        assert time.monotonic() - began < 15  # of 20 s that it would take


# ---- Questions for which the server may look through all documents

# The driver asks by itself whether the server is there, on a connection of its own.
ASKED_OFTEN = f"{SHORT}&socketTimeoutMS=300&heartbeatFrequencyMS=500"


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["before the query", "while it is answered"])
def test_a_query_to_a_server_that_falls_silent_ends(mongod: Mongod, proxy: Proxy, mongod_uri: str, asked: bool) -> None:
    query = {"$where": "sleep(5000) || true"}  # for each of 30 records
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
        if not asked:
            proxy.stall()
        ended = executor.submit(ask)
        wait_until(lambda: not asked or ended.done() or bool(list(client.admin.aggregate(running))))
        proxy.stall()
        ended.result()
        proxy.flow()
        assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_query_is_answered_by_connections_made_since_the_others_fell_silent(proxy: Proxy, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    place = f"{proxy.through(mongod_uri)}?{ASKED_OFTEN}".replace("timeoutMS=1000", "timeoutMS=10000")
    with open_store(place) as store:
        len(store)
        proxy.forget()
        assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["count", "name", "listing", "batch"])
def test_a_slow_scan_is_not_taken_for_a_server_that_is_away(
    mongod: Mongod, mongod_uri: str, tmp_path: Path, use: str
) -> None:
    """The server takes twice as long as a server may be away."""
    place = f"{mongod_uri}?{ASKED_OFTEN}"
    command = "aggregate" if use == "count" else "find"
    with ExitStack() as stack:

        def held_up() -> Callable[[], int]:
            return stack.enter_context(mongod.fail_point(command, times=1, block_s=2.0))

        if use in ("count", "name"):
            write(mongod_uri, RECORDS)
            with database_of(mongod, mongod_uri) as database:
                records_in(database).drop_indexes()  # as after a copy without them
            store: Any = stack.enter_context(open_store(place))
            len(store)
            count = held_up()
            if use == "name":
                assert store.find(RECORDS[3].name) == 3
            else:
                assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]
        else:
            with database_of(mongod, mongod_uri) as database:
                database["store"].insert_one({"img_name": "a", "bson_img": b"x"})
            listing = tmp_path / "listing.json"
            listing.write_text('{"path_list": ["a"], "label_list": [3]}')
            if use == "listing":
                count = held_up()
            with pytest.warns(UserWarning, match="has no index"):
                dataset = stack.enter_context(MongoDataset.from_listing(place, listing, decode=None))
            if use == "batch":
                count = held_up()
            assert dataset[0] == (b"x", 3)
        assert count() == 1  # it was waited for, not asked again


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", ["the server", "dbloader"])
def test_a_scan_that_takes_too_long_is_told_as_that(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "SCAN_SECONDS", 0.5)
    with open_store(f"{mongod_uri}?socketTimeoutMS=200") as store, ExitStack() as stack:
        len(store)
        query: dict[str, Any] = {"$where": "sleep(100) || true"}
        if ended_by == "dbloader":
            stack.enter_context(mongod.fail_point("find", times=1, block_s=2.0))
            query = {"caption": "x"}
        message = r"store: the server has not finished a search within 0\.5 s; .*: make an index$"
        with pytest.raises(StoreError, match=message) as told:
            store.matching(query)  # type: ignore[attr-defined]
        assert not isinstance(told.value, StoreUnreachableError)


@pytest.mark.slow
def test_a_server_that_breaks_off_each_scan_is_given_up_in_time(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works at each for longer than a server may be away, so it is tried again until a scan would have ended."""
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(connection, "LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(connection, "SCAN_SECONDS", 3.0)
    with open_store(mongod_uri) as store, ThreadPoolExecutor(1) as executor:
        len(store)
        with mongod.fail_point("find", times=None, error_code=91, block_s=0.7) as count:
            ended = executor.submit(store.matching, {"caption": "x"})  # type: ignore[attr-defined]
            with pytest.raises(StoreUnreachableError, match=SILENT):
                ended.result(WAIT_S)
            assert count() > 2  # the driver itself asks twice
        assert store.matching({"_id": {"$lt": 3}}).tolist() == [0, 1, 2]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_query_to_a_dead_server_ends_in_the_time_of_the_place(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mongod_uri, RECORDS)
    monkeypatch.setattr(connection, "LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(connection, "SCAN_SECONDS", 2 * WAIT_S)
    # For all of its time a ping looks for a server, which is longer than one is looked for otherwise.
    with open_store(f"{mongod_uri}?timeoutMS=1000&serverSelectionTimeoutMS=200") as store:
        len(store)
        mongod.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=SILENT):
            store.matching({"label": 1})  # type: ignore[attr-defined]
        assert time.monotonic() - began < WAIT_S  # of which 1 to 2 were waited for
