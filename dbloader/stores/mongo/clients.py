"""Share the driver's clients: one for each server in a process, however many stores it has open there.

The password of a place that names only a user comes from the environment, or from a private file.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pymongo
from pymongo import uri_parser

from dbloader.errors import PlaceError, StoreAccessError

if TYPE_CHECKING:
    from dbloader.stores.mongo.uri import MongoURI

# How long the first use waits for a server: a wrong host should be reported within seconds.
SELECTION_SECONDS = 5.0
# How long an answer may take before it is asked for again on another connection. Even a slow disk reads a batch sooner.
SILENCE_SECONDS = 10.0
# Routers and firewalls silently forget connections that are idle for minutes.
_IDLE_SECONDS = 60.0

PASSWORD = "DBLOADER_MONGODB_PASSWORD"
PASSWORD_FILE = "DBLOADER_MONGODB_PASSWORD_FILE"


class SharedClient:
    """A client that is closed when the last reference to this object goes, or when the interpreter exits."""

    def __init__(self, place: MongoURI) -> None:
        self.client = _make_client(place)
        weakref.finalize(self, _close, self.client, os.getpid())


_clients: weakref.WeakValueDictionary[tuple[object, ...], SharedClient] = weakref.WeakValueDictionary()
# Clients of the process that this one was forked from. Closing or collecting one would end the parent's sessions.
_inherited: list[SharedClient] = []
_lock = threading.Lock()


def get_client(place: MongoURI) -> SharedClient:
    """Return this process's client for the server and options of a place, which it makes if there is none."""
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
        # Connection.retry repeats them, and counts the time.
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
    _lock = threading.Lock()  # a thread that the child does not have may hold the old one
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_begin_child)


def add_password(place: MongoURI) -> MongoURI:
    """Return a place with the password of its user: if it has none, the one in the environment.

    Raises:
        PlaceError: There is none.
        StoreAccessError: The file with it cannot be read, or others may read it.
    """
    user, password = place.credentials
    if not user or password is not None or not place.takes_password:
        return place
    found = os.environ.get(PASSWORD)
    if found is None and (file := os.environ.get(PASSWORD_FILE)):
        found = _read_password(Path(file))
    if found is None:
        raise PlaceError(
            f"{place.redacted} is given with a user and no password: set the environment variable {PASSWORD} to it, or "
            f"{PASSWORD_FILE} to the path of a file with it (mode 0600)"
        )
    scheme, _, rest = place.uri.partition("://")
    return place._replace(uri=f"{scheme}://{user}:{quote_plus(found)}@{rest.partition('@')[2]}")


def _read_password(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise StoreAccessError(
                f"{path}, the file of {PASSWORD_FILE}, may be read by others than its owner: chmod 600 {path}"
            )
        return path.read_text().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise StoreAccessError(f"{path}, the file of {PASSWORD_FILE}, cannot be read: it is no text") from error
    except OSError as error:
        if isinstance(error, StoreAccessError):
            raise
        raise StoreAccessError(f"{path}, the file of {PASSWORD_FILE}, cannot be read: {error.strerror}") from error
