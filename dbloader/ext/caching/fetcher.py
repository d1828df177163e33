"""Run the fetcher: the one process on a machine that fetches shards into a cache folder. Readers are its clients.

A reader starts the fetcher (``client.py``). The fetcher does not import torch, and ends when no reader is connected.

    readers --- need 17 ---> a thread for each ---> CachedShards: present shards, and the next shards
                                                        |  ^
                                                        v  |
    origin --- shards/00017 ---> up to 4 threads that fetch: partial/00017, checked, renamed to shards/00017
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedStoreError, OptionError
from dbloader.ext.caching.client import receive, send
from dbloader.ext.caching.folder import PARTIAL, SOCKET, CacheStats, Checksums
from dbloader.ext.caching.origins import as_dbloader_error, fetch_index, fetch_shard, open_origin
from dbloader.ext.caching.policy import CachePolicy, Need
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.errors import DBLoaderError
    from dbloader.ext.caching.origins import Origin
    from dbloader.stores.lmdb.shard_table import ShardTable

_FIRST_READER_S = 60.0
# Four fetches at the same time hide the latency of a request. More fetches would delay the shard that is needed first.
_AT_ONCE = 4


def serve(cache: str) -> None:
    """Serve the readers of a cache folder until the last reader disconnects. This process holds the folder's lock."""
    # This path is short, because Linux refuses sockets with long paths. It stays valid if the folder is renamed.
    own = f"/proc/self/fd/{os.open(cache, os.O_RDONLY | os.O_DIRECTORY)}"
    _clean_up(own)
    shards = CachedShards(cache)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o077)  # only this user may connect
        listener.bind(f"{own}/{SOCKET}")
        os.umask(before)
        listener.listen(128)
        listener.settimeout(_FIRST_READER_S)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return  # the reader that started this process has ended
            listener.settimeout(None)
            reader = Reader(Connection(connection.detach()))
            shards.join(reader)
            threading.Thread(target=_converse, args=(own, shards, reader), daemon=True).start()


def _clean_up(cache: str) -> None:
    """Remove the socket, and the partial files of a killed fetcher."""
    for path in (Path(cache, SOCKET), *Path(cache, PARTIAL).iterdir()):
        path.unlink(missing_ok=True)


def _converse(cache: str, shards: CachedShards, reader: Reader) -> None:
    """Handle a reader's messages until it disconnects. When the last reader has disconnected, end this process."""
    try:
        with suppress(OSError, EOFError):  # the reader has disconnected
            while True:
                _obey(shards, reader, receive(reader.channel))
    finally:
        if not shards.leave(reader):  # a reader that connects just now will start a new fetcher
            with suppress(OSError):  # the folder was removed
                _clean_up(cache)
            os._exit(0)  # does not wait for threads, which may hang while they read the origin
        reader.channel.close()  # after `leave`, so no other thread answers on a closed connection


def _obey(shards: CachedShards, reader: Reader, message: dict[str, Any]) -> None:
    if "opened" in message:
        shards.opened(reader)
        return
    try:
        if "need" in message:
            shards.need(reader, message["need"], message.get("damaged_file"))
            return  # the reader gets its answer when the shard is in the cache
        if "open" in message:
            reader.name = message["reader"]
            shards.open(**message["open"])
        else:
            shards.expect(reader, message["expect"], check=message["check"])
    except Exception as error:
        reader.answer(as_dbloader_error(error, "the origin"))
    else:
        reader.answer()


@dataclass(eq=False)
class Reader:
    """A connected process.

    Attributes:
        channel: The connection.
        name: The name of the reader's dataset. All processes with a copy of the dataset have the same name.
        shard: The shard that the reader waits for or opens, or None. This shard must not be removed.
        is_waiting: Whether the reader waits for the shard.
        damaged: Number of damaged shards that this fetcher has removed; 0 if the reader's shard was undamaged.
    """

    channel: Connection
    name: str = ""
    shard: int | None = None
    is_waiting: bool = False
    damaged: int = 0

    def answer(self, error: DBLoaderError | None = None) -> None:
        """Answer the reader's question: ready, or an error."""
        self.is_waiting = False
        with suppress(OSError):  # the reader has disconnected
            if error is None:
                send(self.channel, ready=True, damaged=self.damaged)
                self.damaged = 0
            else:
                self.shard = None
                send(self.channel, error=type(error).__name__, text=str(error))


class CachedShards:
    """The shards in a cache folder. Threads may share this object."""

    def __init__(self, cache: str) -> None:
        self._cache, self._folder = cache, Path(cache)
        self._lock = threading.Lock()  # protects all attributes below; no thread holds it during a fetch
        self._opening = threading.Lock()
        self._readers: list[Reader] = []
        self._origin: Origin | None = None
        self._limit: int | None = None
        self._table: ShardTable  # `open` sets the table and the policy
        self._policy: CachePolicy
        self._present: set[int] = set()
        self._fetching: set[int] = set()  # shards that are being fetched
        self._failed: set[int] = set()  # shards that are not fetched again until a reader asks for them
        self._stats = CacheStats()
        self._checksums = Checksums(self._folder, compact=True)
        self._comparing: dict[int, threading.Lock] = {}
        self._fetched_again: set[int] = set()  # shards fetched again because the origin itself sent damaged bytes

    def join(self, reader: Reader) -> None:
        """Add a connected reader."""
        with self._lock:
            self._readers.append(reader)
            self._write_stats()

    def leave(self, reader: Reader) -> bool:
        """Forget a reader that has disconnected, and return whether other readers are connected."""
        with self._lock:
            self._readers.remove(reader)
            if self._origin is not None:
                if reader.name not in {other.name for other in self._readers}:
                    self._policy.forget(reader.name)
                self._go_on()
            self._write_stats()
            return bool(self._readers)

    def open(self, place: str, limit: int | None, *, known: bool) -> None:
        """Open the origin, which is the store that the cache copies. With ``known``, keep an origin that is open.

        Raise NotAStoreError if the cache copies another store. Raise OptionError if it is open with another ``limit``.
        """
        # Look without the lock first. Otherwise, readers with ``known`` would wait while another reader's fetch hangs.
        if self._origin is None or not known:
            with self._opening:
                if self._origin is None or not known:  # another reader may have opened the origin meanwhile
                    origin = open_origin(place)
                    table = fetch_index(origin, self._folder, self._checksums)
                    if self._origin is None:
                        self._begin(origin, table, limit)
        if limit != self._limit:
            raise OptionError(
                f"the cache {self._cache} is in use with cache_bytes={self._limit}: all processes that use it at the "
                f"same time must give the same number, got {limit}"
            )

    def _begin(self, origin: Origin, table: ShardTable, limit: int | None) -> None:
        """Keep the opened origin, and find its shards in the folder."""
        nbytes = [shard.nbytes for shard in table.shards]
        if limit and limit < max(nbytes, default=0):
            raise OptionError(f"cache_bytes must be at least {max(nbytes)}, the size of the largest shard, got {limit}")
        with self._lock:
            self._table, self._policy = table, CachePolicy(nbytes, limit)
            numbers = {shard.name: number for number, shard in enumerate(table.shards)}
            for name in os.listdir(self._folder / SHARD_FOLDER):  # noqa: PTH208 - names
                if name in numbers:
                    self._arrived(numbers[name])
            self._limit, self._origin = limit, origin  # origin last, because `open` reads it without the lock
            self._write_stats()

    def expect(self, reader: Reader, needs: Sequence[Sequence[int]], *, check: bool) -> None:
        """Set the order in which all processes with the reader's name will need shards, and fetch in this order.

        With ``check``, raise OptionError if the cache is too small for the orders of all readers.
        """
        with self._lock:
            self._policy.expect(reader.name, [Need(*need) for need in needs])
            least = self._policy.least_bytes() if check and self._limit else 0
            if self._limit and self._limit < least:
                self._policy.forget(reader.name)
                raise OptionError(
                    f"cache_bytes={self._limit} is too small for this order, which reads several shards at the same "
                    f"time, {least} bytes in all: give at least {least}, or shuffle fewer shards at a time "
                    "(BlockShuffleSampler, buffer_blocks)"
                )
            self._go_on()

    def need(self, reader: Reader, shard: int, damaged_file: Sequence[int] | None) -> None:
        """Record that a reader waits for a shard. The reader gets an answer when the shard is in the cache.

        If the shard in the cache is damaged, it is removed first, and fetched again.

        Args:
            reader: The reader.
            shard: The shard.
            damaged_file: Inode and time of change (ns) of a file in which the reader found damage, or None.

        Raises:
            DamagedStoreError: The shard was fetched twice with the same damage.
        """
        damaged = self._remove_damaged(shard, damaged_file)
        with self._lock:
            reader.shard, reader.is_waiting, reader.damaged = shard, True, damaged
            self._readers.remove(reader)
            self._readers.append(reader)  # move the reader to the end: readers that have waited longer are served first
            self._policy.ask(reader.name, shard)
            self._failed.discard(shard)
            if shard in self._present and not self._path(shard).exists():  # another program removed it
                self._gone(shard)
            self._go_on()

    def _remove_damaged(self, shard: int, damaged_file: Sequence[int] | None) -> int:
        """Remove a shard if it is damaged. Return the number of such removals so far; 0 for an undamaged shard."""
        with self._lock:
            if shard not in self._present:
                return 0
            path, comparing = self._path(shard), self._comparing.setdefault(shard, threading.Lock())
        with comparing:  # otherwise, a second report of the same damage could remove the newly fetched file
            try:
                status = path.stat()
                is_blamed = damaged_file == [status.st_ino, status.st_mtime_ns]
                as_fetched = self._checksums.agrees(path, compare=is_blamed)
            except FileNotFoundError:
                return 0
            if as_fetched and not is_blamed:
                return 0
            if as_fetched and shard in self._fetched_again:
                assert self._origin is not None  # a shard is present, so the origin was opened
                file = f"{self._origin.place}/{SHARD_FOLDER}/{path.name}"
                raise DamagedStoreError(f"{file} has the same damage: the cache has fetched it twice")
            with self._lock:
                if as_fetched:
                    self._fetched_again.add(shard)
                if shard in self._present:
                    path.unlink(missing_ok=True)
                    self._gone(shard)
                self._stats.damaged += 1
                self._write_stats()
                return self._stats.damaged

    def opened(self, reader: Reader) -> None:
        """Record that a reader has opened its shard, which may now be removed."""
        with self._lock:
            reader.shard = None
            self._go_on()

    def _go_on(self) -> None:
        """Answer each reader whose shard has arrived, and start to fetch the next shards."""
        for reader in self._readers:
            if reader.is_waiting and reader.shard in self._present:
                reader.answer()
        wanted = [reader.shard for reader in self._readers if reader.shard is not None]
        while len(self._fetching) < _AT_ONCE:
            fixed = self._fetching.union(wanted)
            step = self._policy.next(self._present | self._fetching, wanted, fixed, self._failed)
            if step is None:
                break
            for shard in step.remove:
                with suppress(OSError):  # if the folder is not writable, the next `_fetch` reports it
                    self._path(shard).unlink()
                self._gone(shard)
                self._stats.removed += 1
            threading.Thread(target=self._fetch, args=(self._origin, step.shard), daemon=True).start()
            self._fetching.add(step.shard)

    def _fetch(self, origin: Origin, shard: int) -> None:
        began, failure = time.monotonic(), None
        try:
            fetch_shard(origin, self._folder, self._checksums, self._table, shard, self._note)
        except Exception as error:
            failure = as_dbloader_error(error, f"shard {shard} of {origin.place}")
        with self._lock:
            self._fetching.discard(shard)
            if failure is None:
                self._arrived(shard)
                self._stats.fetches += 1
                self._stats.fetched_bytes += self._policy.nbytes[shard]
                self._stats.last_error = ""
            else:
                self._failed.add(shard)
                for reader in self._readers:
                    if reader.is_waiting and reader.shard == shard:
                        reader.answer(failure)
            self._stats.seconds += time.monotonic() - began
            self._write_stats()
            self._go_on()

    def _note(self, error: DBLoaderError) -> None:
        """Store the error of a failed attempt to fetch a shard. Another attempt follows."""
        with self._lock:
            self._stats.last_error = str(error)
            self._write_stats()

    def _write_stats(self) -> None:
        self._stats.readers = len(self._readers)
        self._stats.write(self._folder)

    def _path(self, shard: int) -> Path:
        return self._folder / SHARD_FOLDER / self._table.shards[shard].name

    def _arrived(self, shard: int) -> None:
        """Note that a shard has arrived. Store its size, which may have been an estimate before."""
        self._policy.nbytes[shard] = nbytes = self._path(shard).stat().st_size
        self._present.add(shard)
        self._stats.nbytes += nbytes

    def _gone(self, shard: int) -> None:
        self._present.discard(shard)
        self._stats.nbytes -= self._policy.nbytes[shard]
