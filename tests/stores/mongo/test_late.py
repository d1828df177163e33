"""Commands that a server runs late, after the writer has repeated them, do not change later writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest

from dbloader import Record
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, make_records, write_one_by_one, write_partial
from tests.support.mongo import Mongod
from tests.support.mongo_stores import wait_until

RECORDS = make_records(60)
# The writer repeats a command within a second. The server runs the first attempt only after two more commits.
SILENT_MS, HELD_UP_S = 300, 1.2


@pytest.fixture(autouse=True)
def _many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 1000)


def wait_until_run(mongod: Mongod) -> None:
    """Wait until the server has run all delayed commands."""
    running: list[dict[str, Any]] = [
        {"$currentOp": {}},
        {"$match": {"active": True, "command.$db": {"$nin": ["admin", None]}, "command.hello": {"$exists": False}}},
    ]
    with mongod.client() as client:
        wait_until(lambda: not list(client.admin.aggregate(running)))


STEPS = [("begin", "createIndexes"), ("begin", "update"), *product(("commit", "second commit"), ("insert", "update"))]
STEPS += [("finish", "insert"), ("finish", "update"), ("finish", "delete")]
IN_CI = [("commit", "insert"), ("finish", "update")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "command"), [pytest.param(*step, marks=[pytest.mark.nightly] * (step not in IN_CI)) for step in STEPS]
)
def test_command_that_runs_late_changes_nothing(mongod: Mongod, mongod_uri: str, step: str, command: str) -> None:
    place = f"{mongod_uri}?socketTimeoutMS={SILENT_MS}"
    write_partial(place, RECORDS[:10])

    def at(now: str) -> None:
        """Delay the next command at the chosen step, and check that the earlier delayed command was sent."""
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


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "already"), [("insert", 0), ("insert", 1), ("find", 0)])
def test_command_for_a_large_record_that_runs_late_changes_nothing(
    mongod: Mongod, mongod_uri: str, monkeypatch: pytest.MonkeyPatch, command: str, already: int
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    records = [Record(name=str(number), image=bytes([number]) * 600_000) for number in range(3)]
    with create_store(f"{mongod_uri}?socketTimeoutMS={SILENT_MS}") as writer:
        write_one_by_one(writer, records[:already])
        writer.commit()
        with mongod.fail_point(command, times=1, block_s=HELD_UP_S) as count:
            write_one_by_one(writer, records)
            writer.finish()
            assert count() == 1
    wait_until_run(mongod)
    check_is(mongod_uri, records)
