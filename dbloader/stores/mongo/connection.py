"""Connect a process to the server of one place, and repeat what fails while the server may come back.

``Connection.retry`` repeats a call after a temporary error: a primary steps down, a server restarts, a connection is
cut or silent. ``is_transient`` in errors.py says which errors are temporary. It tries for RETRY_SECONDS, or
``timeoutMS`` of the place, after the server last answered.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import pymongo
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from pymongo import errors
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary
from pymongo.write_concern import WriteConcern

from dbloader.errors import DamagedStoreError, PlaceError, StoreError
from dbloader.stores.mongo.clients import add_password, get_client
from dbloader.stores.mongo.errors import is_transient, translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.clients import SharedClient
    from dbloader.stores.mongo.uri import MongoURI

P = ParamSpec("P")
T = TypeVar("T")

# How long an operation is repeated: longer than a restart or an election (10 s by default) takes.
RETRY_SECONDS = 60.0
# How long the server may take for a query that may have to look through all documents.
SCAN_SECONDS = 600.0
# Pauses between attempts grow up to this.
LONGEST_PAUSE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.05
# How long operations are repeated after one has failed for good: closing must not take another minute for each.
_AFTER_FAILURE_SECONDS = 2.0


class Connection:
    """One process's client for a server, and the database of one place.

    Options of the place's connection string take precedence over dbloader's. A writer reads from the primary whatever
    the place says, and its writes wait for a majority of the members unless the place says otherwise.
    """

    def __init__(self, place: MongoURI, *, writing: bool = False) -> None:
        self.place = add_password(place)
        self.pid = os.getpid()
        self._writing = writing
        self._reached = False  # a server has answered
        self._failed = False  # the last operation was given up
        self._slow = False  # an answer took longer than SILENCE_SECONDS
        problem = ""
        try:
            self._shared: SharedClient | None = get_client(self.place)
            if writing and not self.client.write_concern.acknowledged:
                problem = "without an answer to its writes (w=0) no store can be written"
            if self.client.read_concern.level == "available":
                problem = (
                    "with readConcernLevel=available a sharded cluster may answer with records that it has moved away: "
                    "leave it out"
                )
            if self.client.options.timeout == 0:
                problem = (
                    "timeoutMS=0 would wait without end for a server that is away: leave it out, for about a minute, "
                    "or give the milliseconds for which to try"
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
        """The database of the place, which decodes documents as LMDB stores do, whatever the place's options say."""
        options: dict[str, Any] = {}
        if self._writing:
            concern = WriteConcern(**{"w": "majority", **self.client.write_concern.document})
            options = {"read_preference": Primary(), "read_concern": ReadConcern("local"), "write_concern": concern}
        return self.client.get_database(self.place.database, codec_options=CodecOptions(), **options)

    def retry(
        self, function: Callable[[], T], seconds: float | None = None, *, scan: Collection[Any] | None = None
    ) -> T:
        """Call a function, and again after temporary errors. Calling it twice must do no harm.

        It is repeated for RETRY_SECONDS (``timeoutMS`` of the place) from the start, or from the server's last answer
        if it has answered since: a function may have worked for an hour before it failed. ``seconds`` shortens that.

        If an answer takes longer than SILENCE_SECONDS (``socketTimeoutMS``), it is asked for again on another
        connection, and gets all the time that is left: the line may be slow, not silent. Later calls get that time at
        once.

        If the server may have to look through a collection document by document, ``scan`` is that collection. A scan
        gets SCAN_SECONDS at once, after the server has answered a ping. Meanwhile the driver asks the server every 10 s
        (``heartbeatFrequencyMS``), on its own connection, whether it is there, and interrupts the scan if no answer
        comes.
        """
        began, pause, slow = time.monotonic(), _FIRST_PAUSE_SECONDS, self._slow
        limit = _AFTER_FAILURE_SECONDS if self._failed else seconds
        if limit is None and slow:
            limit = self._retry_seconds()
        deadline = None if limit is None else began + limit
        while True:
            scan_began: float | None = None
            until = deadline if limit is not None or slow else None
            try:
                if scan is not None:
                    # Within the time of a scan, the driver would also wait that long for a server.
                    scan.database.command("ping", read_preference=scan.read_preference)
                    scan_began = time.monotonic()
                    until = scan_began + SCAN_SECONDS
                # A timeout of 0 would mean forever.
                with nullcontext() if until is None else pymongo.timeout(max(0.01, until - time.monotonic())):
                    result = function()
            except errors.PyMongoError as error:
                taken = 0.0 if scan_began is None else time.monotonic() - scan_began
                if isinstance(error, (errors.NetworkTimeout, errors.ExecutionTimeout)) and taken > 0.9 * SCAN_SECONDS:
                    raise StoreError(
                        f"{self.place.redacted}: the server has not finished a search within {SCAN_SECONDS:g} s; "
                        "it looks through all documents if the fields of the search have no index: make an index"
                    ) from error
                # A server that worked on a long scan was there until now. But the scan itself may be what crashes it.
                was_there = taken > self._retry_seconds() and time.monotonic() - began < SCAN_SECONDS
                if deadline is None or was_there:
                    deadline = max(began, time.monotonic() - self._silence_before(error)) + self._retry_seconds()
                slow = slow or isinstance(error, errors.NetworkTimeout)
                if not self._is_temporary(error) or time.monotonic() + pause > deadline:
                    self._failed = is_transient(error)
                    options = self.client.options  # whose timeoutMS is also the time for finding a server
                    waited = None if self._reached else options.timeout or options.server_selection_timeout
                    translated = translate(error, self.place, waited=waited)
                    # The text of a BulkWriteError repeats whole records.
                    raise translated from None if isinstance(error, errors.BulkWriteError) else error
            except BSONError as error:
                raise DamagedStoreError(
                    f"{self.place.redacted} has a document that cannot be decoded ({error!s:.200}): "
                    "convert again, or copy the store again from where it is whole"
                ) from error
            else:
                self._reached, self._failed, self._slow = True, False, slow
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _retry_seconds(self) -> float:
        given = self.client.options.timeout
        return RETRY_SECONDS if given is None else float(given)

    def _silence_before(self, error: errors.PyMongoError) -> float:
        """Return for how many seconds the server may have been silent before an error."""
        options = self.client.options
        if isinstance(error, errors.ServerSelectionTimeoutError):
            return float(options.server_selection_timeout)
        if error.timeout:
            return float(options.timeout or options.pool_options.socket_timeout or RETRY_SECONDS)
        return 0.0

    def _is_temporary(self, error: errors.PyMongoError) -> bool:
        """Tell whether to try again: only where a server has ever been."""
        if isinstance(error, errors.ServerSelectionTimeoutError) and not self._reached:
            # A replica set without a primary counts as reached.
            self._reached = self.client.topology_description.has_known_servers
            return self._reached
        return is_transient(error)

    def close(self) -> None:
        """Let go of the client, which is closed if nothing else uses it."""
        self._shared = None


def retried(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Repeat a method of an object with a ``connection`` as ``Connection.retry`` does. Such methods must not nest."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", self.connection.retry(lambda: method(self, *args, **kwargs)))

    return call
