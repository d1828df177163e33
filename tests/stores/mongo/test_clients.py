"""Each process has one client per server, which gets its password from the environment."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from pymongo import MongoClient

from dbloader import open_store
from dbloader.errors import PlaceError, StoreAccessError
from tests.contracts.records import documents_of, make_records, stored, write
from tests.support.images import command, plant_photos, running
from tests.support.mongo import Mongod

RECORDS = make_records(4)
PASSWORD = "s3cret/@:%"  # the password of `mongod_with_users`
NAME = "DBLOADER_MONGODB_PASSWORD"

# Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def place(mongod_with_users: Mongod) -> Iterator[str]:
    """A place with a user and without a password."""
    yield f"mongodb://root@127.0.0.1:{mongod_with_users.port}/dbloader_users.password?authSource=admin"
    mongod_with_users.drop("dbloader_users")


def connections(client: MongoClient[Any]) -> int:
    """Return the number of connections to the server, including this client's."""
    return int(client.admin.command("serverStatus")["connections"]["current"])


@pytest.mark.slow
def test_stores_of_a_process_share_one_client(mongod: Mongod, mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with mongod.client() as client:
        before, threads = connections(client), threading.active_count()
        stores = [open_store(mongod_uri) for _ in range(100)]
        for store in stores:
            assert stored(store, [1]) == documents_of(RECORDS)[1:2]
        assert threading.active_count() <= threads + 2
        assert connections(client) <= before + 3
    for store in stores[:-1]:
        store.close()
    assert stored(stores[-1], [2]) == documents_of(RECORDS)[2:3]  # closing the other stores has not closed the client
    del stores, store
    gc.collect()
    for thread in [thread for thread in threading.enumerate() if "pymongo" in thread.name]:
        thread.join(60)  # closing the client ends it
        assert not thread.is_alive(), thread.name


def test_password_is_read_from_environment(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(place) as store, pytest.raises(PlaceError, match=f"a user but no password: set .* {NAME}$"):
        len(store)
    with monkeypatch.context() as patch:
        patch.setenv(NAME, PASSWORD)
        write(place, RECORDS)
        with open_store(place) as store:
            assert stored(store, range(4)) == documents_of(RECORDS)
            assert PASSWORD not in repr(store) + str(store.__getstate__())
    monkeypatch.setenv(NAME, "wrong-sentinel")
    with open_store(place) as store, pytest.raises(StoreAccessError, match="refuses this user") as refused:
        len(store)
    assert "sentinel" not in str(refused.value)
    with open_store(place.replace("root@", f"root:{quote_plus(PASSWORD)}@")) as store:  # this password takes precedence
        assert len(store) == 4


@pytest.mark.slow
def test_password_is_not_in_processes_or_files(place: str, tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 40)
    (tmp_path / "images/cat/bad.jpg").write_bytes(b"text")  # the report is written to the working directory
    environment = {**os.environ, NAME: PASSWORD, "TMPDIR": str(tmp_path)}
    listed = set()
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        running(command("convert", "images", place), cwd=tmp_path, env=environment, stdout=out, stderr=out) as process,
    ):
        while process.poll() is None:
            listed |= set(commands_of_processes())
    assert process.returncode == 1, log.read_text()
    assert any(place in text for text in listed)
    texts = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(texts) > 40
    for secret in (PASSWORD, quote_plus(PASSWORD)):
        assert not [text for text in (*listed, *texts) if secret in text]


def commands_of_processes() -> Iterator[str]:
    """Yield the command line of each process on the machine, as ps shows command lines."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
