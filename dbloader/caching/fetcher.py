"""The one process of a machine that fetches the shards of a cache folder, for all processes that read from it.

A reader starts it (``client.py``), and it ends when no reader is connected any more. It imports no torch.

    readers --- need 17 ---> a thread for each --- waits for ---> present shards
                                                                      ^
    origin --- shards/00017 ---> threads that download: 00017.partial, checked, renamed
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.caching.folder import PARTIAL, SOCKET, Channel, socket_address
from dbloader.caching.shards import CachedShards, Reader
from dbloader.errors import DBLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable

_REPORT_S = 1.0
_FIRST_READER_S = 60.0


def serve(cache: str) -> None:
    """Serve the readers of a cache folder, whose lock this process has, until the last one has gone."""
    for path in (Path(cache) / SOCKET, *Path(cache).rglob(f"*{PARTIAL}*")):
        path.unlink(missing_ok=True)
    shards = CachedShards(cache)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o077)  # only this user may connect
        with socket_address(cache) as address:
            listener.bind(address)
        os.umask(before)
        listener.listen(128)
        listener.settimeout(_FIRST_READER_S)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return  # whoever began this has died
            listener.settimeout(None)
            connection.settimeout(None)
            session = _Session(cache, shards, Channel(connection))
            threading.Thread(target=session.serve, daemon=True).start()


class _Session:
    """The connection of one reader."""

    def __init__(self, cache: str, shards: CachedShards, channel: Channel) -> None:
        self._cache, self._shards, self._channel = cache, shards, channel
        self._reader = Reader()
        with shards.changed:
            shards.readers.append(self._reader)

    def serve(self) -> None:
        """Answer the reader's questions until it is gone. If it was the last one, end the process."""
        try:
            while True:
                message = self._channel.receive()
                try:
                    if self._answer(message):
                        self._channel.send(ready=True)
                except DBLoaderError as error:
                    self._channel.send(error=type(error).__name__, text=str(error))
        except (OSError, EOFError):
            pass  # the reader is gone
        finally:
            self._leave()

    def _leave(self) -> None:
        shards = self._shards
        with shards.changed:
            self._channel.close()
            shards.readers.remove(self._reader)
            if self._reader.name not in {reader.name for reader in shards.readers}:
                shards.forget(self._reader.name)
            shards.changed.notify_all()
            if not shards.readers:
                shards.clean_up()
                (Path(self._cache) / SOCKET).unlink(missing_ok=True)
                os._exit(0)  # a thread may hang in a read of its origin

    def _answer(self, message: dict[str, Any]) -> bool:
        """Do what a message asks, and return whether it gets an answer."""
        shards, reader = self._shards, self._reader
        with shards.changed:
            reader.pinned, reader.shards = None, message.get("soon", reader.shards)
            shards.changed.notify_all()
            if "open" in message:
                reader.name = message["reader"]
                shards.begin_open(**message["open"])
            if "need" in message:
                shards.ask(reader, message["need"])
            for shard in message.get("soon", ()):  # all of one batch: its reader has come to them
                shards.come_to(reader, shard)
        if "open" in message:
            opening = message["open"]
            self._wait(lambda: shards.is_open(opening["limit"], known=opening["known"]))
        if "need" in message:
            try:
                self._wait(lambda: shards.has(message["need"], reader))
            finally:
                reader.shards = []
        elif "soon" not in message:
            with shards.changed:
                shards.expect(reader.name, **message.get("expect", {"known": True}))
                shards.changed.notify_all()
        return "soon" not in message

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until something is done, and tell the reader each second how many bytes have arrived."""
        while True:
            with self._shards.changed:
                if self._shards.changed.wait_for(done, _REPORT_S):
                    return
            self._channel.send(wait=self._shards.arrived_bytes(), cause=self._shards.last_cause)
