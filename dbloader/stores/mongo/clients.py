"""Share the driver's clients: one for each server in a process, however many stores it has open there."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo import uri_parser

if TYPE_CHECKING:
    from dbloader.stores.mongo.uri import MongoURI

# How long the first use waits for a server: a wrong host should be reported within seconds.
SELECTION_SECONDS = 5.0
# How long an answer may take before it is asked for again on another connection. Even a slow disk reads a batch sooner.
SILENCE_SECONDS = 10.0
# Routers and firewalls silently forget connections that are idle for minutes.
_IDLE_SECONDS = 60.0


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
        # Connection.run retries, and counts the time.
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
