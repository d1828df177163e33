"""Fixtures for all tests."""

import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from pymongo import common, periodic_executor

pytest.register_assert_rewrite("tests.support", "tests.contracts")

from tests.support.leaks import no_leaks  # noqa: E402 - only what is imported from here on is rewritten
from tests.support.mongo import Mongod, ReplicaSet, Server  # noqa: E402
from tests.support.object_store import ObjectStore, Outside  # noqa: E402
from tests.support.servers import needing_a_server  # noqa: E402

# Seconds until the threads of a closed client end, and until a client asks a silent server again. The default, 0.5 s,
# would make every test with a client 0.5 s longer.
common.MIN_HEARTBEAT_INTERVAL = 0.02

# On a loaded machine, examples may take longer than Hypothesis allows.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

# Shells make background processes ignore Ctrl-C, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """End a forked child that hangs, as `faulthandler_timeout` ends its parent.

    A child that hangs would keep the pipe of a dead xdist worker open, and the test run would wait forever. The timer
    survives exec, so servers for the whole session stop the timer in `preexec_fn`.
    """
    seconds = float(config.getini("faulthandler_timeout"))
    if seconds:
        faulthandler.register(signal.SIGALRM, os.dup(2), chain=True)
        os.register_at_fork(after_in_child=lambda: signal.setitimer(signal.ITIMER_REAL, seconds))


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail every test that leaves a thread, a child process or an open file behind.

    Servers of the session do not count, because pytest starts them before this fixture notes what is running. pytest
    does so only if the server is an argument of the test or of its fixtures: `request.getfixturevalue` in a test would
    start the server too late. A server that restarts is started by the same child process as before.

    In tests with a GPU, files do not count, because CUDA opens files and keeps them.
    """
    with no_leaks(files=request.node.get_closest_marker("cuda") is None):
        yield
        _await_closed_clients()


def _await_closed_clients() -> None:
    """Wait for threads of closed clients, which is faster than the garbage collection of `no_leaks`."""
    for reference in list(periodic_executor._EXECUTORS):
        executor = reference()
        if executor is not None and executor._stopped:
            executor.join(1)


@pytest.fixture(scope="session")
def session_mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """A server for other fixtures. Tests use `mongod` or `mongo_uri`."""
    with needing_a_server(), Mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server


@pytest.fixture(scope="session")
def mongo_server(request: pytest.FixtureRequest) -> Server:
    """The server in $DBLOADER_TEST_MONGO_URI, or one of our own. Tests must not stop it; see `mongod`."""
    uri = os.environ.get("DBLOADER_TEST_MONGO_URI")
    server: Server = Server(uri) if uri else request.getfixturevalue("session_mongod")
    with server.client() as client:
        client.admin.command("ping")
    return server


@pytest.fixture
def mongo_uri(mongo_server: Server) -> Iterator[str]:
    """A place in a new database, which is dropped at the end."""
    with mongo_server.fresh_place() as place:
        yield place


@pytest.fixture
def mongod(session_mongod: Mongod) -> Iterator[Mongod]:
    """A server that the test may kill, restart and make fail. It is restored after the test."""
    yield session_mongod
    session_mongod.restore()


@pytest.fixture
def mongod_uri(mongod: Mongod) -> Iterator[str]:
    """A place on `mongod`, in a database that is dropped at the end."""
    with mongod.fresh_place() as place:
        yield place


@pytest.fixture(scope="session")
def mongod_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """A server that requires passwords. Its URI contains a user with all rights."""
    folder = tmp_path_factory.mktemp("mongod-with-users")
    with needing_a_server(), Mongod(folder, credentials=("root", "s3cret/@:%")) as server:
        yield server


@pytest.fixture(scope="session")
def session_replica_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """A replica set for other fixtures. Tests use `replica_set`."""
    with needing_a_server(), ReplicaSet(1, tmp_path_factory.mktemp("replica-set")) as servers:
        yield servers


@pytest.fixture
def replica_set(session_replica_set: ReplicaSet) -> Iterator[ReplicaSet]:
    """A replica set of one member, which the test may stop. The set is restored after the test."""
    yield session_replica_set
    session_replica_set.restore()


@pytest.fixture
def replica_set_uri(replica_set: ReplicaSet) -> Iterator[str]:
    """A place on `replica_set`, in a database that is dropped at the end."""
    with replica_set.fresh_place() as place:
        yield place


@pytest.fixture(scope="session")
def session_three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """A replica set for other fixtures. Tests use `three_members`."""
    with needing_a_server(), ReplicaSet(3, tmp_path_factory.mktemp("three-members")) as servers:
        yield servers


@pytest.fixture
def three_members(session_three_members: ReplicaSet) -> Iterator[ReplicaSet]:
    """A replica set of three members, which the test may stop. The set is restored after the test."""
    yield session_three_members
    session_three_members.restore()


@pytest.fixture
def three_members_uri(three_members: ReplicaSet) -> Iterator[str]:
    """A place on `three_members`, in a database that is dropped at the end."""
    with three_members.fresh_place() as place:
        yield place


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 server with the bucket ``images``. Each test uses a different place."""
    with needing_a_server(), ObjectStore() as server:
        yield server


@pytest.fixture(scope="session")
def outside(object_store: ObjectStore) -> Iterator[Outside]:
    """A separate process in which tests use object storage."""
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


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that any user can open. pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)
