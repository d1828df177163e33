"""Fixtures of all tests."""

import contextlib
import faulthandler
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
from pymongo import common, periodic_executor

pytest.register_assert_rewrite("tests.support", "tests.contracts")

from tests.support.leaks import no_leaks  # noqa: E402 - only what is imported from here on is rewritten
from tests.support.mongo import Mongod, ReplicaSet, Server, needing_a_server  # noqa: E402
from tests.support.object_store import ObjectStore, Outside, needing_object_storage  # noqa: E402
from tests.support.stand_in_router import StandInRouter  # noqa: E402

# Seconds. A closed client's threads sleep for so long before they notice: 0.5, in every test that has a client, by
# default. (It is also how long a client at least waits before it asks a server again that does not answer.)
common.MIN_HEARTBEAT_INTERVAL = 0.02

# Whoever runs the tests in the background has them ignore Ctrl-C, which their children would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# In place of coverage's own lock. A process forks only when no other thread holds it, since a child has none of its
# parent's threads and would wait forever. A thread may enter it twice: objects that are freed during a fork run lines
# of dbloader, which coverage counts.
_coverage_lock = threading.RLock()
os.register_at_fork(
    before=_coverage_lock.acquire, after_in_parent=_coverage_lock.release, after_in_child=_coverage_lock.release
)


@pytest.hookimpl(trylast=True)  # coverage has begun
def pytest_sessionstart() -> None:
    collector = getattr(coverage.Coverage.current(), "_collector", None)
    if collector is not None:
        collector.data_lock = _coverage_lock


def pytest_configure(config: pytest.Config) -> None:
    """End a forked child that hangs, as `faulthandler_timeout` ends its parent.

    It would keep the pipe of a dead xdist worker open, and the run would wait for it forever. The timer outlasts exec:
    a server for the whole session that is started with `preexec_fn` must stop it there.
    """
    seconds = float(config.getini("faulthandler_timeout"))
    if seconds:
        faulthandler.register(signal.SIGALRM, os.dup(2), chain=True)
        os.register_at_fork(after_in_child=lambda: signal.setitimer(signal.ITIMER_REAL, seconds))


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails every test that leaves a thread, a child process or an open file behind.

    Servers that last for the session are not counted: pytest sets up the fixtures of a session before those of a
    function, so they are there before this one looks. It knows them from the arguments of tests and fixtures; one that
    is first asked for by `request.getfixturevalue` in a test or in a function's fixture counts as left behind. They
    hold no client (see `mongo_servers`), and one that is killed and started again stays below the same child process.

    In the tests that need a GPU, files are not counted: CUDA opens its own when it first needs them, and keeps them.
    """
    with no_leaks(files=request.node.get_closest_marker("cuda") is None):
        yield
        _await_closed_clients()


def _await_closed_clients() -> None:
    """Spare the check for leaks the search of garbage for what is just ending."""
    for reference in list(periodic_executor._EXECUTORS):
        executor = reference()
        if executor is not None and executor._stopped:
            executor.join(1)


@pytest.fixture(scope="session")
def session_mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """For other fixtures; tests ask for `mongod` or `mongo_uri`."""
    with needing_a_server(), Mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server


@pytest.fixture(scope="session")
def mongo_server(request: pytest.FixtureRequest) -> Server:
    """The server that $DBLOADER_TEST_MONGO_URI names, else one of our own; it may be used, not harmed: see `mongod`."""
    uri = os.environ.get("DBLOADER_TEST_MONGO_URI")
    # Only where it is needed is our own started.
    server: Server = Server(uri) if uri else request.getfixturevalue("session_mongod")
    with server.client() as client:
        client.admin.command("ping")
    return server


@pytest.fixture
def mongo_uri(mongo_server: Server) -> Iterator[str]:
    """The place of a store in a database that is not there yet, and is dropped at the end."""
    with _fresh_place(mongo_server) as place:
        yield place


@pytest.fixture
def mongod(session_mongod: Mongod) -> Iterator[Mongod]:
    """A server of our own that the test may kill, restart, pause and make fail; it is put right at the end."""
    yield session_mongod
    session_mongod.restore()


@pytest.fixture
def mongod_uri(mongod: Mongod) -> Iterator[str]:
    """The place of a store on `mongod`, in a database that is dropped at the end."""
    with _fresh_place(mongod) as place:
        yield place


@pytest.fixture(scope="session")
def mongod_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """A server that wants a password; its URI has those of a user with all rights."""
    folder = tmp_path_factory.mktemp("mongod-with-users")
    with needing_a_server(), Mongod(folder, credentials=("root", "s3cret/@:%")) as server:
        yield server


@pytest.fixture(scope="session")
def session_replica_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """For other fixtures; tests ask for `replica_set`."""
    with needing_a_server(), ReplicaSet(1, tmp_path_factory.mktemp("replica-set")) as servers:
        yield servers


@pytest.fixture
def replica_set(session_replica_set: ReplicaSet) -> Iterator[ReplicaSet]:
    """A replica set of one member, to which the test may do anything; it is put right at the end."""
    yield session_replica_set
    session_replica_set.restore()


@pytest.fixture
def replica_set_uri(replica_set: ReplicaSet) -> Iterator[str]:
    """The place of a store on `replica_set`, in a database that is dropped at the end."""
    with _fresh_place(replica_set) as place:
        yield place


@pytest.fixture(scope="session")
def session_three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """For other fixtures; tests ask for `three_members`."""
    with needing_a_server(), ReplicaSet(3, tmp_path_factory.mktemp("three-members")) as servers:
        yield servers


@pytest.fixture
def three_members(session_three_members: ReplicaSet) -> Iterator[ReplicaSet]:
    """A replica set of three members, to which the test may do anything; it is put right at the end."""
    yield session_three_members
    session_three_members.restore()


@pytest.fixture
def three_members_uri(three_members: ReplicaSet) -> Iterator[str]:
    """The place of a store on `three_members`, in a database that is dropped at the end."""
    with _fresh_place(three_members) as place:
        yield place


@pytest.fixture(scope="session")
def session_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInRouter]:
    """For other fixtures; tests ask for `router`."""
    with needing_a_server(), StandInRouter(tmp_path_factory.mktemp("router")) as servers:
        yield servers


@pytest.fixture
def router(session_router: StandInRouter) -> Iterator[StandInRouter]:
    """A stand-in for the router of a sharded cluster, and two servers, to which the test may do anything."""
    yield session_router
    session_router.restore()


@pytest.fixture
def router_uri(router: StandInRouter) -> Iterator[str]:
    """The place of a store behind `router`, in a database that is dropped at the end."""
    with _fresh_place(router) as place:
        yield place


@contextlib.contextmanager
def _fresh_place(server: Server) -> Iterator[str]:
    database = f"dbloader_test_{uuid.uuid4().hex[:12]}"
    yield server.place(database)
    if isinstance(server, Mongod | ReplicaSet | StandInRouter):
        server.restore()
    server.drop(database)
    for report in Path.cwd().glob(f"{database}.*.report.jsonl"):  # where a conversion into it leaves one
        report.unlink()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 server with the bucket ``images``; each test takes a place of its own in it."""
    with needing_object_storage(), ObjectStore() as server:
        yield server


@pytest.fixture(scope="session")
def outside(object_store: ObjectStore) -> Iterator[Outside]:
    """A process for what uses object storage."""
    with Outside(object_store) as process:
        yield process


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m,nr_inodes=20", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
