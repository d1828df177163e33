"""The folder of a cache: a folder of shards with the origin's manifest and index, in which some shards are missing.

``cache.json`` marks it: only in a folder with this file is anything ever removed. ``fetcher.lock`` is locked by the
fetcher while it runs, ``fetcher.sock`` is where it listens, and ``orders/`` has a file for each reader whose order is
known. ``stats.json`` has the fetcher's counters.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.errors import NotAStoreError, OptionError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

MARKER, LOCK, SOCKET, LOG, STATS, ORDERS = (
    "cache.json", "fetcher.lock", "fetcher.sock", "fetcher.log", "stats.json", "orders",
)  # fmt: skip
PARTIAL = ".partial"
# Most that the path of a socket may have, on Linux; elsewhere a few less.
_SOCKET_PATH = 100


class CacheStats(NamedTuple):
    """What a cache's fetcher has done since it began.

    Attributes:
        nbytes: Bytes of the shards in the cache.
        fetches: Shards fetched.
        fetched_bytes: Their bytes.
        removed: Shards removed to make room.
        retries: Attempts at fetching that failed and were repeated.
        seconds: Time spent fetching, of all threads.
    """

    nbytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    removed: int = 0
    retries: int = 0
    seconds: float = 0.0


def read_stats(cache: str | os.PathLike[str]) -> CacheStats:
    """Return the counters of the cache in a folder; zeros before its fetcher has done anything."""
    try:
        return CacheStats(**json.loads((Path(cache) / STATS).read_text()))
    except FileNotFoundError:
        return CacheStats()


def make_folder(cache: str, origin: str, *, origin_is_path: bool) -> None:
    """Make the folder of a cache, unless it is one already.

    Raises:
        OptionError: The cache is at its origin, inside it, or around it.
        NotAStoreError: Something else is there.
        StoreAccessError: The folder cannot be made.
    """
    if origin_is_path:
        there, here = os.path.realpath(origin), os.path.realpath(cache)
        if os.path.commonpath((there, here)) in (there, here):
            raise OptionError(f"cache {cache} must be neither its origin {origin} nor inside or around it")
    folder = Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MARKER).exists():
            # Another process may be about to rename the marker to its name; what it makes afterwards is no stranger.
            strangers = [name for name in os.listdir(folder) if not name.startswith(MARKER)]  # noqa: PTH208 - names
            if strangers and not (folder / MARKER).exists():
                raise NotAStoreError(
                    f"{cache} is not a cache, and not empty: name an empty folder, or one that does not exist"
                )
            write_whole(folder / MARKER, json.dumps({"format": "dbloader cache", "version": 1, "origin": origin}))
        for name in (SHARD_FOLDER, ORDERS):
            (folder / name).mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(
            f"{cache} is a file, and a cache is a folder: name another place; or remove the file, if an earlier "
            "version made it as a cache (a store is read by LMDBDataset, without a cache)"
        ) from error
    except OSError as error:
        raise translate_refusal(error, cache) from error


def write_whole(path: Path, data: str | bytes) -> None:
    """Put a file in its place at once, whole."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    aside.write_bytes(data.encode() if isinstance(data, str) else data)
    aside.replace(path)


@contextmanager
def socket_address(cache: str) -> Iterator[str]:
    """Yield the path of the fetcher's socket, through a descriptor of its folder if it would be too long."""
    path = os.path.join(cache, SOCKET)  # noqa: PTH118 - any str
    if len(os.fsencode(path)) < _SOCKET_PATH:
        yield path
        return
    descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


class Channel:
    """Messages over a socket: one line of JSON each."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines = connection.makefile("rb")

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
