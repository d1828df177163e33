"""A process's connection to the fetcher of a cache, which is started if it does not run."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dbloader import errors
from dbloader.caching.channel import Channel, socket_address
from dbloader.caching.folder import LOCK, LOG, arriving_bytes, make_folder, read_stats
from dbloader.errors import DBLoaderError, StoreAccessError
from dbloader.stores.lmdb.errors import translate_refusal

STALL_S = 120.0
"""How long a reader waits while no byte arrives, in seconds. MongoDB's driver repeats its reads for a minute."""
_START_S = 60.0
_STARTS = 3
_PAUSE_S = 0.02
_LOOK_S = 1.0  # while it waits
# Forks once, so that no reader has a child that it does not know of. Nothing that a fork could break is there yet.
_PROGRAM = """\
import os
if os.fork():
    os._exit(0)
os.setsid()
import sys
from dbloader.caching.fetcher import serve
serve(sys.argv[1])
"""


class FetcherClient:
    """A process's connection to the fetcher of a cache; threads must take turns.

    Args:
        cache: The folder of the cache.
        place: The place of the store without credentials, for messages.
        opening: The message ``open``. If its origin needs credentials, they go through the socket only.
    """

    def __init__(self, cache: str, place: str, opening: dict[str, Any]) -> None:
        self._cache, self._place, self._opening = cache, place, opening
        self._channel: Channel | None = None
        self._is_open = False
        make_folder(cache, place, origin_is_path="://" not in place)
        self.ask("the index")
        opening["open"]["known"] = True  # another fetcher need not look again

    def tell(self, **message: Any) -> None:
        """Send what has no answer."""
        try:
            if self._channel is not None:
                self._channel.send(**message)
        except OSError:
            self.close()  # the next question finds a new fetcher

    def ask(self, what: str, **message: Any) -> None:
        """Send a question, and wait for its answer, if need be from a new fetcher.

        Args:
            what: What is waited for, for messages.
            message: The question; without one, only a connection is made.

        Raises:
            DBLoaderError: It is the answer, or none came.
        """
        for _ in range(_STARTS):
            try:
                if self._channel is None:
                    self._channel = self._connect()
                    self._exchange("the index", **self._opening)
                    self._is_open = True
                if message:
                    self._exchange(what, **message)
            except DBLoaderError:  # first, as some are ConnectionErrors too
                if not self._is_open:
                    self.close()
                raise
            except (ConnectionError, EOFError):
                self.close()
            except BaseException as error:
                self.close()  # an answer may still be on its way
                if isinstance(error, OSError):
                    raise translate_refusal(error, self._cache) from error
                raise
            else:
                return
        raise StoreAccessError(
            f"{what} of {self._place} cannot be fetched: the cache's fetcher ended {_STARTS} times{self._log()}"
        )

    def _exchange(self, what: str, **message: Any) -> None:
        """Send a message, and wait for the answer as long as bytes arrive."""
        assert self._channel is not None
        self._channel.send(**message)
        arrived, since = -1, time.monotonic()
        while not self._channel.wait(_LOOK_S):
            before, arrived = arrived, arriving_bytes(self._cache)
            if arrived != before:
                since = time.monotonic()
            elif time.monotonic() - since >= STALL_S:
                self.close()
                cause = read_stats(self._cache).last_error
                raise StoreAccessError(
                    f"{what} of {self._place} did not come: no byte arrived for {STALL_S:.0f} s"
                    + (f"; the last error was: {cause}" if cause else "")
                )
        answer = self._channel.receive()
        if "error" in answer:
            kind = getattr(errors, answer["error"], None)
            known = isinstance(kind, type) and issubclass(kind, DBLoaderError)
            raise (kind if known else StoreAccessError)(answer["text"])  # type: ignore[misc]

    def _connect(self) -> Channel:
        """Return a connection to the fetcher, which this process starts if no other one holds its lock."""
        until, starts = time.monotonic() + _START_S, 0
        while time.monotonic() < until:
            connection = socket.socket(socket.AF_UNIX)
            try:
                with socket_address(self._cache) as address:
                    connection.connect(address)
                return Channel(connection)
            except (ConnectionError, FileNotFoundError, BlockingIOError):
                connection.close()
            except BaseException:
                connection.close()
                raise
            with (Path(self._cache) / LOCK).open("ab") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass  # it is starting, or ending
                else:
                    if starts == _STARTS:
                        break
                    starts += 1
                    self._start(lock.fileno())
            time.sleep(_PAUSE_S)
        raise StoreAccessError(
            f"the fetcher of the cache {self._cache} cannot be reached; the folder must be on a disk of this machine, "
            f"and used by no other{self._log()}"
        )

    def _start(self, lock: int) -> None:
        """Start a fetcher, which inherits the lock.

        Nobody may fork meanwhile, or the child would have the lock too: CachedStore sees to that.
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
        """Return the last line that a fetcher has left, as the end of a message."""
        try:
            lines = (Path(self._cache) / LOG).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        """Leave the fetcher; it ends when nobody is left."""
        if self._channel is not None:
            self._channel.close()
            self._channel, self._is_open = None, False
