"""Write and check stores on a real server, and access their collections directly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandSucceededEvent
from pymongo.write_concern import WriteConcern

from dbloader import Record
from dbloader.stores.mongo.uri import parse
from tests.contracts.records import WAIT_S, write
from tests.support.mongo import Mongod, ReplicaSet, Server


class StartListener(CommandListener):
    """A listener of a client's commands that ignores how the commands end."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@contextmanager
def database_of(server: Server, place: str) -> Iterator[Database[Any]]:
    with server.client() as client:
        yield client[parse(place).database]


def document_of(database: Database[Any]) -> dict[str, Any]:
    """Return the document of the place ``store``."""
    return database["store.manifest"].find_one({"_id": "store"}) or {}


def records_in(database: Database[Any]) -> Any:
    """Return the collection with the records of the place ``store``: of the published store, or of a partial store."""
    document = document_of(database)
    return database[f"store.{document.get('store') or document['partial']['store']}"]


def insert_late(database: Database[Any], documents: dict[int, bytes]) -> None:
    """Insert records as a stalled writer does after another writer has taken over the place."""
    store = document_of(database)
    records = database[f"store.{(store.get('partial') or store)['store']}"]
    records.insert_many([RawBSONDocument(document) for document in documents.values()])


def expire_lease(server: Server, place: str) -> None:
    """Let other writers take over the place. The current writer does not notice this."""
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    with database_of(server, place) as database:
        database["store.manifest"].update_one({"_id": "store"}, {"$set": {"writer.expires": long_ago}})


def check_alone(database: Database[Any]) -> None:
    """Check that the database contains only the store, its manifest and its view."""
    names = set(database.list_collection_names()) - {"system.views"}
    assert names == {"store", records_in(database).name, "store.manifest"}


def fault(server: Mongod, *commands: str, code: int | None, times: int | None = 1) -> Any:
    """Make commands fail with an error code, or without a response."""
    return server.fail_point(*commands, times=times, error_code=code, close_connection=code is None)


@contextmanager
def paused(member: Mongod, point: str) -> Iterator[None]:
    """Pause the replication of a secondary: ``stopReplProducer`` pauses copying, ``rsSyncApplyStop`` applying."""
    with member.client() as client:
        before = client.admin.command("configureFailPoint", point, mode="alwaysOn")["count"]
        client.admin.command("waitForFailPoint", point, timesEntered=before + 1, maxTimeMS=round(1000 * WAIT_S))
    try:
        yield
    finally:
        with member.client() as client:
            client.admin.command("configureFailPoint", point, mode="off")


def wait_for_all_members(servers: ReplicaSet, place: str) -> None:
    """Wait until all three members have everything that was written before."""
    with database_of(servers, place) as database:
        database["other"].with_options(write_concern=WriteConcern(3)).insert_one({})


def write_through_fault(server: Mongod, place: str, records: list[Record], *commands: str, **fault: Any) -> None:
    """Write a store while a fail point interrupts the writing, then again without a fail point."""
    with ThreadPoolExecutor(1) as executor:
        with server.fail_point(*commands, **fault) as count:
            writing = executor.submit(write, place, records, overwrite=True)
            wait_until(lambda: writing.done() or count() > 0)
        writing.result(WAIT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
