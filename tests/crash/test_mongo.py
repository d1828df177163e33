"""Conversions to MongoDB whose process or server is killed at any moment: nothing is lost or doubled.

DBLOADER_KILLS says how many times each test runs (3 if it is not set).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import NotAStoreError, StoreNotFoundError
from dbloader.stores.mongo.schema import LARGE, MANIFEST, STORE
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import open_store
from tests.support.images import plant_kinds, plant_photos, run, running, wait_until

if TYPE_CHECKING:
    from tests.support.mongo import Mongod, Server

KILLS = int(os.environ.get("DBLOADER_KILLS", "3"))
FILES = 500

# The command line, with a commit about every 10 files.
CODE = "import dbloader.stores.writer as writer; writer.COMMIT_BYTES = 30_000; from dbloader.cli import main; main()"


class Whole(NamedTuple):
    """An image folder, and what an uninterrupted conversion to LMDB makes of it."""

    root: Path
    digest: str
    documents: list[bytes]
    report: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("crash")
    root = plant_photos(folder / "images", FILES, width=64, height=48)
    plant_kinds(root, "half", "text", "no end marker", "dangling link", "png", "webp")
    report = convert(root, folder / "whole.lmdb")
    with open_store(report.place) as store:
        documents = store.documents(range(len(store)))
    return Whole(root, report.digest, documents, Path(report.report_file).read_text())


@pytest.fixture(scope="module")
def seconds(whole: Whole, tmp_path_factory: pytest.TempPathFactory, session_mongod: Mongod) -> float:
    """How long a conversion takes from its first commit on, in seconds."""
    place = session_mongod.place("dbloader_seconds")
    with running(arguments(whole, place), cwd=tmp_path_factory.mktemp("seconds"), stderr=subprocess.DEVNULL) as process:
        wait_until(process, lambda: has_begun(session_mongod, place))
        began = os.times().elapsed
        process.wait()
        elapsed = os.times().elapsed - began
    session_mongod.drop("dbloader_seconds")
    return max(elapsed, 0.2)


def arguments(whole: Whole, place: str, *options: str) -> list[str | Path]:
    return [sys.executable, "-c", CODE, "convert", whole.root, place, "--quiet", *options]


def has_begun(server: Server, place: str) -> bool:
    """Tell whether a writer has made a commit."""
    at = parse(place)
    with server.client() as client:
        found = client[at.database][f"{at.collection}.manifest"].find_one({"_id": STORE}) or {}
    return "progress" in found.get("partial", {})


def check_whole(whole: Whole, place: str, server: Server) -> None:
    at = parse(place)
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest == whole.digest
        assert store.documents(range(len(store))) == whole.documents
        assert [json.dumps(event, ensure_ascii=False) for event in store.events()] == whole.report.splitlines()
    with server.client() as client:
        names = [name for name in client[at.database].list_collection_names() if not name.endswith(MANIFEST)]
        names = [name for name in names if name not in (at.collection, "system.views")]  # the view
        counts = {name: client[at.database][name].count_documents({}) for name in names if LARGE not in name}
    assert list(counts.values()) == [len(whole.documents)], counts  # nothing is doubled


def finish(whole: Whole, place: str, folder: Path) -> None:
    done = run("convert", whole.root, place, "--resume", "--json", cwd=folder)
    if "there is nothing to resume" in done.stderr:
        return
    assert (done.status, done.stderr) == (1, "")  # some files are rejected


def kill_converter(whole: Whole, server: Server, place: str, folder: Path, seconds: float, number: int) -> None:
    """Kill a conversion, every third one three times, and resume it."""
    generator = random.Random(number)
    for attempt in range(3 if number % 3 == 2 else 1):
        options = ["--resume"] if attempt else []
        with running(arguments(whole, place, *options), cwd=folder, stderr=subprocess.DEVNULL) as process:
            if attempt == 0:
                wait_until(process, lambda: has_begun(server, place))
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0, 1.3 * seconds / (attempt + 1)))
            process.kill()
            killed = process.wait() == -signal.SIGKILL
        if killed and attempt == 0:
            with open_store(place) as store, suppress(NotAStoreError, StoreNotFoundError):
                assert store.manifest.digest == whole.digest  # it was in time
    finish(whole, place, folder)
    check_whole(whole, place, server)


def kill_server(
    whole: Whole, server: Server, member: Mongod, place: str, folder: Path, seconds: float, number: int
) -> None:
    """Kill the server during a conversion, every third time three times, and start it again."""
    generator = random.Random(number)
    with running(arguments(whole, place), cwd=folder, stderr=subprocess.PIPE) as process:
        wait_until(process, lambda: has_begun(server, place))
        for _ in range(3 if number % 3 == 2 else 1):
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0, seconds))
            member.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0, 0.3))
            member.start()
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (1, "")  # some files are rejected; it has not noticed more
    check_whole(whole, place, server)


def server_and_place(request: pytest.FixtureRequest, kind: str) -> tuple[Any, str]:
    return request.getfixturevalue(kind), request.getfixturevalue(f"{kind}_uri")


@pytest.mark.slow
@pytest.mark.usefixtures("session_mongod", "session_replica_set")
@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("kind", ["mongod", "replica_set"])
def test_a_conversion_killed_at_any_moment_can_be_resumed(
    whole: Whole, tmp_path: Path, seconds: float, kind: str, number: int, request: pytest.FixtureRequest
) -> None:
    server, place = server_and_place(request, kind)
    kill_converter(whole, server, place, tmp_path, seconds, number)


@pytest.mark.slow
@pytest.mark.usefixtures("session_mongod", "session_replica_set")
@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("kind", ["mongod", "replica_set"])
def test_a_conversion_survives_kills_of_its_server(
    whole: Whole, tmp_path: Path, seconds: float, kind: str, number: int, request: pytest.FixtureRequest
) -> None:
    server, place = server_and_place(request, kind)
    member = server if kind == "mongod" else server.members[0]
    kill_server(whole, server, member, place, tmp_path, seconds, number)
