"""Connect a process to a server, and repeat operations that fail while the server restarts.

All stores of a process share one client for each server. The password of a place that has only a user comes from the
environment.
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

# How long the first use waits for a server: a wrong host should be reported within seconds.
SELECTION_SECONDS = 5.0
# How long one answer may take before the request is repeated on another connection. Even a slow disk reads a batch
# in less time.
SILENCE_SECONDS = 10.0
# How long an operation is repeated after its first failure: longer than a restart or an election (10 s by default).
RETRY_SECONDS = 60.0
# How long the server may take for a query that may have to read all documents.
SCAN_SECONDS = 600.0
# Pauses between attempts grow up to this.
LONGEST_PAUSE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.05
# How long operations are repeated after one was given up: closing must not take a minute for each operation.
_AFTER_FAILURE_SECONDS = 2.0
# Routers and firewalls silently forget connections that are idle for minutes.
_IDLE_SECONDS = 60.0

PASSWORD = "DBLOADER_MONGODB_PASSWORD"


class SharedClient:
    """A client that is closed when the last reference to this object is gone, or when the interpreter exits."""

    def __init__(self, place: MongoURI) -> None:
        self.client = _make_client(place)
        weakref.finalize(self, _close, self.client, os.getpid())


_clients: weakref.WeakValueDictionary[tuple[object, ...], SharedClient] = weakref.WeakValueDictionary()
# Clients of the parent process. Closing or garbage-collecting them would end the parent's sessions.
_inherited: list[SharedClient] = []
_lock = threading.Lock()


def _get_client(place: MongoURI) -> SharedClient:
    """Return this process's client for the server and options of a place."""
    with _lock:
        shared = _clients.get(place.server)
        if shared is None:
            shared = _clients[place.server] = SharedClient(place)
        return shared


def _make_client(place: MongoURI) -> pymongo.MongoClient[Any]:
    defaults: dict[str, Any] = {
        "connect": False,  # the first use connects
        "appname": "dbloader",
        "serverMonitoringMode": "poll",  # needs half the threads and connections, which many workers multiply
        "serverSelectionTimeoutMS": round(1000 * SELECTION_SECONDS),
        "connectTimeoutMS": round(1000 * SELECTION_SECONDS),
        "socketTimeoutMS": round(1000 * SILENCE_SECONDS),
        "maxIdleTimeMS": round(1000 * _IDLE_SECONDS),
        # Connection.retry repeats operations. The driver would do it once, and never for getMore.
        "retryReads": False,
        "retryWrites": False,
    }
    options = {name: value for name, value in defaults.items() if name.lower() not in place.options}
    if query := place.uri.partition("?")[2]:
        uri_parser.split_options(query, warn=False)  # the client itself would only warn, and repeat the values
    return pymongo.MongoClient(place.uri, **options)


def _close(client: pymongo.MongoClient[Any], pid: int) -> None:
    if pid == os.getpid():
        client.close()


def _begin_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that exists only in the parent may hold the old lock
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_begin_child)


class Connection:
    """One process's client for a server, and the database of one place.

    Options in the place take precedence over dbloader's. A writer always reads from the primary, and its writes wait
    for a majority of the members unless the place sets ``w``.

    Raises:
        PlaceError: The place has an option that cannot be used, or needs a password and none is given.
    """

    def __init__(self, place: MongoURI, *, writing: bool = False) -> None:
        self.place = _add_password(place)
        self.pid = os.getpid()
        self._writing = writing
        self._reached = False  # a server has answered
        self._failed = False  # the last operation was given up
        problem = ""
        try:
            self._shared: SharedClient | None = _get_client(self.place)
            if writing and not self.client.write_concern.acknowledged:
                problem = "without an answer to its writes (w=0) no store can be written"
            if self.client.read_concern.level == "available":
                problem = (
                    "with readConcernLevel=available a sharded cluster may answer with records that it has moved away: "
                    "leave it out"
                )
            if self.client.options.timeout == 0:
                problem = (
                    "timeoutMS=0 would wait forever for an absent server: leave it out, for a minute, or give the "
                    "milliseconds for which to try"
                )
        except (errors.PyMongoError, ValueError, TypeError, OSError) as error:
            problem = str(error)
        if problem:  # raised outside ``except``: the driver's error would show the connection string
            raise PlaceError(f"{place.redacted} cannot be used: {self.place.redact(problem)}")

    @property
    def client(self) -> pymongo.MongoClient[Any]:
        """The driver's client."""
        assert self._shared is not None, "closed"
        return self._shared.client

    @property
    def database(self) -> Database[Any]:
        """The database of the place. It decodes documents as LMDB stores do, whatever the place's options are."""
        options: dict[str, Any] = {}
        if self._writing:
            concern = WriteConcern(**{"w": "majority", **self.client.write_concern.document})
            options = {"read_preference": Primary(), "read_concern": ReadConcern("local"), "write_concern": concern}
        return self.client.get_database(self.place.database, codec_options=CodecOptions(), **options)

    def retry(
        self, function: Callable[[], T], seconds: float | None = None, *, scan: Collection[Any] | None = None
    ) -> T:
        """Call a function, and repeat the call after temporary errors. Repeated calls must do no harm.

        Calls are repeated for RETRY_SECONDS (``timeoutMS`` of the place) after the first failure: before it, the
        function may have worked for an hour.

        If an answer takes longer than SILENCE_SECONDS (``socketTimeoutMS``), the next attempt uses another connection
        and may take all the remaining time: the line may be slow, not silent.

        Args:
            function: What to do.
            seconds: Repeat until this many seconds after the call began, instead.
            scan: A collection that the server may have to read document by document. After the server has answered a
                ping, such a scan may take SCAN_SECONDS. Meanwhile the driver checks on another connection, every 10 s
                (``heartbeatFrequencyMS``), that the server is there, and interrupts the scan if it is not.
        """
        if self._failed:
            seconds = _AFTER_FAILURE_SECONDS
        # When to give up, and when an attempt must end; None for the driver's own time limits.
        deadline = until = None if seconds is None else time.monotonic() + seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                if scan is not None:
                    # Without this ping, the driver would wait for a server as long as a scan may take.
                    scan.database.command("ping", read_preference=scan.read_preference)
                    until = time.monotonic() + SCAN_SECONDS
                # A timeout of 0 would mean forever.
                with nullcontext() if until is None else pymongo.timeout(max(0.01, until - time.monotonic())):
                    result = function()
            except errors.PyMongoError as error:
                now = time.monotonic()
                timed_out = isinstance(error, (errors.NetworkTimeout, errors.ExecutionTimeout))
                if scan is not None and timed_out and now - began > 0.9 * SCAN_SECONDS:
                    raise StoreError(
                        f"{self.place.redacted}: the server has not finished a search within {SCAN_SECONDS:g} s; "
                        "it looks through all documents if the fields of the search have no index: make an index"
                    ) from error
                deadline = now + self._retry_seconds() if deadline is None else deadline
                if isinstance(error, errors.NetworkTimeout):
                    until = deadline
                if not self._is_temporary(error) or now + pause > deadline:
                    self._failed = is_transient(error)
                    # The text of a BulkWriteError repeats whole records.
                    cause = None if isinstance(error, errors.BulkWriteError) else error
                    raise translate(error, self.place, waited=self._selection_seconds()) from cause
            except BSONError as error:
                raise DamagedStoreError(
                    f"{self.place.redacted} has a document that cannot be decoded ({error!s:.200}): "
                    "convert again, or copy the store again from where it is whole"
                ) from error
            else:
                self._reached, self._failed = True, False
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _retry_seconds(self) -> float:
        given = self.client.options.timeout
        return RETRY_SECONDS if given is None else float(given)

    def _selection_seconds(self) -> float | None:
        """Return how long the driver has looked for a server if none has ever answered, else None."""
        options = self.client.options
        return None if self._reached else options.timeout or options.server_selection_timeout

    def _is_temporary(self, error: errors.PyMongoError) -> bool:
        """Return whether to try again. If no server has ever answered, the host may be wrong."""
        if isinstance(error, errors.ServerSelectionTimeoutError) and not self._reached:
            # A replica set without a primary counts as reached.
            self._reached = self.client.topology_description.has_known_servers
            return self._reached
        return is_transient(error)

    def close(self) -> None:
        """Release the client. It is closed if nothing else uses it."""
        self._shared = None


def retried(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Run a method of an object with a ``connection`` in ``Connection.retry``. Such methods must not nest."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", self.connection.retry(lambda: method(self, *args, **kwargs)))

    return call


def _add_password(place: MongoURI) -> MongoURI:
    """Return a place with the password of its user. If the place has none, read it from the environment."""
    user, password = place.credentials
    if not user or password is not None or not place.takes_password:
        return place
    found = os.environ.get(PASSWORD)
    if found is None:
        raise PlaceError(f"{place.redacted} has a user and no password: set the environment variable {PASSWORD} to it")
    scheme, _, rest = place.uri.partition("://")
    return place._replace(uri=f"{scheme}://{user}:{quote_plus(found)}@{rest.partition('@')[2]}")
