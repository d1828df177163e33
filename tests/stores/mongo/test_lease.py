"""Leases on a place, and writers that another writer overtook while they were stalled."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record
from dbloader.errors import StoreLockedError
from dbloader.stores.mongo import catalog, lease
from dbloader.stores.open import create_store
from dbloader.stores.writer import Writer
from tests.contracts.records import (
    check_is,
    documents_of,
    make_records,
    write,
    write_nothing,
    write_one_by_one,
    write_partial,
)
from tests.support.children import in_child
from tests.support.mongo import Mongod, Server
from tests.support.mongo_stores import database_of, document_of, expire_lease, fault, insert_late, wait_until

RECORDS, OTHERS = make_records(60), make_records(60, seed=5)
OVERTAKEN = "another process has taken over the conversion"
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _seldom_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep writers from renewing their leases, as if they stalled."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 3600.0)


def enter(server: Server, place: str, *, overwrite: bool = False) -> Writer:
    """Return a writer that still considers its lease valid, although the lease has expired on the server."""
    writer = create_store(place, overwrite=overwrite, resume=not overwrite, resumable=True)
    writer.__enter__()
    expire_lease(server, place)
    return writer


def leave(writer: Writer) -> None:
    with suppress(StoreLockedError):  # the error that commit() raised already
        writer.__exit__(None, None, None)


def write_and_commit(writer: Writer, records: list[Record]) -> None:
    write_one_by_one(writer, records)
    writer.commit()


@pytest.mark.parametrize("resumable", [False, True])
def test_overtaken_writer_changes_nothing(mongo_server: Server, mongo_uri: str, resumable: bool) -> None:
    write_partial(mongo_uri, RECORDS[:10])
    stalled = enter(mongo_server, mongo_uri)
    stalled.resumable = resumable
    assert stalled.length == 10
    with create_store(mongo_uri, resume=True, resumable=True) as writer:
        assert writer.length == 10
        write_and_commit(writer, RECORDS[:20])
        # As if the stalled writer had just stored record 25. Afterwards it tries to store more records.
        with database_of(mongo_server, mongo_uri) as database:
            insert_late(database, {25: documents_of(OTHERS, writer.salt)[25]})
        with pytest.raises(StoreLockedError, match=OVERTAKEN):
            write_and_commit(stalled, OTHERS[:40])
        leave(stalled)
        write_one_by_one(writer, RECORDS)
        writer.finish()
    check_is(mongo_uri, RECORDS)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("left", [False, True], ids=["still writing", "left"])
def test_lease_taken_by_another_writer_is_not_renewed(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, committed: bool, left: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lease, "LEASE_SECONDS", 0.0)  # the lease expires at once, for the writer too
        stalled = create_store(mongo_uri, resume=True, resumable=True)
        stalled.__enter__()
        if committed:
            write_and_commit(stalled, RECORDS[:2])
    with database_of(mongo_server, mongo_uri) as database, ExitStack() as stack:
        begun = document_of(database)["partial"]["store"]
        writer = stack.enter_context(create_store(mongo_uri, resume=True, resumable=True))
        write_one_by_one(writer, (RECORDS if committed else OTHERS)[:9])
        # A store without a commit is not resumed, because the number of its records is unknown.
        assert (document_of(database)["partial"]["store"] == begun) == committed
        if left:
            writer.finish()
            stack.close()
        message = r"this process did not reach the server for over 60 s, and another process has written"
        with pytest.raises(StoreLockedError, match=message):
            write_and_commit(stalled, RECORDS[:20])
        leave(stalled)
        if not left:
            writer.finish()
    check_is(mongo_uri, (RECORDS if committed else OTHERS)[:9])


def test_lease_is_renewed_while_writing(mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    with create_store(mongo_uri) as writer, database_of(mongo_server, mongo_uri) as database:
        expires = document_of(database)["writer"]["expires"]
        wait_until(lambda: document_of(database)["writer"]["expires"] > expires)
        with pytest.raises(StoreLockedError, match="another process is writing"):
            write_nothing(mongo_uri)
        writer.finish()


def test_lease_of_a_killed_process_can_be_taken_at_once(mongo_uri: str) -> None:
    assert in_child(lambda: enter_and_die(mongo_uri)) == -signal.SIGKILL
    began = time.monotonic()
    write(mongo_uri, RECORDS)
    assert time.monotonic() - began < 10
    check_is(mongo_uri, RECORDS)


def enter_and_die(place: str) -> None:
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, RECORDS[:5])
        os.kill(os.getpid(), signal.SIGKILL)


def test_process_whose_name_is_not_utf8_writes_a_store(mongo_uri: str) -> None:
    def write_under_another_name() -> None:
        Path("/proc/self/comm").write_bytes(b"caf\xe9")
        write(mongo_uri, RECORDS[:3])

    assert in_child(write_under_another_name) == 0
    check_is(mongo_uri, RECORDS[:3])


def test_lease_of_another_machine_can_be_taken_only_after_it_expires(mongo_server: Server, mongo_uri: str) -> None:
    holder = {"token": "a", "host": "elsewhere", "machine": "another/pid:[1]", "pid": 7, "began": "1"}
    write(mongo_uri, RECORDS[:2])
    message = r"another process is writing mongodb://.* now \(process 7 on elsewhere\).* try again after 60 s"
    with database_of(mongo_server, mongo_uri) as database:
        place: Any = database["store.manifest"]
        soon = datetime.now(UTC) + timedelta(seconds=50)
        place.update_one({"_id": "store"}, {"$set": {"writer": {**holder, "expires": soon}}})
        with pytest.raises(StoreLockedError, match=message):
            write_nothing(mongo_uri, overwrite=True)
        place.update_one({"_id": "store"}, {"$set": {"writer.expires": LONG_AGO}})
        write(mongo_uri, RECORDS[:3], overwrite=True)
        assert "writer" not in document_of(database)
    check_is(mongo_uri, RECORDS[:3])


def test_lease_that_ends_too_late_is_shortened(mongo_server: Server, mongo_uri: str) -> None:
    holder = {"token": "a", "host": "elsewhere", "machine": "another/pid:[1]", "pid": 7, "began": "1"}
    write(mongo_uri, RECORDS[:2])
    with database_of(mongo_server, mongo_uri) as database:
        place: Any = database["store.manifest"]
        late = datetime.now(UTC) + timedelta(days=2)  # as if the server's clock was set back since
        place.update_one({"_id": "store"}, {"$set": {"writer": {**holder, "expires": late}}})
        with pytest.raises(StoreLockedError, match="try again after 60 s"):
            write_nothing(mongo_uri, overwrite=True)
        writer = document_of(database)["writer"]
        assert writer["expires"].replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(seconds=90)
        assert writer["token"] == "a"


def test_interrupted_release_of_a_lease_is_repeated(mongod: Mongod, mongod_uri: str) -> None:
    with ExitStack() as stack:
        with create_store(mongod_uri) as writer:
            writer.finish()
            count = stack.enter_context(fault(mongod, "update", code=None))
        assert count() == 1
    with database_of(mongod, mongod_uri) as database:
        assert set(document_of(database)) == {"_id", "store", "manifest"}


def test_writer_stalled_before_publishing_changes_nothing(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mongo_uri, RECORDS[:4])
    stalled = enter(mongo_server, mongo_uri, overwrite=True)
    write_and_commit(stalled, RECORDS)
    publish = catalog.Catalog.publish
    with monkeypatch.context() as patch, ExitStack() as stack:

        def stall(*arguments: Any) -> None:
            """Let another writer begin between the last check of the lease and the publishing write."""
            patch.undo()
            writer = stack.enter_context(create_store(mongo_uri, overwrite=True, resumable=True))
            write_and_commit(writer, OTHERS)
            publish(*arguments)

        patch.setattr(catalog.Catalog, "publish", stall)
        with pytest.raises(StoreLockedError, match=OVERTAKEN):
            stalled.finish()
        leave(stalled)
        check_is(mongo_uri, RECORDS[:4])
    write(mongo_uri, OTHERS, overwrite=True, resume=True)
    check_is(mongo_uri, OTHERS)


def test_writer_stalled_before_replacing_a_leftover_keeps_newer_records(
    mongo_server: Server, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_partial(mongo_uri, RECORDS[:3])
    stalled = enter(mongo_server, mongo_uri)
    with database_of(mongo_server, mongo_uri) as database:
        insert_late(database, {3: documents_of(make_records(4, seed=7), stalled.salt)[3]})
    check = catalog.Catalog.check_writer
    with monkeypatch.context() as patch, ExitStack() as stack:
        successors: list[Writer] = []

        def stall(*arguments: Any) -> None:
            """Let another writer replace the same leftover after the check of the lease."""
            patch.undo()
            check(*arguments)
            successors.append(stack.enter_context(create_store(mongo_uri, resume=True, resumable=True)))
            write_and_commit(successors[0], RECORDS[:4])

        patch.setattr(catalog.Catalog, "check_writer", stall)
        with pytest.raises(StoreLockedError, match=OVERTAKEN):
            write_and_commit(stalled, OTHERS[:4])
        leave(stalled)
        write_one_by_one(successors[0], RECORDS)
        successors[0].finish()
    check_is(mongo_uri, RECORDS)
