"""One client for each server in a process, and where its password comes from."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest

from dbloader import open_store
from dbloader.errors import PlaceError, StoreAccessError
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, make_records, stored, write
from tests.support.children import from_child
from tests.support.images import command, plant_photos, running
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo import MongoClient

    from dbloader.stores.base import Store
    from tests.support.mongo import Mongod

RECORDS = make_records(4)
PASSWORD = "s3cret/@:%"  # of `mongod_with_users`

# Python >= 3.12 warns of every fork of a process with threads, which every client of a server has.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def connections(client: MongoClient[Any]) -> int:
    """How many there are to the server, with those of this client: it is asked by one that stays open meanwhile."""
    return int(client.admin.command("serverStatus")["connections"]["current"])


@pytest.mark.slow
def test_many_stores_share_one_client(mongod: Mongod, mongod_uri: str) -> None:
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
    assert stored(stores[-1], [2]) == documents_of(RECORDS)[2:3]  # the others have not closed it
    del stores, store
    gc.collect()
    for thread in [thread for thread in threading.enumerate() if "pymongo" in thread.name]:
        thread.join(60)  # a client that is closed has told it to end
        assert not thread.is_alive(), thread.name


def test_a_forked_child_makes_its_own_client_and_leaves_its_parents_alone(mongod_uri: str) -> None:
    write(mongod_uri, RECORDS)
    with open_store(mongod_uri) as one, open_store(mongod_uri) as other:
        assert len(one) == len(other) == 4
        assert from_child(lambda: documents_and_close(one)) == documents_of(RECORDS)
        assert stored(other, range(4)) == stored(one, range(4)) == documents_of(RECORDS)


def documents_and_close(store: Store) -> list[bytes]:
    documents = stored(store, range(4))
    store.close()
    gc.collect()
    return documents


def test_a_password_comes_from_the_environment_or_a_file(
    mongod_with_users: Mongod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = f"mongodb://root@127.0.0.1:{mongod_with_users.port}/dbloader_users.password?authSource=admin"
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("DBLOADER_MONGODB_PASSWORD", PASSWORD)
            write(place, RECORDS)
        with monkeypatch.context() as patch:
            patch.setenv("DBLOADER_MONGODB_PASSWORD_FILE", str(file))
            with open_store(place) as store:
                assert stored(store, range(4)) == documents_of(RECORDS)
                assert PASSWORD not in repr(store) + str(store.__getstate__())
            file.chmod(0o640)
            with (
                open_store(place) as store,
                pytest.raises(StoreAccessError, match=r"may be read by others than its owner: chmod 600 "),
            ):
                len(store)
            file.unlink()
            with open_store(place) as store, pytest.raises(StoreAccessError, match=r"cannot be read: No such file"):
                len(store)
        with (
            open_store(place) as store,
            pytest.raises(
                PlaceError,
                match=r"a user and no password: set the environment variable DBLOADER_MONGODB_PASSWORD to it, or ",
            ) as caught,
        ):
            len(store)
        assert PASSWORD not in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setenv("DBLOADER_MONGODB_PASSWORD", "wrong-sentinel")
            with open_store(place) as store, pytest.raises(StoreAccessError, match="refuses this user") as refused:
                len(store)
            assert "sentinel" not in str(refused.value)
            # One that stands in the place goes before.
            with open_store(place.replace("root@", f"root:{quote_plus(PASSWORD)}@")) as store:
                assert len(store) == 4
    finally:
        mongod_with_users.drop("dbloader_users")


@pytest.mark.slow
def test_a_password_is_in_no_list_of_processes_and_in_no_file(mongod_with_users: Mongod, tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 300)
    (tmp_path / "images/cat/bad.jpg").write_bytes(b"text")  # for a report
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    place = f"mongodb://root@127.0.0.1:{mongod_with_users.port}/dbloader_users.listed?authSource=admin"
    environment = {**os.environ, "DBLOADER_MONGODB_PASSWORD_FILE": str(file), "TMPDIR": str(tmp_path)}
    listed = set()
    try:
        log = tmp_path / "log"
        with (
            log.open("w") as out,
            running(
                command("convert", "images", place), cwd=tmp_path, env=environment, stdout=out, stderr=out
            ) as process,
        ):
            while process.poll() is None:
                listed |= set(commands_of_processes())
        assert process.returncode == 1, log.read_text()
        assert any(place in text for text in listed)
        file.unlink()
        texts = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
        assert len(texts) > 300
        for secret in (PASSWORD, quote_plus(PASSWORD)):
            assert not [text for text in (*listed, *texts) if secret in text]
    finally:
        mongod_with_users.drop("dbloader_users")


def commands_of_processes() -> Iterator[str]:
    """The command line of each process of the machine, as ps shows it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def test_converting_with_a_password_from_the_environment_shows_it_nowhere(
    mongod_with_users: Mongod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = plant_photos(tmp_path / "images", 3)
    place = f"mongodb://root@127.0.0.1:{mongod_with_users.port}/dbloader_users.converted?authSource=admin"
    monkeypatch.setenv("DBLOADER_MONGODB_PASSWORD", PASSWORD)
    try:
        done = Shell(monkeypatch, capfd)("convert", root, place)
        assert (done.status, PASSWORD in done.stdout + done.stderr) == (0, False)
    finally:
        mongod_with_users.drop("dbloader_users")


@pytest.mark.parametrize("user", ["jane@", "", "a%40b@"])
def test_a_user_without_a_password_is_no_secret(user: str) -> None:
    place = parse(f"mongodb://{user}host/db.a?w=1")
    assert place.without_credentials() == place
    assert "jane" not in place.redacted


@pytest.mark.parametrize("scheme", ["mongodb:/", "mongodb:", "mongodb//", "MongoDB:///x/", "mongo://", "mongodb+srv:/"])
def test_a_mistyped_place_shows_no_password(scheme: str) -> None:
    from dbloader import LMDBDataset, MongoDataset

    place = f"{scheme}jane:pass-sentinel@host/db.train"
    for use in (open_store, create_store, LMDBDataset, MongoDataset):
        with pytest.raises(PlaceError, match=r"(?i)mongodb") as caught:
            use(place)
        assert "sentinel" not in str(caught.value)
