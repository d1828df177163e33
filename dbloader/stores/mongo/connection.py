"""A connection to a MongoDB server: made with time-outs of ours, tried again where that helps, explained where not."""

from __future__ import annotations

import os
import random
import re
import time
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import pymongo
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from pymongo import errors
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary
from pymongo.write_concern import WriteConcern

from dbloader.errors import (
    DamagedStoreError,
    PlaceError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)
from dbloader.stores.mongo import clients
from dbloader.stores.mongo.password import with_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.collection import Collection
    from pymongo.database import Database

    from dbloader.stores.mongo.uri import MongoURI

T = TypeVar("T")

# How long an operation is tried: a restart or an election (10 s by default) passes, with time to spare.
RETRY_SECONDS = 60.0
# How long the server may take for a question for which it may have to look through all documents.
SCAN_SECONDS = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# How long after an operation has failed for good the next one is tried: closing must not wait a minute each time.
_LAST_SECONDS = 2.0

# https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml: what passes by itself.
_TRANSIENT = frozenset({
    6,  # HostUnreachable
    7,  # HostNotFound
    24, 46, 112, 117,  # LockTimeout, LockBusy, WriteConflict, ConflictingOperationInProgress
    43,  # CursorNotFound, after a restart
    64,  # WriteConcernFailed: written, but not to a majority in time
    89,  # NetworkTimeout
    91,  # ShutdownInProgress
    133,  # FailedToSatisfyReadPreference
    134,  # ReadConcernMajorityNotAvailableYet
    150, 13388,  # StaleEpoch, StaleConfig: a shard has moved
    175, 237,  # QueryPlanKilled, CursorKilled: its collection was renamed, for one
    189,  # PrimarySteppedDown
    202, 262,  # NetworkInterfaceExceededTimeLimit, ExceededTimeLimit
    246,  # SnapshotUnavailable
    276, 12586, 12587,  # IndexBuildAborted, by an election; BackgroundOperationInProgressFor...
    317,  # ConnectionPoolExpired, of a mongos
    9001,  # SocketException
    10107, 13435, 13436,  # NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
    11600, 11602,  # InterruptedAtShutdown, InterruptedDueToReplStateChange
})  # fmt: skip
_NO_RIGHT = 13  # Unauthorized
_NOT_AUTHENTICATED = 18  # AuthenticationFailed
_ATLAS = 8000  # whatever Atlas refuses, such as a password, or more data than was paid for
_NO_ROOM = 14031  # OutOfDiskSpace
# What the operating system says in another error's text, and Atlas.
_NO_ROOM_TEXT = re.compile(r"no space left on device|over your space quota|disk quota exceeded", re.IGNORECASE)
_DUPLICATE = 11000


class Connection:
    """The client of one process for a server, and the database of one place.

    Args:
        place: The server and database. Options of its connection string go before dbloader's own.
        writing: Whether it is for a writer. Its writes wait for a majority of the members unless the place says
            otherwise, and it reads what it wrote, from the primary, whatever the place says.

    Raises:
        PlaceError: The connection string has an option that there is not, or is not understood.
        StoreAccessError: The file with the password cannot be read, or others can read it too.
    """

    def __init__(self, place: MongoURI, *, writing: bool = False) -> None:
        self.place = with_password(place)
        self.pid = os.getpid()
        self._writing = writing
        self._reached = False
        self._given_up = self._patient = False
        problem = ""
        try:
            self._shared = clients.acquire(self.place, self)
            # No __del__: at the end of the interpreter that would be called when there are no modules any more.
            self._release = weakref.finalize(self, clients.release, self._shared, id(self))
            self._release.atexit = False
            self.client: pymongo.MongoClient[Any] = self._shared.client
            if writing and not self.client.write_concern.acknowledged:
                problem = "without an answer to its writes (w=0) no store can be written"
            if self.client.options.timeout == 0:
                problem = (
                    "timeoutMS=0 would wait without end for a server that is away: leave it out, for about a minute, "
                    "or give the milliseconds for which to try"
                )
        except (errors.PyMongoError, ValueError, TypeError, OSError) as error:
            problem = str(error)
        if problem:  # raised here: in the chain of errors the driver's would repeat the connection string
            raise PlaceError(f"{place.shown} cannot be used: {self.place.scrubbed(problem)}")

    @property
    def database(self) -> Database[Any]:
        """The database of the place; its documents are decoded as records are, whatever the place's options say."""
        options: dict[str, Any] = {}
        if self._writing:
            concern = WriteConcern(**{"w": "majority", **self.client.write_concern.document})
            options = {"read_preference": Primary(), "read_concern": ReadConcern("local"), "write_concern": concern}
        return self.client.get_database(self.place.database, codec_options=CodecOptions(), **options)

    def run(self, function: Callable[[], T], seconds: float | None = None, *, scan: Collection[Any] | None = None) -> T:
        """Call a function, which can be called again without harm, until no passing failure of the server ends it.

        It is tried for RETRY_SECONDS (``timeoutMS`` of the place) from its start; or, if the server has answered since,
        from its last answer: what fails may have worked for an hour.

        A question or an answer that has not come through whole within SILENCE_SECONDS (``socketTimeoutMS``) is asked
        again on another connection, with all the time that is left: the line may be slow and not silent. Where that
        has been so, later calls have that time from their start.

        A scan has SCAN_SECONDS at once, after the server has answered a ping. While it lasts, the driver asks the
        server every 10 s (``heartbeatFrequencyMS``), on a connection of its own, whether it is there. When no answer
        comes it interrupts the scan, which is tried again as above.

        Args:
            function: What it asks may take the server any part of the time that there is.
            seconds: For how long it is tried at most.
            scan: The collection of which it may have the server look through all documents.

        Raises:
            StoreUnreachableError: No server was there at all, or for too long.
            StoreAccessError: The server refuses the user, or what was asked.
            StoreFullError: It has no room.
            DamagedStoreError: It gave what is no BSON.
            StoreError: A scan took over SCAN_SECONDS; or the server says anything else.
        """
        began, pause, patient = time.monotonic(), _FIRST_PAUSE, self._patient
        limit = _LAST_SECONDS if self._given_up else seconds
        if limit is None and patient:
            limit = self._retry_seconds()
        deadline = None if limit is None else began + limit
        while True:
            scan_began: float | None = None
            until = deadline if limit is not None or patient else None
            try:
                if scan is not None:
                    # With time for a scan, the driver would also wait that long for a server.
                    scan.database.command("ping", read_preference=scan.read_preference)
                    scan_began = time.monotonic()
                    until = scan_began + SCAN_SECONDS
                # 0 would mean for ever.
                with nullcontext() if until is None else pymongo.timeout(max(0.01, until - time.monotonic())):
                    result = function()
            except errors.PyMongoError as error:
                taken = 0.0 if scan_began is None else time.monotonic() - scan_began
                if _is_overtime(error) and taken > 0.9 * SCAN_SECONDS:
                    raise StoreError(
                        f"{self.place.shown}: the server has not finished a search within {SCAN_SECONDS:g} s; "
                        "it looks through all documents if the fields of the search have no index: make an index",
                    ) from error
                # A server that has worked at a scan for so long was there until now. The scan may be what crashes it.
                was_there = taken > self._retry_seconds() and time.monotonic() - began < SCAN_SECONDS
                if deadline is None or was_there:
                    deadline = max(began, time.monotonic() - self._silence_before(error)) + self._retry_seconds()
                patient = patient or isinstance(error, errors.NetworkTimeout)
                if not self._may_pass(error) or time.monotonic() + pause > deadline:
                    self._given_up = is_transient(error)
                    # The text of a BulkWriteError has whole records.
                    raise self.explained(error) from None if isinstance(error, errors.BulkWriteError) else error
            except BSONError as error:
                raise DamagedStoreError(
                    f"{self.place.shown} has a document that cannot be decoded ({error!s:.200}): "
                    "convert again, or copy the store again from where it is whole"
                ) from error
            else:
                self._reached, self._given_up, self._patient = True, False, patient
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _retry_seconds(self) -> float:
        given = self.client.options.timeout
        return RETRY_SECONDS if given is None else float(given)

    def _silence_before(self, error: errors.PyMongoError) -> float:
        """Return for how many seconds the server may not have answered before an error."""
        options = self.client.options
        if isinstance(error, errors.ServerSelectionTimeoutError):
            return float(options.server_selection_timeout)
        if error.timeout:
            return float(options.timeout or options.pool_options.socket_timeout or RETRY_SECONDS)
        return 0.0

    def _may_pass(self, error: errors.PyMongoError) -> bool:
        """Return whether to try again; not where there never was a server."""
        if isinstance(error, errors.ServerSelectionTimeoutError) and not self._reached:
            # A set that elects its primary has been reached.
            self._reached = self.client.topology_description.has_known_servers
            return self._reached
        return is_transient(error)

    def explained(self, error: errors.PyMongoError) -> Exception:
        """Return the error of ours that says what an error of the driver means."""
        shown, text = self.place.shown, self.place.scrubbed(_reason(error))
        code = getattr(error, "code", None)
        codes = {code, *(failure.get("code") for failure in _failures(error))}
        if _NO_ROOM in codes or _NO_ROOM_TEXT.search(text):
            return StoreFullError(f"no room is left for {shown}: {text}")
        if _NOT_AUTHENTICATED in codes or _ATLAS in codes:
            return StoreAccessError(
                f"{shown}: the server refuses this user or password ({text}); "
                f"users are looked up in the database {self.place.database!r} unless the place ends in ?authSource=...",
            )
        if _NO_RIGHT in codes:
            why = "; a password is not pickled: make the store again from its place" if self.place.stripped else ""
            return StoreAccessError(f"{shown}: this user has not the right to do that ({text}){why}")
        if isinstance(error, errors.ConfigurationError) and _is_of_dns(error):
            return StoreUnreachableError(f"the name server does not know {shown} ({text}): is the host right?")
        if isinstance(error, (errors.ConfigurationError, errors.InvalidURI, errors.InvalidName)):
            return PlaceError(f"{shown} cannot be used: {text}")
        if isinstance(error, errors.ConnectionFailure) and not self._reached:
            return StoreUnreachableError(
                f"no server answers at {shown} within {self.client.options.server_selection_timeout:g} s ({text}): "
                "is the host right, is the server running, may it be reached from here?",
            )
        if is_transient(error):
            return StoreUnreachableError(f"the server of {shown} was away for too long ({text})")
        return StoreError(f"{shown}: {text}")

    def close(self) -> None:
        """Let go of the client; the last one who does ends its threads and connections."""
        self._release()


def _is_overtime(error: errors.PyMongoError) -> bool:
    """Tell whether an answer took longer than it was given."""
    return isinstance(error, (errors.NetworkTimeout, errors.ExecutionTimeout))


def is_transient(error: errors.PyMongoError) -> bool:
    """Return whether trying again may help."""
    if isinstance(error, errors.ConfigurationError):
        return False
    if isinstance(error, (errors.ConnectionFailure, errors.CursorNotFound, errors.WTimeoutError)):
        return True
    if isinstance(error, errors.ExecutionTimeout):  # a deadline of the driver's; what comes too late may come
        return True
    if isinstance(error, errors.BulkWriteError):
        codes = {failure.get("code") for failure in _failures(error)} - {_DUPLICATE}
        return bool(codes) and codes <= _TRANSIENT
    if isinstance(error, errors.OperationFailure):
        return error.code in _TRANSIENT or error.has_error_label("RetryableWriteError")
    return False


def without_duplicates(error: errors.BulkWriteError) -> bool:
    """Return whether all that a bulk insert complains of is that documents were there already."""
    details = error.details or {}
    return not details.get("writeConcernErrors") and all(
        failure.get("code") == _DUPLICATE and "_id" in failure.get("keyPattern", {"_id": 1})
        for failure in details.get("writeErrors", ())
    )


def _failures(error: errors.PyMongoError) -> list[dict[str, Any]]:
    if not isinstance(error, errors.BulkWriteError):
        return []
    details = error.details or {}
    return [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]


def _is_of_dns(error: errors.PyMongoError) -> bool:
    return type(error.__cause__ or error.__context__).__module__.partition(".")[0] == "dns"


def _reason(error: errors.PyMongoError) -> str:
    """Return what an error says in one line, without the driver's description of its whole topology."""
    failures = _failures(error)
    text = str(failures[0].get("errmsg", error)) if failures else str(error)
    text = text.partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts:")[0]
    return text if len(text) <= 300 else text[:300] + "..."
