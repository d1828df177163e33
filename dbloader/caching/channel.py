"""What the readers of a cache and its fetcher say to each other, over a socket in the cache's folder.

    reader                                       fetcher

    open: place, limit, known; reader  ------->  brings manifest and index, unless they are known
                                       <-------  ready, or error
    expect: needs; check               ------->  fetches in this order from now on
                                       <-------  ready, or error
    need: 17                           ------->  fetches shard 17 next
                                       <-------  ready: it is there, and stays; or error
    opened                             ------->  shard 17 may be removed

Nothing else is said. A reader that waits sees in the folder whether bytes arrive, and a fetcher takes the end of a
connection for the end of its reader.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from dbloader.caching.folder import SOCKET

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


class Channel:
    """One end of a connection: messages of one line of JSON each."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lines = end.makefile("rb")

    def wait(self, seconds: float) -> bool:
        """Wait for a message or the end, and return whether there is one."""
        return bool(connection.wait([self._socket], seconds))

    def send(self, **message: Any) -> None:
        """Send a message; OSError if the other end is gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; EOFError if the other end is gone."""
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close this end."""
        self._lines.close()
        self._socket.close()


@contextmanager
def socket_address(cache: str) -> Iterator[str]:
    """Yield the path of the fetcher's socket, through a descriptor of its folder: a longer one is refused by Linux."""
    descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
