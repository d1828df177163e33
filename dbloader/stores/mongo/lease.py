"""Allow only one writer at a time for a MongoDB collection. The writer holds a lease, and renews it."""

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
from dbloader.stores.mongo.schema import MANIFEST, STORE

if TYPE_CHECKING:
    from dbloader.stores.mongo.connection import Connection

# A lease expires after this time by the server's clock. If a writer's machine dies, others must wait this long.
LEASE_SECONDS = 60.0
RENEW_SECONDS = 10.0

# Tokens of the leases that this process holds. `release` removes a token even if the server cannot be reached.
_held: set[str] = set()


class Lease:
    """The right to write to a collection, held from ``acquire`` to ``release``.

    The lease expires if its holder has not renewed it for LEASE_SECONDS. If the holder was a process on this machine,
    the lease can be acquired as soon as that process has ended.
    """

    def __init__(self, connection: Connection) -> None:
        self.token = secrets.token_hex(12)
        self._connection = connection
        self._meta = connection.database[connection.place.collection + MANIFEST]
        self._mine = {"_id": STORE, "writer.token": self.token}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._expires = 0.0  # time.monotonic

    def acquire(self) -> None:
        """Acquire the lease, and begin to renew it. Call ``release`` afterwards, even after an error.

        Raises:
            StoreLockedError: Another process holds the lease.
        """
        _held.add(self.token)
        retry = self._connection.retry
        while not retry(self._try_to_acquire):
            document = retry(lambda: self._meta.find_one({"_id": STORE}, {"writer": 1})) or {}
            writer = document.get("writer")
            holder = writer if isinstance(writer, dict) else {}  # a damaged document may have another type here
            if writer is None or holder.get("token") == self.token:
                continue  # the lease was just released, or this process has it but the server's answer was lost
            if not _has_ended(holder):
                raise StoreLockedError(
                    f"another process is writing {self._connection.place.redacted} now (process "
                    f"{holder.get('pid')!r:.20} on {holder.get('host', '?')!s:.100}): wait for it or end it; if its "
                    f"machine is down, try again after {LEASE_SECONDS:g} s"
                )
            theirs = {"_id": STORE, "writer.token": holder.get("token")}
            retry(lambda: self._meta.update_one(theirs, {"$unset": {"writer": ""}}))  # noqa: B023
        self._thread = threading.Thread(target=self._keep_renewing, name="dbloader-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Renew the lease if it has expired. Raise StoreLockedError if another writer has had the lease meanwhile."""
        if time.monotonic() > self._expires and not self._renew():
            raise StoreLockedError(
                f"this process did not reach the server for over {LEASE_SECONDS:g} s, and another process has written "
                f"to {self._connection.place.redacted} meanwhile"
            )

    def release(self) -> None:
        """Release the lease. If the document with the lease contains nothing else, remove the document."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        _held.discard(self.token)
        empty = {name: {"$exists": False} for name in ("store", "partial", "writer")}

        def release() -> None:
            self._meta.update_one(self._mine, {"$unset": {"writer": ""}})
            self._meta.delete_one({"_id": STORE, **empty, "replaced": {"$in": [None, []]}})

        with suppress(StoreError):  # a lease that is not released expires by itself
            self._connection.retry(release)

    def _try_to_acquire(self) -> bool:
        """Acquire the lease if no other writer has it. Return whether this object now has the lease."""
        began = time.monotonic()
        writer = {key: {"$literal": value} for key, value in {"token": self.token, **_identify()}.items()}
        end = _end()
        change: list[dict[str, Any]] = [{"$unset": "writer"}, {"$set": {"writer": {**writer, "expires": end}}}]
        expired = {"$expr": {"$lt": ["$writer.expires", "$$NOW"]}}  # also true if `expires` is missing or not a time
        free = {"_id": STORE, "$or": [{"writer.token": self.token}, expired]}
        if not self._meta.update_one(free, change).matched_count:
            try:
                self._meta.update_one(self._mine, change, upsert=True)
            except DuplicateKeyError:
                # Another writer has the lease. If the server's clock was set back, the lease ends too late: shorten it.
                late = {"_id": STORE, "$expr": {"$gt": ["$writer.expires", end]}}
                self._meta.update_one(late, [{"$set": {"writer": {"expires": end}}}])
                return False
        self._expires = began + LEASE_SECONDS
        return True

    def _renew(self) -> bool:
        """Renew the lease, even if it has expired. Return False if another writer has acquired the lease."""
        began = time.monotonic()
        if not self._meta.update_one(self._mine, [{"$set": {"writer.expires": _end()}}]).matched_count:
            return False
        self._expires = began + LEASE_SECONDS
        return True

    def _keep_renewing(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with suppress(PyMongoError), pymongo.timeout(RENEW_SECONDS / 2):  # `check` detects that renewals failed
                self._renew()


def _end() -> dict[str, Any]:
    """Return the expression for the end of a lease that begins now; $$NOW is the server's clock."""
    return {"$add": ["$$NOW", round(1000 * LEASE_SECONDS)]}


def _identify() -> dict[str, Any]:
    """Return values that together identify this process among all processes of all machines and containers."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "began": _start_time(pid)}


def _machine() -> str:
    """Return an id of this boot and PID namespace, in which process ids are unique; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; "" if the process has ended."""
    try:
        # See proc(5). The process's name is in parentheses, and may contain parentheses too, so split at the last one.
        # Then fields[0] is the process's state, and fields[19] is the start time.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(holder: dict[str, Any]) -> bool:
    """Return whether a lease's holder has certainly ended. The holder may be an earlier writer in this process."""
    if not _machine() or holder.get("machine") != _machine():
        return False
    pid = holder.get("pid")
    if not isinstance(pid, int) or _start_time(pid) != holder.get("began"):
        return True
    return pid == os.getpid() and holder.get("token") not in _held
