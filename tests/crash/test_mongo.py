"""Conversions to MongoDB whose process or server is killed at any moment lose and duplicate no record.

With DBLOADER_TEST_MONGO_URI, that server is used and only processes are killed.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from contextlib import suppress
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import NotAStoreError, StoreExistsError, StoreNotFoundError
from dbloader.stores.mongo.schema import LARGE, MANIFEST, STORE
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import open_store
from tests.support.crash import Whole, check_whole, converting, kill, trials, wait_until
from tests.support.mongo import Mongod, Server

GIVEN = "DBLOADER_TEST_MONGO_URI" in os.environ
OWN = {"mongod": "session_mongod", "replica_set": "session_replica_set"}
SERVERS = {"mongo_server": "mongo_server"} if GIVEN else OWN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures(*SERVERS.values()),
    # Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def seconds(whole: Whole, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> float:
    """Return the seconds that a conversion takes after its first commit."""
    server: Server = request.getfixturevalue(next(iter(SERVERS.values())))
    database = f"dbloader_test_{uuid.uuid4().hex[:12]}"
    place = server.place(database)
    with converting(whole, place, log=tmp_path_factory.mktemp("seconds") / "log") as process:
        wait_until_begun(process, server, place)
        began = time.monotonic()
        process.join()
        elapsed = time.monotonic() - began
    server.drop(database)
    return max(elapsed, 0.2)


def wait_until_begun(process: ForkProcess, server: Server, place: str) -> None:
    """Wait until a writer has made a commit."""
    at = parse(place)
    with server.client() as client:
        meta = client[at.database][f"{at.collection}{MANIFEST}"]
        wait_until(process, lambda: meta.find_one({"_id": STORE, "partial.progress": {"$exists": True}}) is not None)


def check_alone(whole: Whole, place: str, server: Server) -> None:
    """Check that a place has the complete store and no other collection of records."""
    check_whole(whole, place)
    at = parse(place)
    with server.client() as client:
        names = [name for name in client[at.database].list_collection_names() if not name.endswith(MANIFEST)]
        names = [name for name in names if name not in (at.collection, "system.views")]  # the view
        counts = {name: client[at.database][name].count_documents({}) for name in names if LARGE not in name}
    assert list(counts.values()) == [len(whole.documents)], counts


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def place(server: Any, request: pytest.FixtureRequest) -> str:
    name = "mongo_uri" if GIVEN else "mongod_uri" if isinstance(server, Mongod) else "replica_set_uri"
    return str(request.getfixturevalue(name))


@pytest.mark.parametrize("number", trials(2, 1))
def test_conversion_killed_at_any_moment_is_resumed(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, server: Any, place: str, number: int
) -> None:
    """In every second trial, the process is killed three times."""
    generator = random.Random(number)
    for attempt in range(3 if number % 2 else 1):
        with converting(whole, place, *(["--resume"] if attempt else []), log=tmp_path / "log") as process:
            if attempt == 0:
                wait_until_begun(process, server, place)
            process.join(generator.uniform(0, 1.3 * seconds / (attempt + 1)))
            killed = kill(process)
        if killed and attempt == 0:
            with open_store(place) as store, suppress(NotAStoreError, StoreNotFoundError):
                assert store.manifest.digest == whole.digest  # the store was published before the kill
    monkeypatch.chdir(tmp_path)  # the report is written to the working directory
    try:
        convert(whole.root, place, resume=True)
    except StoreExistsError as error:
        if "there is nothing to resume" not in str(error):
            raise
    check_alone(whole, place, server)


@pytest.mark.skipif(GIVEN, reason="a server that the user provides is not killed")
@pytest.mark.parametrize("number", trials(2, 1))
def test_conversion_continues_after_its_server_is_killed(
    whole: Whole, tmp_path: Path, seconds: float, server: Any, place: str, number: int
) -> None:
    """In every second trial, the server is killed three times."""
    member = server if isinstance(server, Mongod) else server.members[0]
    generator = random.Random(number)
    with converting(whole, place, log=tmp_path / "log") as process:
        wait_until_begun(process, server, place)
        for _ in range(3 if number % 2 else 1):
            process.join(generator.uniform(0, seconds))
            member.kill()
            process.join(generator.uniform(0, 0.3))
            member.start()
        process.join(60)
        assert (process.exitcode, (tmp_path / "log").read_text()) == (1, "")  # some files are rejected
    check_alone(whole, place, server)
