"""Servers that take what is asked and never answer: reading and converting end in time, with one error."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from mongo_servers import Proxy
from store_contract import documents_of, make_records, write_one_by_one

from dbloader import Record, create_store, open_store
from dbloader.errors import StoreUnreachableError
from dbloader.records import encode
from dbloader.stores.mongo import connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mongo_servers import Mongod

RECORDS = make_records(30)
SHORT = "timeoutMS=1000&serverSelectionTimeoutMS=500&connectTimeoutMS=500"
SILENT = r"^the server of mongodb://.*store was away for too long \("


@pytest.fixture
def proxy(mongod: Mongod) -> Iterator[Proxy]:
    with Proxy(mongod.port) as proxy:
        yield proxy


def test_reading_ends_in_time(proxy: Proxy, mongod_uri: str) -> None:
    with create_store(mongod_uri) as writer:
        write_one_by_one(writer, RECORDS)
        writer.finish()
    with open_store(f"{proxy.through(mongod_uri)}?{SHORT}") as store:
        assert store.documents([3]) == documents_of(RECORDS)[3:4]
        proxy.stall()
        for use in (lambda: store.read([3, 5]), lambda: store.find("a"), lambda: store.column("label"), store.names):
            began = time.monotonic()
            with pytest.raises(StoreUnreachableError, match=SILENT):
                use()
            assert time.monotonic() - began < 10  # of which 2 to 4 were waited for
        proxy.flow()
        assert store.documents([5]) == documents_of(RECORDS)[5:6]


def test_opening_ends_in_time(proxy: Proxy, mongod_uri: str) -> None:
    proxy.stall()
    place = f"{proxy.through(mongod_uri)}?{SHORT}"
    for use in (lambda: len(open_store(place)), lambda: create_store(place).__enter__()):
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"no server answers at|was away for too long"):
            use()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("at", ["commit", "finish"])
def test_writing_ends_in_time_and_can_be_resumed(proxy: Proxy, mongod_uri: str, at: str) -> None:
    def write_on() -> None:
        with create_store(f"{proxy.through(mongod_uri)}?{SHORT}", resumable=True) as writer:
            writer.write(encode(record) for record in RECORDS[:20])
            writer.commit()
            if at == "finish":
                writer.write(encode(record) for record in RECORDS[20:])
                writer.commit()
            proxy.stall()
            if at == "commit":
                writer.write(encode(record) for record in RECORDS[20:])
            writer.finish()

    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=SILENT):
        write_on()
    assert time.monotonic() - began < 20
    proxy.flow()
    with create_store(mongod_uri, resume=True) as writer:
        assert writer.length == (20 if at == "commit" else 30)
        writer.write(encode(record) for record in RECORDS[writer.length :])
        writer.finish()
    with open_store(mongod_uri) as store:
        assert store.documents(range(30)) == documents_of(RECORDS)


def test_one_silent_connection_costs_its_time_and_no_more(proxy: Proxy, mongod_uri: str) -> None:
    with create_store(mongod_uri) as writer:
        write_one_by_one(writer, RECORDS)
        writer.finish()
    with open_store(f"{proxy.through(mongod_uri)}?socketTimeoutMS=500") as store:
        len(store)
        proxy.forget()  # as a firewall does: what is open leads nowhere, and what is opened now does
        began = time.monotonic()
        assert store.documents([3]) == documents_of(RECORDS)[3:4]
        assert time.monotonic() - began < 20


# Of it the line below carries 2 MB in each second, which is silence of over half a second; of 12 s all comes through.
SLOW = "socketTimeoutMS=500"


def slow_records() -> list[Record]:
    return [Record(name=f"{number}", image=random.Random(number).randbytes(250_000)) for number in range(16)]


def test_reading_over_a_slow_line_takes_its_time(mongod: Mongod, mongod_uri: str) -> None:
    with create_store(mongod_uri) as writer:
        writer.write(encode(record) for record in slow_records())
        writer.finish()
    with (
        Proxy(mongod.port, bytes_per_s=2e6) as proxy,
        open_store(f"{proxy.through(mongod_uri)}?{SLOW}") as store,
    ):
        for _ in range(2):
            assert store.documents(range(16)) == documents_of(slow_records())
        # What was not whole came once more for the first batch; the second is given its time at once.
        assert proxy.bytes_to_client < 3.5 * 4e6


def test_writing_over_a_slow_line_takes_its_time(mongod: Mongod, mongod_uri: str) -> None:
    with (
        Proxy(mongod.port, bytes_per_s=2e6) as proxy,
        create_store(f"{proxy.through(mongod_uri)}?{SLOW}") as writer,
    ):
        for _ in range(2):
            writer.write(encode(record) for record in slow_records())
            writer.commit()
        writer.finish()
    with open_store(mongod_uri) as store:
        assert store.documents(range(16)) == documents_of(slow_records())
        assert len(store) == 32
        assert store.verify() == store.manifest.digest


def test_a_slow_line_of_too_little_ends_in_time(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 2.0)
    with create_store(mongod_uri) as writer:
        writer.write(encode(record) for record in slow_records())
        writer.finish()
    with (
        Proxy(mongod.port, bytes_per_s=2e5) as proxy,
        open_store(f"{proxy.through(mongod_uri)}?{SLOW}") as store,
    ):
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=SILENT):
            store.documents(range(16))
        assert time.monotonic() - began < 15  # of 20 s that it would take
