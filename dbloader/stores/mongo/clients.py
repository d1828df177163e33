"""The driver's clients: one for each server that a process uses, however many stores it has open there."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo import uri_parser

if TYPE_CHECKING:
    from dbloader.stores.mongo.uri import MongoURI

# How long the first use waits for a server: a wrong host should be told within seconds.
SELECTION_SECONDS = 5.0
# How long a connection may be silent before its question is asked again by another. A batch takes a slow disk less.
SILENCE_SECONDS = 10.0
# Routers and firewalls forget connections that are idle for minutes, and tell neither side.
_IDLE_SECONDS = 60.0


class Shared:
    """A client, and who uses it.

    Attributes:
        client: The driver's client.
        pid: The process that made it.
        users: The ids of what uses it.
    """

    def __init__(self, client: pymongo.MongoClient[Any]) -> None:
        self.client = client
        self.pid = os.getpid()
        self.users: set[int] = set()


# By process, server and options. Clients that a process has from the one it was forked from stay here: to close one, or
# to have it collected, would end the parent's sessions.
_open: dict[tuple[object, ...], Shared] = {}
# Garbage may be collected in a thread that holds it: what is collected may release its client.
_lock = threading.RLock()


def acquire(place: MongoURI, user: object) -> Shared:
    """Return the client of this process for the server and options of a place; make it if there is none.

    Args:
        place: Options of its connection string go before dbloader's own.
        user: It keeps the client open until ``release``.

    Raises:
        PyMongoError: An option is not understood.
        ValueError: Likewise.
    """
    key = (os.getpid(), *place.server)
    with _lock:
        while True:
            shared = _open.get(key)
            if shared is None:
                shared = _open[key] = Shared(_client(place))
            shared.users.add(id(user))
            if _open.get(key) is shared:  # else garbage was collected just now that was its last user
                return shared


def release(shared: Shared, user: int) -> None:
    """Close a client if nobody else uses it; nothing happens in a process that has not made it, or the second time.

    Args:
        shared: The client.
        user: The id of what used it.
    """
    if shared.pid != os.getpid():
        return
    with _lock:
        if user not in shared.users:
            return
        shared.users.discard(user)
        if shared.users:
            return
        for key, other in list(_open.items()):
            if other is shared:
                del _open[key]
    shared.client.close()


def _client(place: MongoURI) -> pymongo.MongoClient[Any]:
    defaults: dict[str, Any] = {
        "connect": False,  # the first use connects
        "appname": "dbloader",
        "serverMonitoringMode": "poll",  # half the threads and connections, of which many workers have many
        "serverSelectionTimeoutMS": round(1000 * SELECTION_SECONDS),
        "connectTimeoutMS": round(1000 * SELECTION_SECONDS),
        "socketTimeoutMS": round(1000 * SILENCE_SECONDS),
        "maxIdleTimeMS": round(1000 * _IDLE_SECONDS),
        # dbloader asks again itself, and counts the time.
        "retryReads": False,
        "retryWrites": False,
    }
    options = {name: value for name, value in defaults.items() if name.lower() not in place.options}
    if query := place.uri.partition("?")[2]:
        uri_parser.split_options(query, warn=False)  # left to itself, the client only warns, repeating values
    return pymongo.MongoClient(place.uri, **options)


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter ends: later, when modules go, no client could be closed."""
    for shared in list(_open.values()):
        if shared.pid == os.getpid():
            shared.client.close()


def _forget_lock() -> None:
    """Make the lock again in a forked child: a thread that the child does not have may hold it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)
