"""Connect a reader, a process that reads the store, to the fetcher of a cache. Start the fetcher if none runs.

Both processes send JSON over a socket in the cache's folder:

    reader                                       fetcher

    open: place, limit, known; reader  ------->  fetches manifest and index; skips this if `known` and done before
                                       <-------  ready, or error
    expect: needs; check               ------->  if `check`, checks the cache's limit; fetches in this order
                                       <-------  ready, or error
    need: 17; damaged_file             ------->  fetches shard 17 next, unless the cache has an undamaged one
                                       <-------  ready: shard 17 is in the cache, and stays until `opened`; or error
    opened                             ------->  may remove shard 17

A reader gives up if the files in ``partial/`` stop growing. If a connection closes, the other process has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dbloader import errors
from dbloader._describe import size
from dbloader.errors import DBLoaderError, StoreAccessError
from dbloader.ext.caching.folder import LOCK, LOG, SOCKET, arriving_bytes, make_folder, read_stats, refusal

STALL_S = 120.0
"""A reader gives up after this many seconds without new bytes. The fetcher retries a failed read for a minute."""
_START_S = 60.0
_STARTS = 3
_PAUSE_S = 0.02
_LOOK_S = 1.0  # time between two checks whether the arriving files have grown
_SHOW_S = 2.0  # a reader reports on stderr after waiting this long, and again when the wait has doubled
# The reader starts this program, which forks and ends at once. The forked child becomes the fetcher, so the reader does
# not wait for the fetcher's end. The fork is safe, because the program has no threads and has not loaded obstore.
_PROGRAM = """\
import os
if os.fork():
    os._exit(0)
os.setsid()
import sys
from dbloader.ext.caching.fetcher import serve
serve(sys.argv[1])
"""


def send(channel: Connection, **message: Any) -> None:
    """Send a message; raise OSError if the connection has ended."""
    channel.send_bytes(json.dumps(message).encode())


def receive(channel: Connection) -> dict[str, Any]:
    """Return the next message; raise OSError or EOFError if the connection has ended."""
    message: dict[str, Any] = json.loads(channel.recv_bytes())
    return message


class FetcherClient:
    """A process's connection to the fetcher of a cache. Only one thread may use it at a time.

    Args:
        cache: The folder of the cache.
        place: The path or URI of the store without credentials, for messages.
        opening: The first message to the fetcher, perhaps with credentials. It is sent only through the socket.
    """

    def __init__(self, cache: str, place: str, opening: dict[str, Any]) -> None:
        self._cache, self._place, self._opening = cache, place, opening
        self._channel: Connection | None = None
        self.shows = False  # whether rank 0 reports a long wait on stderr
        make_folder(cache, place)
        self.ask("the index")
        opening["open"]["known"] = True  # the cache has the index now, so later connections do not fetch it

    def tell(self, **message: Any) -> None:
        """Send a message that has no answer."""
        try:
            if self._channel is not None:
                send(self._channel, **message)
        except OSError:
            self.close()  # the fetcher has ended; the next question starts another fetcher

    def ask(self, what: str, **message: Any) -> dict[str, Any]:
        """Send a question and return the answer. If the fetcher ends, start a new fetcher and ask again.

        Args:
            what: Name of what the caller waits for, such as "the index". Error messages begin with this name.
            message: The question. Without a question, this method only connects.
        """
        for _ in range(_STARTS):
            try:
                if self._channel is None:
                    self._channel = self._open()
                return self._exchange(self._channel, what, message) if message else {}
            except DBLoaderError:  # caught first, because some DBLoaderErrors are ConnectionErrors too
                raise
            except (ConnectionError, EOFError):
                continue
            except OSError as error:
                raise refusal(error, self._cache) from error
        raise StoreAccessError(
            f"{what} of {self._place} cannot be fetched: the cache's fetcher ended {_STARTS} times{self._log()}"
        )

    def _open(self) -> Connection:
        with ExitStack() as undo:
            channel = self._connect()
            undo.callback(channel.close)
            self._exchange(channel, "the index", self._opening)
            undo.pop_all()
        return channel

    def _exchange(self, channel: Connection, what: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Give up when no bytes have arrived for ``STALL_S`` seconds."""
        with ExitStack() as undo:
            undo.callback(self.close)  # otherwise the next question could receive the late answer to this question
            send(channel, **message)
            arrived, show_s, began = -1, _SHOW_S, time.monotonic()
            since = began
            while not channel.poll(_LOOK_S):
                before, arrived = arrived, arriving_bytes(self._cache)
                waited = time.monotonic() - began
                if self.shows and sys.stderr and waited >= show_s and os.environ.get("RANK", "0") == "0":
                    show_s *= 2
                    cached = size(read_stats(self._cache).nbytes + arrived)
                    with suppress(OSError, ValueError):  # stderr may be closed
                        sys.stderr.write(f"{waited:.0f} s: waiting for {what} of {self._place}; cached: {cached}\n")
                if arrived != before:
                    since = time.monotonic()
                elif time.monotonic() - since >= STALL_S:
                    cause = read_stats(self._cache).last_error
                    raise StoreAccessError(
                        f"{what} of {self._place} did not arrive: no bytes for {STALL_S:.0f} s"
                        + (f"; the last error was: {cause}" if cause else "")
                    )
            answer = receive(channel)
            undo.pop_all()
        if "error" in answer:
            kind = getattr(errors, answer["error"], None)
            known = isinstance(kind, type) and issubclass(kind, DBLoaderError)
            raise (kind if known else StoreAccessError)(answer["text"])  # type: ignore[misc]
        return answer

    def _connect(self) -> Connection:
        """Connect to the fetcher. If no process holds the fetcher's lock, start a fetcher."""
        until, starts = time.monotonic() + _START_S, 0
        while time.monotonic() < until:
            with suppress(ConnectionError, FileNotFoundError, BlockingIOError), socket.socket(socket.AF_UNIX) as end:
                folder = os.open(self._cache, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    end.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # Linux refuses sockets with long paths
                finally:
                    os.close(folder)
                end.setblocking(True)  # a Connection needs this, but the program may have set socket.setdefaulttimeout
                return Connection(end.detach())
            with (Path(self._cache) / LOCK).open("ab") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass  # a fetcher is starting or ending
                else:
                    if starts == _STARTS:
                        break
                    starts += 1
                    self._start(lock.fileno())
            time.sleep(_PAUSE_S)
        raise StoreAccessError(
            f"the fetcher of the cache {self._cache} cannot be reached; the folder must be on a disk of this machine, "
            f"and no other machine may use it{self._log()}"
        )

    def _start(self, lock: int) -> None:
        """Start a fetcher, which inherits the lock.

        If another thread forked meanwhile, its child would hold the lock even after the fetcher's end. CachedStore
        prevents such forks by ``env.gate``.
        """
        with (Path(self._cache) / LOG).open("wb") as log:
            subprocess.run(
                [sys.executable, "-c", _PROGRAM, self._cache],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _log(self) -> str:
        """Return the last line of the fetcher's log, as the end of a message."""
        try:
            lines = (Path(self._cache) / LOG).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        """Disconnect. The fetcher ends when nobody is connected."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
