"""Decide which errors of the driver are temporary, and translate the driver's errors into errors of dbloader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pymongo import errors

from dbloader.errors import PlaceError, StoreAccessError, StoreError, StoreFullError, StoreUnreachableError

if TYPE_CHECKING:
    from dbloader.stores.mongo.uri import MongoURI

# https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml
_TEMPORARY = frozenset({
    6, 7, 43, 50, 89, 202, 262, 317, 9001,  # network errors, time limits, and lost cursors
    24, 46, 112, 117, 246,  # locks, conflicts, a snapshot that no longer exists
    64, 133, 134,  # too few members answer, so a write may not be on a majority yet
    91, 189, 10107, 11600, 11602, 13435, 13436,  # the server is not the primary, or shuts down
    150, 13388,  # a shard has moved
    175, 237,  # the server killed a query or a cursor
    276, 12586, 12587,  # an election aborted an index build, or another operation blocks this operation
})  # fmt: skip
UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_ATLAS = 8000  # any refusal by MongoDB Atlas, such as a wrong password or an exceeded quota
_OUT_OF_DISK_SPACE = 14031
# The driver's error contains one of these messages of the operating system or of Atlas.
_DISK_FULL = re.compile(r"no space left on device|over your space quota|disk quota exceeded", re.IGNORECASE)
_DUPLICATE_KEY = 11000
# When the server refuses a command, the error message repeats the whole command.
_COMMAND = re.compile(r"execute command \{ (\w+):.*", re.DOTALL)


def is_transient(error: errors.PyMongoError) -> bool:
    """Return whether the operation may succeed if it is repeated."""
    codes = _codes(error) - {_DUPLICATE_KEY}
    return isinstance(error, errors.ConnectionFailure) or (bool(codes) and codes <= _TEMPORARY)


def has_only_duplicates(error: errors.BulkWriteError) -> bool:
    """Return whether a bulk insert failed only because documents with the same _id exist."""
    details = error.details or {}
    return not details.get("writeConcernErrors") and all(
        failure.get("code") == _DUPLICATE_KEY for failure in details.get("writeErrors", ())
    )


def translate(error: errors.PyMongoError, place: MongoURI, *, waited: float | None = None) -> Exception:
    """Return dbloader's error for an error of the driver, without the credentials of the place.

    ``waited`` is the time for which the driver has looked for a server, in seconds; None if a server has answered.
    """
    name, text = place.redacted, place.redact(reason(error))
    codes = _codes(error)
    if _OUT_OF_DISK_SPACE in codes or _DISK_FULL.search(text):
        return StoreFullError(f"no room is left for {name}: {text}")
    if codes & {_AUTHENTICATION_FAILED, _ATLAS}:
        return StoreAccessError(
            f"{name}: the server refuses this user or password ({text}); if the user is not in the database "
            f"{place.database!r}, add ?authSource=DATABASE to the URI"
        )
    if UNAUTHORIZED in codes:
        remedy = "training needs the role read on the database, and converting needs readWrite"
        if place.stripped:
            remedy = "the store object was pickled without its password: open the store again from its full URI"
        what = _COMMAND.sub(r"execute \1", text)
        if "requires authentication" in what and not place.stripped:
            there = name.replace("://", "://USER@")
            remedy = f"give {there}, and set DBLOADER_MONGODB_PASSWORD; perhaps ?authSource=DATABASE is needed too"
            return StoreAccessError(f"{name}: the server asks for a user, but the URI names none ({what}); {remedy}")
        return StoreAccessError(f"{name}: this user lacks a permission ({what}); {remedy}")
    if "hint provided does not correspond" in text:  # `MongoReader` asked for an index that is missing
        text = "query= needs indexes that this store has lost: use where=, or copy the store (the copy has the indexes)"
    if isinstance(error, errors.ConfigurationError):
        return PlaceError(f"{name} cannot be used: {text}")
    if isinstance(error, errors.ConnectionFailure) and waited is not None:
        return StoreUnreachableError(
            f"no server answers at {name} within {waited:g} s ({text}): is the host right, is the server running, can "
            "it be reached from here, does it use TLS (tls=true, tlsCAFile=FILE, tlsCertificateKeyFile=FILE)?"
        )
    if is_transient(error):
        return StoreUnreachableError(f"the server of {name} did not answer in time ({text})")
    return StoreError(f"{name}: {text}")


def _codes(error: errors.PyMongoError) -> set[Any]:
    """Return the server's error codes. A bulk write can have several. An error of the driver itself has none."""
    if isinstance(error, errors.BulkWriteError):
        return {failure.get("code") for failure in _failures(error)}
    return {error.code} if isinstance(error, errors.OperationFailure) else set()


def _failures(error: errors.PyMongoError) -> list[dict[str, Any]]:
    if not isinstance(error, errors.BulkWriteError):
        return []
    details = error.details or {}
    return [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]


def reason(error: errors.PyMongoError) -> str:
    """Return an error's message in one line, without the driver's description of all servers."""
    failures = _failures(error)
    text = str(failures[0].get("errmsg", error)) if failures else str(error)
    text = text.partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts:")[0]
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-150:]}"  # the middle may be a long query
