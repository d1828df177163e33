"""A writer that stalls before any one of its writes, while another writes a store: the other's store stays whole."""

from __future__ import annotations

import functools
import itertools
import random
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pymongo
import pytest
from pymongo.monitoring import CommandListener

from dbloader import create_store, open_store
from dbloader.errors import StoreExistsError, StoreLockedError
from dbloader.stores.mongo import lease
from dbloader.stores.mongo.schema import is_own_collection
from dbloader.stores.mongo.uri import parse
from tests.contracts.store import documents_of, make_records, write_one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent

    from dbloader import Record
    from tests.support.mongo import Server

WRITES = ("insert", "update", "delete", "create", "createIndexes", "collMod", "drop", "findAndModify")


def with_large(records: list[Record]) -> list[Record]:
    records[11].image = random.Random(11).randbytes(300_000)  # two chunks in GridFS
    return records


START = with_large(make_records(12))[:6]
MINE = START + with_large(make_records(12, seed=5))[6:]
OTHERS = START + with_large(make_records(20, seed=7))[6:]


class Stalling(CommandListener):
    """Calls a function before one of the writes of a client, by its number, while that write waits.

    Attributes:
        writes: The writes that came up to that one, or all.
    """

    def __init__(self, number: int, function: Callable[[], None]) -> None:
        self._number = number
        self._function = function
        self._stalls = self._ended = False
        self.writes: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name not in WRITES or self._stalls:
            return
        self.writes.append(event.command_name)
        if len(self.writes) > self._number:
            self._stalls = True
            self._function()
            self._ended = True

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    @property
    def stalled(self) -> bool:
        """Whether the write came up."""
        assert self._stalls == self._ended, "the driver has printed what went wrong in the meantime"
        return self._stalls


def write(place: str, records: list[Record], **options: bool) -> None:
    with create_store(place, **options) as writer:
        write_one_by_one(writer, records)
        writer.finish()


def check_is(place: str, documents: list[bytes]) -> None:
    with open_store(place) as store:
        assert store.documents(range(len(store))) == documents
        assert store.verify() == store.manifest.digest


@contextmanager
def of_place(server: Server, place: str) -> Iterator[Any]:
    """Yield the `.manifest` collection of a place."""
    with server.client() as client:
        at = parse(place)
        yield client[at.database][f"{at.collection}.manifest"]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(
    ("begun", "ended", "other"),
    [
        ("fresh", "finished", "overwrites"),
        ("fresh", "finished", "resumes"),
        ("fresh", "left", "overwrites"),
        ("overwrites", "finished", "overwrites"),
        ("resumes", "finished", "resumes"),
    ],
)
def test_a_writer_that_stalls_before_any_write_leaves_anothers_store_whole(
    mongo_server: Server,
    mongo_uri: str,
    monkeypatch: pytest.MonkeyPatch,
    begun: str,
    ended: str,
    other: str,
    first: int,
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    monkeypatch.setattr(lease, "_REFRESH_SECONDS", 3600.0)  # its thread stalls too
    stalls = 0
    for number in itertools.count(first, 4):
        place = f"{mongo_uri}{number}"
        prepare(place, begun)
        expected: list[bytes] = []
        was_published = False

        def write_another() -> None:
            nonlocal expected, was_published
            with of_place(mongo_server, place) as manifests:  # noqa: B023 - called within the loop
                found = manifests.find_one({"_id": "store"}) or {}
                if "writer" not in found:
                    return  # the place is not taken yet, or is free again
                was_published = found.get("manifest", {}).get("length") == len(MINE)
                long_ago = datetime(2001, 1, 1, tzinfo=timezone.utc)
                manifests.update_one({"_id": "store"}, {"$set": {"writer.expires": long_ago}})
            # By another client, which does not stall.
            with create_store(f"{place}?appName=other", overwrite=True, resume=other == "resumes") as writer:  # noqa: B023
                records = MINE[: writer.length] + OTHERS[writer.length :]
                write_one_by_one(writer, records)
                writer.finish()
            expected = documents_of(records)

        stalling = Stalling(number, write_another)
        finished = False
        with suppress(StoreLockedError, StoreExistsError), monkeypatch.context() as patch:
            patch.setattr(pymongo, "MongoClient", functools.partial(pymongo.MongoClient, event_listeners=[stalling]))
            options = {"overwrite": begun == "overwrites", "resume": begun == "resumes", "resumable": ended != "left"}
            with create_store(place, **options) as writer:
                write_one_by_one(writer, MINE[:9])
                writer.commit()
                write_one_by_one(writer, MINE)
                if ended == "finished":
                    writer.finish()
                    finished = True
        if not stalling.stalled:
            break
        if not expected:
            continue
        stalls += 1
        before = f"before write {number}, {stalling.writes[-1]}"
        assert finished == was_published, before
        check_is(place, expected)
        for _ in range(2):
            with create_store(place, overwrite=True):
                pass  # it removes what was left
        check_is(place, expected)
        with of_place(mongo_server, place) as manifests:
            own = f"{parse(place).collection}.{manifests.find_one({'_id': 'store'})['store']}"
            names = manifests.database.list_collection_names()
            assert {name for name in names if is_own_collection(name, parse(place).collection)} == {own}, before
    assert stalls >= 3


def prepare(place: str, begun: str) -> None:
    """Write what is at a place before a writer begins there."""
    if begun == "overwrites":
        write(place, START)
        write(place, START, overwrite=True)  # so that there is something to remove
    if begun == "resumes":
        with create_store(place, resumable=True) as writer:
            write_one_by_one(writer, START)
            writer.commit()
