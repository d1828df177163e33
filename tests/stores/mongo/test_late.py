"""Commands that a server runs long after the writer has repeated them: none changes what was written since."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import Record
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, make_records, write_one_by_one, write_partial
from tests.support.mongo_stores import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.mongo import Mongod

RECORDS = make_records(60)
# The writer repeats a command after a part of a second. The server runs the first one after two more commits.
SILENT_MS, HELD_UP_S = 300, 1.2


@pytest.fixture(autouse=True)
def _many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 1000)


def wait_until_run(mongod: Mongod) -> None:
    """Return when the server has nothing left of what it held up."""
    running: list[dict[str, Any]] = [
        {"$currentOp": {}},
        {"$match": {"active": True, "command.$db": {"$nin": ["admin", None]}, "command.hello": {"$exists": False}}},
    ]
    with mongod.client() as client:
        wait_until(lambda: not list(client.admin.aggregate(running)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "command"),
    [
        ("begin", "createIndexes"),
        ("begin", "update"),
        *((commit, command) for commit in ("commit", "second commit") for command in ("insert", "update")),
        ("finish", "insert"),
        ("finish", "update"),
        ("finish", "delete"),
    ],
)
def test_a_command_that_runs_late_changes_nothing(mongod: Mongod, mongod_uri: str, step: str, command: str) -> None:
    place = f"{mongod_uri}?socketTimeoutMS={SILENT_MS}"
    write_partial(place, RECORDS[:10])

    def at(now: str) -> None:
        """Hold up the next such command of a step that begins; the step before has had its own."""
        assert [count() for count in counts] == [1] * len(counts)
        if now == step:
            counts.append(stack.enter_context(mongod.fail_point(command, times=1, block_s=HELD_UP_S)))

    counts: list[Callable[[], int]] = []
    with ExitStack() as stack:
        at("begin")
        with create_store(place, resume=True) as writer:
            write_one_by_one(writer, RECORDS[:20])
            at("commit")
            writer.commit()
            write_one_by_one(writer, RECORDS[:30])
            at("second commit")
            writer.commit()
            write_one_by_one(writer, RECORDS)
            at("finish")
            writer.finish()
        at("end")
        assert counts
        wait_until_run(mongod)
    check_is(mongod_uri, RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "skipped"),
    [("insert", 0), ("insert", 1), ("insert", 2), ("find", 0), ("find", 3)],
)
def test_a_late_command_of_a_large_record_changes_nothing(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, command: str, skipped: int
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(3)]
    with create_store(f"{mongod_uri}?socketTimeoutMS={SILENT_MS}") as writer:
        write_one_by_one(writer, records[:skipped])
        writer.commit()
        with mongod.fail_point(command, times=1, block_s=HELD_UP_S) as count:
            write_one_by_one(writer, records)
            writer.finish()
            assert count() == 1
    wait_until_run(mongod)
    check_is(mongod_uri, records)
