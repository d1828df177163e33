"""A writer stalls before one of its writes, and another writer makes a store. That store must stay intact."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from pymongo.monitoring import CommandStartedEvent

from dbloader import Record
from dbloader.errors import StoreExistsError, StoreLockedError
from dbloader.stores.mongo import lease
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.schema import is_records_collection
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, make_records, write, write_nothing, write_one_by_one, write_partial
from tests.support.mongo import Server
from tests.support.mongo_stores import StartListener

WRITES = ("insert", "update", "delete", "create", "createIndexes", "drop", "findAndModify")


def with_large(records: list[Record]) -> list[Record]:
    records[11].image = random.Random(11).randbytes(300_000)  # a record with two chunks in GridFS
    return records


START = with_large(make_records(12))[:6]
MINE = START + with_large(make_records(12, seed=5))[6:]
OTHERS = START + with_large(make_records(20, seed=7))[6:]


class Stalling(StartListener):
    """Calls ``function`` before write ``number`` of a client. The write waits until ``function`` returns.

    Attributes:
        writes: The names of the writes until the stall.
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

    @property
    def stalled(self) -> bool:
        """Whether the client reached the write with this number."""
        assert self._stalls == self._ended, "the driver has printed what went wrong in the meantime"
        return self._stalls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "ended", "other", "step"),
    [
        ("fresh", "finished", "resumes", 4),
        *(
            pytest.param(*case, 1, marks=pytest.mark.nightly)
            for case in (
                ("fresh", "finished", "resumes"),
                ("fresh", "finished", "overwrites"),
                ("fresh", "left", "overwrites"),
                ("overwrites", "finished", "overwrites"),
                ("resumes", "finished", "resumes"),
            )
        ),
    ],
)
def test_writer_stalled_before_a_write_leaves_a_newer_store_intact(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, begun: str, ended: str, other: str, step: int
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 3600.0)  # the client's thread stalls too
    stalls = 0
    # The stalling writer has its own client, and everything else shares a second client.
    with mongo_server.client() as client, closing(Connection(parse(f"{mongo_uri}?journal=false&appName=other"))):
        for number in itertools.count(step=step):
            # Nothing crashes here, so no write needs to wait for the disk.
            trial = Trial(client, f"{mongo_uri}{number}?journal=false", number, overwrites=other == "overwrites")
            prepare(trial.other, begun)
            options = {"overwrite": begun == "overwrites", "resume": begun == "resumes", "resumable": ended != "left"}
            finished = False
            with suppress(StoreLockedError, StoreExistsError), monkeypatch.context() as patch:
                listening = functools.partial(pymongo.MongoClient, event_listeners=[trial.stalling])
                patch.setattr(pymongo, "MongoClient", listening)
                with create_store(trial.place, **options) as writer:
                    write_one_by_one(writer, MINE[:9])
                    writer.commit()
                    write_one_by_one(writer, MINE)
                    if ended == "finished":
                        writer.finish()
                        finished = True
            if not trial.stalling.stalled:
                break
            if trial.written is not None:
                stalls += 1
                assert finished == trial.was_published, trial.stalling.writes
                trial.check()
    assert stalls >= 3


class Trial:
    """A writer that stalls before one of its writes while another writer makes a store at the same place."""

    def __init__(self, client: pymongo.MongoClient[Any], place: str, number: int, *, overwrites: bool) -> None:
        self.place, self.other = place, f"{place}&appName=other"
        self.stalling = Stalling(number, self.write_another)
        self.written: list[Record] | None = None
        self.was_published = False
        self._overwrites = overwrites
        self._collection = parse(place).collection
        self._database = client[parse(place).database]
        self._meta = self._database[f"{self._collection}.manifest"]

    def write_another(self) -> None:
        found = self._meta.find_one({"_id": "store"}) or {}
        if "writer" not in found:
            return  # the stalling writer has already released the place
        self.was_published = found.get("manifest", {}).get("length") == len(MINE)
        long_ago = datetime(2001, 1, 1, tzinfo=UTC)
        self._meta.update_one({"_id": "store"}, {"$set": {"writer.expires": long_ago}})
        with create_store(self.other, overwrite=True, resume=not self._overwrites) as writer:
            records = MINE[: writer.length] + OTHERS[writer.length :]
            write_one_by_one(writer, records)
            writer.finish()
        self.written = records

    def check(self) -> None:
        assert self.written is not None
        check_is(self.other, self.written)
        for _ in range(2):
            write_nothing(self.other, overwrite=True)
        check_is(self.other, self.written)
        store = (self._meta.find_one({"_id": "store"}) or {})["store"]
        names = self._database.list_collection_names()
        own = [name for name in names if is_records_collection(name, self._collection)]
        assert own == [f"{self._collection}.{store}"], self.stalling.writes


def prepare(place: str, begun: str) -> None:
    """Write what is at the place before the stalling writer begins."""
    if begun == "overwrites":
        write(place, START)
        write(place, START, overwrite=True)  # now the first store can be removed
    if begun == "resumes":
        write_partial(place, START)
