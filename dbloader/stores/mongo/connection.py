"""A connection to a MongoDB server: made with time-outs of ours, tried again where that helps, explained where not."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pymongo
from pymongo import errors

from dbloader.errors import PlaceError, StoreAccessError, StoreError, StoreFullError, StoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.database import Database

    from dbloader.stores.mongo.place import MongoPlace

T = TypeVar("T")

# How long the first use waits for a server: a wrong host should be told within seconds.
SELECTION_SECONDS = 5.0
# How long a server that was there may stay away: a restart, or an election (10 s by default), with room to spare.
RETRY_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# A server that takes a batch and never answers: not even a slow disk takes as long.
_SOCKET_SECONDS = 60.0

# https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml: what passes by itself.
_TRANSIENT = frozenset({
    6,  # HostUnreachable
    7,  # HostNotFound
    43,  # CursorNotFound, after a restart
    64,  # WriteConcernFailed: written, but not to a majority in time
    89,  # NetworkTimeout
    91,  # ShutdownInProgress
    133,  # FailedToSatisfyReadPreference
    134,  # ReadConcernMajorityNotAvailableYet
    150, 13388,  # StaleEpoch, StaleConfig: a shard has moved
    175, 237,  # QueryPlanKilled, CursorKilled: its collection was renamed, for one
    189,  # PrimarySteppedDown
    262,  # ExceededTimeLimit
    9001,  # SocketException
    10107, 13435, 13436,  # NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
    11600, 11602,  # InterruptedAtShutdown, InterruptedDueToReplStateChange
})  # fmt: skip
_NO_RIGHT = 13  # Unauthorized
_NOT_AUTHENTICATED = (18, 8000)  # AuthenticationFailed, and Atlas' own
_NO_ROOM = (14031, 12501, 4040)  # OutOfDiskSpace, and quotas
_DUPLICATE = 11000


class Connection:
    """A client of one process, and the database of one place.

    Args:
        place: The server and database.
        settings: Further options of MongoClient, which those of the place's connection string go before.
    """

    def __init__(self, place: MongoPlace, **settings: Any) -> None:
        self.place = place
        self._reached = False
        defaults: dict[str, Any] = {
            "connect": False,  # the first use connects
            "appname": "dbloader",
            "serverSelectionTimeoutMS": round(1000 * SELECTION_SECONDS),
            "connectTimeoutMS": round(1000 * SELECTION_SECONDS),
            "socketTimeoutMS": round(1000 * _SOCKET_SECONDS),
            **settings,
        }
        options = {name: value for name, value in defaults.items() if name.lower() not in place.options}
        try:
            self.client: pymongo.MongoClient[Any] = pymongo.MongoClient(place.uri, **options)
        except (errors.PyMongoError, ValueError, TypeError) as error:
            # Not chained: the error may repeat the connection string.
            raise PlaceError(f"{place.shown} cannot be used: {place.scrubbed(str(error))}") from None

    @property
    def database(self) -> Database[Any]:
        """The database of the place."""
        return self.client[self.place.database]

    def run(self, function: Callable[[], T]) -> T:
        """Calls a function, which can be called again without harm, until no passing failure of the server ends it.

        Raises:
            StoreUnreachableError: No server was there at all, or for too long.
            StoreAccessError: The server refuses the user, or what was asked.
            StoreFullError: It has no room.
            StoreError: Whatever else it says.
        """
        deadline, pause = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE
        while True:
            try:
                result = function()
            except errors.PyMongoError as error:
                never = isinstance(error, errors.ServerSelectionTimeoutError) and not self._reached
                if never or not is_transient(error) or time.monotonic() + pause > deadline:
                    raise self.explained(error) from error
            else:
                self._reached = True
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def explained(self, error: errors.PyMongoError) -> Exception:
        """Gives the error of ours that says what an error of the driver means."""
        shown, text = self.place.shown, self.place.scrubbed(_reason(error))
        code = getattr(error, "code", None)
        codes = {code, *(failure.get("code") for failure in _failures(error))}
        if not codes.isdisjoint(_NOT_AUTHENTICATED):
            return StoreAccessError(
                f"{shown}: the server refuses this user or password ({text}); "
                f"users are looked up in the database {self.place.database!r} unless the place ends in ?authSource=...",
            )
        if _NO_RIGHT in codes:
            return StoreAccessError(f"{shown}: this user has not the right to do that ({text})")
        if not codes.isdisjoint(_NO_ROOM) or "space" in text.lower():
            return StoreFullError(f"no room is left for {shown}: {text}")
        if isinstance(error, (errors.ConfigurationError, errors.InvalidURI, errors.InvalidName)):
            return PlaceError(f"{shown} cannot be used: {text}")
        if isinstance(error, errors.ConnectionFailure) and not self._reached:
            return StoreUnreachableError(
                f"no server answers at {shown} within {SELECTION_SECONDS:g} s ({text}): "
                "is the host right, is the server running, may it be reached from here?",
            )
        if is_transient(error):
            return StoreUnreachableError(f"the server of {shown} was away for {RETRY_SECONDS:g} s ({text})")
        return StoreError(f"{shown}: {text}")

    def close(self) -> None:
        """Ends the client's threads and connections."""
        self.client.close()


def is_transient(error: errors.PyMongoError) -> bool:
    """Tells whether trying again may help."""
    if isinstance(error, errors.ConfigurationError):
        return False
    if isinstance(error, (errors.ConnectionFailure, errors.CursorNotFound, errors.WTimeoutError)):
        return True
    if isinstance(error, errors.BulkWriteError):
        failures = _failures(error)
        return bool(failures) and all(failure.get("code") in (*_TRANSIENT, _DUPLICATE) for failure in failures)
    if isinstance(error, errors.OperationFailure):
        return error.code in _TRANSIENT
    return False


def without_duplicates(error: errors.BulkWriteError) -> bool:
    """Tells whether all that a bulk insert complains of is that documents were there already."""
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


def _reason(error: errors.PyMongoError) -> str:
    """Gives what an error says in one line, without the driver's description of its whole topology."""
    failures = _failures(error)
    text = str(failures[0].get("errmsg", error)) if failures else str(error)
    text = text.partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts:")[0]
    return text if len(text) <= 300 else text[:300] + "..."
