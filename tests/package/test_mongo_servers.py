"""The servers and the proxy that other tests rely on do what they promise."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient, uri_parser
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

from tests.support import mongo as mongo_servers
from tests.support.leaks import find_resources
from tests.support.mongo import Mongod, Proxy, Server, ServerFailedError, ServerMissingError, needing_a_server

if TYPE_CHECKING:
    from collections.abc import Iterator


WAIT_S = 20.0
REASON = "no mongod on PATH, and the package none-such is not installed"


def database_of(place: str) -> str:
    return str(uri_parser.parse_uri(place)["database"])


@contextlib.contextmanager
def connected(uri: str, **options: Any) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=1000, **options) as client:
        yield client


class TestFinding:
    @pytest.fixture(autouse=True)
    def _none_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(mongo_servers, "PACKAGE", "none-such")

    def test_a_missing_server_skips(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match=REASON), needing_a_server(), Mongod():
            pass

    def test_a_missing_server_fails_in_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        with pytest.raises(ServerMissingError, match=REASON), needing_a_server(), Mongod():
            pass

    def test_one_that_does_not_run_is_as_good_as_missing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        mongod = tmp_path / "mongod"
        mongod.write_text("#!/bin/sh\necho libcurl.so.4 is missing >&2\nexit 127\n")
        mongod.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ServerMissingError, match=r"does not run: libcurl\.so\.4 is missing"), Mongod():
            pass


class TestPlaces:
    @pytest.mark.parametrize(
        ("uri", "place"),
        [
            ("mongodb://host", "mongodb://host/db.store"),
            ("mongodb://a:1,b:2/?replicaSet=r", "mongodb://a:1,b:2/db.store?replicaSet=r"),
            ("mongodb://u:p@host/", "mongodb://u:p@host/db.store?authSource=admin"),
            ("mongodb://u:p@host/users?w=1", "mongodb://u:p@host/db.store?authSource=users&w=1"),
            ("mongodb://u:p@host/?authSource=x", "mongodb://u:p@host/db.store?authSource=x"),
        ],
    )
    def test_they_keep_the_options_of_the_server(self, uri: str, place: str) -> None:
        assert Server(uri).place("db") == place


class TestMongod:
    @pytest.mark.slow
    def test_killed_it_comes_back_with_what_was_journaled(self, mongod: Mongod, mongod_uri: str) -> None:
        before = find_resources()
        with mongod.client() as client:
            command = {"insert": "store", "documents": [{"_id": 1}], "writeConcern": {"j": True}}
            client[database_of(mongod_uri)].command(command)
        mongod.kill()
        mongod.start()
        with mongod.client() as client:
            assert list(client[database_of(mongod_uri)]["store"].find()) == [{"_id": 1}]
        assert find_resources().pids == before.pids, "a restart shows as a new child"

    @pytest.mark.slow
    @pytest.mark.usefixtures("session_mongod")  # which skips where there is none
    def test_it_ends_with_the_process_that_started_it(self, tmp_path: Path) -> None:
        program = (
            "import pathlib, signal, sys\n"
            "from tests.support.mongo import Mongod\n"
            "server = Mongod(pathlib.Path(sys.argv[1]))\n"
            "server.start()\n"
            "print(server.pid, flush=True)\n"
            "signal.pause()\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "mongod")]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            descriptor = os.pidfd_open(int(process.stdout.readline()))
            process.kill()
        try:
            assert select.select([descriptor], [], [], WAIT_S)[0], "it runs on"
        finally:
            os.close(descriptor)
        shutil.rmtree(tmp_path / "mongod")  # 300 MB of journal

    @pytest.mark.usefixtures("session_mongod")
    def test_one_that_cannot_start_says_why_and_leaves_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "mongod"
        with (
            pytest.raises(ServerFailedError, match=r"its log ends in\n(.|\n)*unrecogni[sz]ed option '--none-such'"),
            Mongod(folder, options=["--none-such"]),
        ):
            pass
        assert not folder.exists()

    def test_it_fails_as_often_as_asked(self, mongod: Mongod) -> None:
        with mongod.client() as client:
            collection = client.get_database("any").get_collection("any")
            for _ in range(2):  # the server goes on counting; we begin anew
                with mongod.fail_point("aggregate", times=2, error_code=6) as count:
                    for expected in (1, 2):
                        with pytest.raises(OperationFailure, match="failCommand") as caught:
                            collection.database.command("aggregate", "any", pipeline=[], cursor={})
                        assert caught.value.code == 6
                        assert count() == expected
                    assert collection.find_one() is None
                    collection.database.command("aggregate", "any", pipeline=[], cursor={})
                    assert count() == 2
            with (
                mongod.fail_point("find", times=None, close_connection=True),
                pytest.raises(AutoReconnect, match="connection closed"),
            ):
                collection.find_one()  # and its one retry
            assert collection.find_one() is None

    def test_its_users_need_their_password(self, mongod_with_users: Mongod) -> None:
        with connected(mongod_with_users.place("any")) as client:
            assert client["any"].list_collection_names() == []
        with (
            connected(f"mongodb://127.0.0.1:{mongod_with_users.port}/") as client,
            pytest.raises(OperationFailure, match="requires authentication"),
        ):
            client["any"].list_collection_names()


class TestProxy:
    @pytest.mark.parametrize("delay_s", [0.0, 0.05])
    def test_what_goes_through_arrives_after_the_delay(self, mongod: Mongod, delay_s: float) -> None:
        document = {"_id": 1, "bytes": os.urandom(3_000_000)}
        with Proxy(mongod.port, delay_s=delay_s) as proxy, connected(proxy.through(mongod.uri)) as client:
            client.admin.command("ping")
            start = time.perf_counter()
            client.admin.command("ping")
            assert time.perf_counter() - start >= delay_s
            assert client.admin.command("hello", comment=document)["ok"] == 1
            assert proxy.bytes_to_server > 3_000_000
            assert proxy.bytes_to_client > 0
            assert proxy.connections >= 2

    @pytest.mark.slow
    def test_cut_it_takes_new_connections_until_it_stops(self, mongod: Mongod) -> None:
        options: dict[str, Any] = {"retryReads": False, "serverMonitoringMode": "poll"}
        with Proxy(mongod.port) as proxy, connected(proxy.through(mongod.uri), **options) as client:
            server = client.admin
            server.command("ping")
            proxy.cut()
            with pytest.raises(AutoReconnect, match="connection closed"):
                server.command("ping")
            assert server.command("ping")["ok"] == 1
            proxy.stop_accepting()
            assert server.command("ping")["ok"] == 1, "an open connection stays"
            proxy.cut()
            with pytest.raises(AutoReconnect, match="connection closed"):
                server.command("ping")
            with pytest.raises(ServerSelectionTimeoutError, match="refused"):
                server.command("ping")
            proxy.accept()
            assert server.command("ping")["ok"] == 1


def test_what_the_compose_file_starts_is_pinned_and_reachable_from_this_machine_only() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="comes with pre-commit")
    compose = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())
    services = compose["services"].values()
    assert {service["image"] for service in services} == {compose["x-image"]}
    assert re.fullmatch(r"mongo:\d+\.\d+\.\d+", compose["x-image"])
    ports = [port for service in services for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(port.startswith("127.0.0.1:") for port in ports)
    volumes = {volume.partition(":")[0] for service in services for volume in service.get("volumes", [])}
    assert volumes == set(compose["volumes"])
    sharded = {name for name, service in compose["services"].items() if service.get("profiles") == ["sharded"]}
    assert sharded == {"sharded-router", *compose["services"]["sharded-router"]["depends_on"]}
