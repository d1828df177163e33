"""Servers that take what is asked and never answer: reading and converting end in time, with one error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from mongo_servers import Proxy
from store_contract import documents_of, make_records, write_one_by_one

from dbloader import create_store, open_store
from dbloader.errors import StoreUnreachableError
from dbloader.records import encode

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
