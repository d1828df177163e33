"""Connect a process to a server, and repeat operations that fail while the server restarts.

All stores of a process share one client for each server. If the URI of a store has a user but no password, the password
is read from the environment.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote_plus

import pymongo
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from pymongo import errors, uri_parser
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, PlaceError, StoreError
from dbloader.stores.mongo.errors import is_transient, translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.uri import MongoURI

P = ParamSpec("P")
T = TypeVar("T")

# The first operation waits this long for a server, so a wrong host is reported within seconds.
SELECTION_SECONDS = 5.0
# If no answer arrives in this time, the request is repeated on another connection. Even slow disks answer sooner.
SILENCE_SECONDS = 10.0
# A failed operation is repeated for this long. A restart of the server or an election (10 s by default) takes less.
RETRY_SECONDS = 60.0
# Time limit for a query that may have to read all documents.
SCAN_SECONDS = 600.0
# The pause between attempts doubles from the first pause to the longest.
LONGEST_PAUSE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.05
# After an operation was given up, later operations are repeated only this long, so closing is quick.
_AFTER_FAILURE_SECONDS = 2.0
# Idle connections are closed after this time. After minutes, routers and firewalls would silently drop them.
_IDLE_SECONDS = 60.0

PASSWORD = "DBLOADER_MONGODB_PASSWORD"


class SharedClient:
    """A client that is closed when this object is garbage-collected, or when the interpreter exits."""

    def __init__(self, place: MongoURI) -> None:
        self.client = _make_client(place)
        weakref.finalize(self, _close, self.client, os.getpid())


_clients: weakref.WeakValueDictionary[tuple[object, ...], SharedClient] = weakref.WeakValueDictionary()
# Clients of the parent process. A forked child keeps them, because closing or deleting one ends the parent's sessions.
_inherited: list[SharedClient] = []
_lock = threading.Lock()


def _get_client(place: MongoURI) -> SharedClient:
    """Return this process's client for the server and options of a URI."""
    with _lock:
        shared = _clients.get(place.client_key)
        if shared is None:
            shared = _clients[place.client_key] = SharedClient(place)
        return shared


def _make_client(place: MongoURI) -> pymongo.MongoClient[Any]:
    defaults: dict[str, Any] = {
        "connect": False,  # the first use connects
        "appname": "dbloader",
        "serverMonitoringMode": "poll",  # polling halves the threads and connections of each worker
        "serverSelectionTimeoutMS": round(1000 * SELECTION_SECONDS),
        "connectTimeoutMS": round(1000 * SELECTION_SECONDS),
        "socketTimeoutMS": round(1000 * SILENCE_SECONDS),
        "maxIdleTimeMS": round(1000 * _IDLE_SECONDS),
        # Connection.retry repeats operations. The driver would repeat an operation only once, and never repeat getMore.
        "retryReads": False,
        "retryWrites": False,
    }
    options = {name: value for name, value in defaults.items() if name.lower() not in place.options}
    if place.query:
        # This call raises an error for a wrong option. MongoClient would only warn, and show the options' values.
        uri_parser.split_options(place.query, warn=False)
    return pymongo.MongoClient(place.uri, **options)


def _close(client: pymongo.MongoClient[Any], pid: int) -> None:
    if pid == os.getpid():
        client.close()


def _begin_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that exists only in the parent process may hold the old lock
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_begin_child)


class Patience:
    """The time that one operation and its repetitions may take. If ``seconds`` is None, the driver's limits apply."""

    def __init__(self, seconds: float | None) -> None:
        self._deadline = self._until = None if seconds is None else time.monotonic() + seconds
        self._pause = _FIRST_PAUSE_SECONDS

    def allow(self, seconds: float) -> None:
        """Allow the next call to take this many seconds from now on."""
        self._until = time.monotonic() + seconds

    def time_left(self) -> float | None:
        """Return how long the next call may take, in seconds; None if the driver's limits apply."""
        return None if self._until is None else max(0.01, self._until - time.monotonic())  # 0 would mean no limit

    def after(self, error: errors.PyMongoError, seconds: float) -> float | None:
        """Return the pause before the next attempt in s; None if ``seconds`` have passed since the first failure."""
        now, pause = time.monotonic(), self._pause
        if self._deadline is None:
            self._deadline = now + seconds
        if isinstance(error, errors.NetworkTimeout):
            self._until = self._deadline
        if now + pause > self._deadline:
            return None
        self._pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return pause * random.uniform(0.5, 1.0)


class Connection:
    """One process's client for a server, and the database in the URI ``place``.

    Options in the URI take precedence over dbloader's options. A writer always reads from the primary. A writer's
    writes wait for a majority of the replica set's members unless the URI sets ``w``.

    Raises:
        PlaceError: An option of the URI cannot be used, or a password is missing.
    """

    def __init__(self, place: MongoURI, *, writing: bool = False) -> None:
        self.place = _add_password(place)
        self.pid = os.getpid()
        self._writing = writing
        self._reached = False  # whether a server has answered
        self._failed = False  # whether the last operation was given up
        problem = None
        try:
            self._shared: SharedClient | None = _get_client(self.place)
            if writing and not self.client.write_concern.acknowledged:
                problem = "a store cannot be written with w=0, because dbloader must know that its writes succeeded"
        except (errors.PyMongoError, ValueError, TypeError, OSError) as error:
            problem = self.place.redact(str(error))
        if problem is not None:  # raised outside ``except``, so no traceback shows the driver's error with credentials
            raise PlaceError(f"{place.redacted} cannot be used: {problem}")

    @property
    def client(self) -> pymongo.MongoClient[Any]:
        """The driver's client."""
        assert self._shared is not None, "closed"
        return self._shared.client

    @property
    def database(self) -> Database[Any]:
        """The database in the URI. No option of the URI changes how the database decodes documents."""
        options: dict[str, Any] = {}
        if self._writing:
            concern = WriteConcern(**{"w": "majority", **self.client.write_concern.document})
            options = {"read_preference": Primary(), "read_concern": ReadConcern("local"), "write_concern": concern}
        return self.client.get_database(self.place.database, codec_options=CodecOptions(), **options)

    def retry(self, function: Callable[[], T], *, scan: Collection[Any] | None = None) -> T:
        """Call a function, and repeat the call after temporary errors. The function must be safe to repeat.

        Calls are repeated until RETRY_SECONDS after the first failure. The URI's option ``timeoutMS`` replaces this
        limit.

        If an answer takes longer than SILENCE_SECONDS (``socketTimeoutMS``), the next attempt uses another connection.
        That attempt may take all the remaining time, because the network may be slow.

        Args:
            function: The function to call.
            scan: The collection, if the server may have to read all its documents. After the server has answered a
                ping, this scan may take SCAN_SECONDS. During the scan, the driver pings the server on another
                connection every 10 s (``heartbeatFrequencyMS``). If the server does not answer, the scan fails.
        """
        patience = Patience(_AFTER_FAILURE_SECONDS if self._failed else None)
        while True:
            began = time.monotonic()
            try:
                if scan is not None:
                    # Without this ping, the driver would wait for a server as long as a scan may take.
                    scan.database.command("ping", read_preference=scan.read_preference)
                    patience.allow(SCAN_SECONDS)
                left = patience.time_left()
                with nullcontext() if left is None else pymongo.timeout(left):
                    result = function()
            except errors.PyMongoError as error:
                timed_out = isinstance(error, (errors.NetworkTimeout, errors.ExecutionTimeout))
                if scan is not None and timed_out and time.monotonic() - began > 0.9 * SCAN_SECONDS:
                    raise StoreError(
                        f"{self.place.redacted}: the server has not finished a search within {SCAN_SECONDS:g} s: make "
                        "an index of the fields in the query, because without an index the server reads all documents"
                    ) from error
                given = self.client.options.timeout
                pause = patience.after(error, RETRY_SECONDS if given is None else float(given))
                if not self._is_temporary(error) or pause is None:
                    self._failed = is_transient(error)
                    # A BulkWriteError is not shown as the cause, because its text repeats whole records.
                    cause = None if isinstance(error, errors.BulkWriteError) else error
                    raise translate(error, self.place, waited=self._selection_seconds()) from cause
            except BSONError as error:
                raise DamagedStoreError(
                    f"{self.place.redacted} has a document that cannot be decoded ({error!s:.200}): "
                    "convert again, or copy the store again from an undamaged copy"
                ) from error
            else:
                self._reached, self._failed = True, False
                return result
            time.sleep(pause)

    def _selection_seconds(self) -> float | None:
        """Return how long the driver looks for a server, in seconds; None if a server has answered before."""
        options = self.client.options
        return None if self._reached else options.timeout or options.server_selection_timeout

    def _is_temporary(self, error: errors.PyMongoError) -> bool:
        """Return whether to try again. If no server has ever answered, the host may be wrong, so return False."""
        if isinstance(error, errors.ServerSelectionTimeoutError) and not self._reached:
            # A replica set without a primary counts as reached if any of its members has answered.
            self._reached = self.client.topology_description.has_known_servers
            return self._reached
        return is_transient(error)

    def close(self) -> None:
        """Release the client. The client is closed when its last user has released it."""
        self._shared = None


def retried(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Decorate a method to run in ``self.connection.retry``. The method must not call another decorated method."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", self.connection.retry(lambda: method(self, *args, **kwargs)))

    return call


def _add_password(place: MongoURI) -> MongoURI:
    """Return a URI with its user's password. If the URI lacks the password, read it from the environment."""
    if not place.lacks_password:
        return place
    found = os.environ.get(PASSWORD)
    if found is None:
        raise PlaceError(f"{place.redacted} has a user but no password: set the environment variable {PASSWORD}")
    return place._replace(user=f"{place.user}:{quote_plus(found)}")
