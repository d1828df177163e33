"""Who is writing to a place in MongoDB: a part of the place's document, which the writer keeps fresh."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import DuplicateKeyError, PyMongoError

from dbloader.errors import StoreError, StoreLockedError
from dbloader.stores.mongo.schema import STORE

if TYPE_CHECKING:
    from pymongo.collection import Collection

    from dbloader.stores.mongo.connection import Connection

# A writer whose machine has died blocks the place for as long; by the server's clock, so that no other matters.
LEASE_SECONDS = 60.0
_REFRESH_SECONDS = 10.0

# Tokens of the claims that this process holds. One that it could not release, since the server was away, it does not.
_held: set[str] = set()


class Lease:
    """The right to write to a place, held from ``take`` to ``release``.

    It ends by itself when its holder's machine has been silent for LEASE_SECONDS; and at once when its holder was a
    process of this machine that is no more.
    """

    def __init__(self, connection: Connection, meta: Collection[Any]) -> None:
        self.token = secrets.token_hex(12)
        self._connection = connection
        self._meta = meta
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fresh_until = 0.0

    def take(self) -> None:
        """Take the place.

        Raises:
            StoreLockedError: Another process is writing there.
        """
        _held.add(self.token)
        try:
            self._take()
        except BaseException:
            _held.discard(self.token)
            raise
        self._thread = threading.Thread(target=self._refresh, name="dbloader-claim", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while not self._connection.run(self._try_to_take):
            held = (self._connection.run(lambda: self._meta.find_one({"_id": STORE}, {"writer": 1})) or {}).get(
                "writer"
            )
            if held is None or (isinstance(held, dict) and held.get("token") == self.token):
                continue  # released just now; or taken, but the answer was lost
            if not isinstance(held, dict) or not _is_gone(held):
                who = held if isinstance(held, dict) else {}
                raise StoreLockedError(
                    f"another process is writing {self._connection.place.shown} now (process {who.get('pid')!r:.20} on "
                    f"{who.get('host', '?')!s:.100}): wait for it or end it; if its machine has died, its claim ends "
                    f"after {LEASE_SECONDS:g} s",
                )
            mine = {"_id": STORE, "writer.token": held.get("token")}
            self._connection.run(lambda: self._meta.update_one(mine, {"$unset": {"writer": ""}}))  # noqa: B023

    def check(self) -> None:
        """Refuse to go on where another writer may have taken the place meanwhile.

        Raises:
            StoreLockedError: The claim could not be kept fresh, and another process has taken the place since, even if
                it has left it by now.
            PyMongoError: It has to be renewed, and the server does not answer.
        """
        if time.monotonic() > self._fresh_until and not self._renew():
            raise StoreLockedError(
                f"this process was silent for over {LEASE_SECONDS:g} s, and another one has written to "
                f"{self._connection.place.shown} meanwhile",
            )

    def release(self) -> None:
        """Give the place free, and forget it if nothing is there."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        _held.discard(self.token)
        mine = {"_id": STORE, "writer.token": self.token}
        nothing = {name: {"$exists": False} for name in ("store", "partial", "writer")}

        def release() -> None:
            self._meta.update_one(mine, {"$unset": {"writer": ""}})
            self._meta.delete_one({"_id": STORE, **nothing, "replaced": {"$in": [None, []]}})

        with suppress(StoreError):  # a claim that is left ends by itself
            self._connection.run(release, _REFRESH_SECONDS)

    def _try_to_take(self) -> bool:
        """Take the claim if it is free, out of date, or this one."""
        began = time.monotonic()
        writer = {key: {"$literal": value} for key, value in {"token": self.token, **_identity()}.items()}
        end = _end()
        change: list[dict[str, Any]] = [{"$unset": "writer"}, {"$set": {"writer": {**writer, "expires": end}}}]
        over = {"$expr": {"$lt": ["$writer.expires", "$$NOW"]}}  # so is what is missing, and whatever is no time
        free = {"_id": STORE, "$or": [{"writer.token": self.token}, over]}
        if not self._meta.update_one(free, change).matched_count:
            try:
                self._meta.update_one({"_id": STORE, "writer.token": self.token}, change, upsert=True)
            except DuplicateKeyError:
                # There is one, and another's. No writer claims the place for longer than that: it would for ever.
                late = {"_id": STORE, "$expr": {"$gt": ["$writer.expires", end]}}
                cut: list[dict[str, Any]] = [{"$set": {"writer": {"expires": end}}}]
                self._meta.update_one(late, cut)
                return False
        self._fresh_until = began + LEASE_SECONDS
        return True

    def _renew(self) -> bool:
        """Renew the claim, also one that has run out, unless it is free by now: another may have had it meanwhile."""
        began = time.monotonic()
        mine = {"_id": STORE, "writer.token": self.token}
        if not self._meta.update_one(mine, [{"$set": {"writer.expires": _end()}}]).matched_count:
            return False
        self._fresh_until = began + LEASE_SECONDS
        return True

    def _refresh(self) -> None:
        while not self._stop.wait(_REFRESH_SECONDS):
            with (
                suppress(PyMongoError),
                pymongo.timeout(_REFRESH_SECONDS / 2),
            ):  # ``check`` notices if it never succeeds
                self._renew()


def _end() -> dict[str, Any]:
    """Return the expression of when a claim ends that is taken now; $$NOW is the server's clock."""
    return {"$add": ["$$NOW", round(1000 * LEASE_SECONDS)]}


def _identity() -> dict[str, Any]:
    """Tells this process from all others, also of other machines and containers, and of other times."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "began": _began(pid)}


def _machine() -> str:
    """Name what process ids count in: one start of one machine, one container. Empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return when a process began, in clock ticks from the start of the machine; empty if it is no more."""
    try:
        # proc(5): the name, in parentheses, may hold anything; behind it the state is first and this is the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_gone(held: dict[str, Any]) -> bool:
    """Return whether a claim is known to have ended: with its process, or with its writer in this one."""
    if not _machine() or held.get("machine") != _machine():
        return False
    pid = held.get("pid")
    if not isinstance(pid, int) or _began(pid) != held.get("began"):
        return True
    return pid == os.getpid() and held.get("token") not in _held
