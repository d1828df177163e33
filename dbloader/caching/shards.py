"""The shards of a cache, in the fetcher's process: which are there, and the threads that fetch and remove them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.caching.folder import ORDERS, PARTIAL, STATS, CacheStats, write_whole
from dbloader.caching.origins import open_origin
from dbloader.caching.policy import CachePolicy, Need
from dbloader.errors import (
    DamagedStoreError,
    DBLoaderError,
    NotAStoreError,
    OptionError,
    StoreAccessError,
    StoreFullError,
)
from dbloader.stores.lmdb.handle import LMDBHandle, OtherStoreError
from dbloader.stores.lmdb.keys import SHARD_INDEX
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from dbloader.caching.origins import Origin
    from dbloader.caching.policy import Fetch

# Enough to hide the latency of a request; more would delay the shard that is needed first.
_DOWNLOADS = 4
_ATTEMPTS = 3
_PAUSE_S = 0.5  # before the second attempt; before the third, twice as long


class Reader:
    """What one connected process has asked for."""

    def __init__(self) -> None:
        self.name = ""  # of its dataset, the same in all processes that have it
        self.shards: list[int] = []  # the one that it waits for, then those that it will need soon
        self.pinned: int | None = None  # the one that it is opening


class CachedShards:
    """The shards in a cache folder. ``changed`` guards everything, and is notified of every change."""

    def __init__(self, cache: str) -> None:
        self.changed = threading.Condition()
        self.readers: list[Reader] = []
        self.last_cause = ""
        self._cache, self._folder = cache, Path(cache)
        self._origin: Origin | None = None
        self._place = ""
        self._limit: int | None = None
        self._opening = False
        self._open_error: DBLoaderError | None = None
        self._data = b""
        self._table: ShardTable  # from here on: once the origin is open
        self._policy: CachePolicy
        self._present: set[int] = set()
        self._coming: set[int] = set()
        self._failed: dict[int, DBLoaderError] = {}
        self._partials: set[Path] = set()
        self._stats = CacheStats()

    def begin_open(self, place: str, limit: int | None, *, known: bool) -> None:
        """Begin to open the origin, unless that is done or under way; look at it again unless it is ``known``."""
        if not self._opening and not (self._origin and known):
            self._opening, self._open_error = True, None
            threading.Thread(target=self._open, args=(place, limit), daemon=True).start()

    def is_open(self, limit: int | None, *, known: bool) -> bool:
        """Return whether the origin is open, with a limit.

        Raises:
            DBLoaderError: It could not be opened, or has another limit.
        """
        if self._open_error is not None and not (known and self._origin):
            raise self._open_error
        if not self._opening and self._limit != limit:
            raise OptionError(
                f"the cache {self._cache} is in use with cache_bytes={self._limit}: all that use it at one time "
                f"must give the same, got {limit}"
            )
        return not self._opening

    def _open(self, place: str, limit: int | None) -> None:
        try:
            origin = self._origin if self._origin and place == self._place else open_origin(place)
            data = origin.manifest()
            if data != self._data:
                self._bring(origin, data)
            if self._origin is None:
                self._begin(origin, limit)
                self._place = place
        except Exception as error:  # the readers get it
            self._open_error = as_ours(error, place)
        finally:
            with self.changed:
                self._opening = False
                self.changed.notify_all()

    def _bring(self, origin: Origin, data: bytes) -> None:
        """Bring manifest and index of the origin to the folder; refuse one that has other shards than the folder."""
        table = ShardTable.decode(data, origin.place)
        with suppress(FileNotFoundError):
            there = ShardTable.decode((self._folder / MANIFEST_FILE).read_bytes(), self._cache)
            if _ids(there) != _ids(table):
                raise NotAStoreError(
                    f"{self._cache} caches another store than the one that is now at {origin.place}: "
                    "remove the folder, or name another"
                )
        if not (self._folder / table.index_file).exists():
            self._fetch(origin, table.index_file, table.manifest.digest, of=SHARD_INDEX)
        write_whole(self._folder / MANIFEST_FILE, data)  # last: without it the folder is no store
        with self.changed:
            self._data, self._table = data, table

    def _begin(self, origin: Origin, limit: int | None) -> None:
        """Find the shards that are there, and begin to fetch others."""
        nbytes = [shard.nbytes for shard in self._table.shards]
        if limit is not None and limit < max(nbytes, default=0):
            raise OptionError(f"cache_bytes must be at least {max(nbytes)}, the size of the largest shard, got {limit}")
        with self.changed:
            self._policy = CachePolicy(nbytes, limit)
            numbers = {shard.name: number for number, shard in enumerate(self._table.shards)}
            for entry in os.scandir(self._folder / SHARD_FOLDER):
                if entry.name in numbers:
                    self._arrived(numbers[entry.name])
            self._origin, self._limit = origin, limit
            self._write_stats()
        for _ in range(_DOWNLOADS):
            threading.Thread(target=self._download, args=(origin,), daemon=True).start()

    def ask(self, reader: Reader, shard: int) -> None:
        """Note that a reader waits for a shard."""
        reader.shards = [shard, *(other for other in reader.shards if other != shard)]
        self._failed.pop(shard, None)
        self.come_to(reader, shard)

    def come_to(self, reader: Reader, shard: int) -> None:
        """Note how far a reader has come in its order."""
        self._policy.ask(reader.name, shard)

    def has(self, shard: int, reader: Reader) -> bool:
        """Return whether a shard is there, which then is not removed before the reader's next message.

        Raises:
            DBLoaderError: It could not be fetched.
        """
        if shard in self._failed:
            raise self._failed[shard]
        if shard in self._present and not self._path(shard).exists():  # somebody else has removed it
            self._gone(shard)
            self.changed.notify_all()
        if shard in self._present:
            reader.pinned, reader.shards = shard, []
        return shard in self._present

    def expect(self, name: str, *, check: bool = False, known: bool = False) -> None:
        """Take over the order that a reader has written, if it has.

        Args:
            name: The reader's.
            check: Whether to refuse a cache that is too small for the orders of all readers.
            known: Whether to do nothing if the reader's order is known already: it is somewhere in its middle.
        """
        if known and self._policy.knows(name):
            return
        with suppress(FileNotFoundError):
            needs = json.loads((self._folder / ORDERS / f"{name}.json").read_text())
            self._policy.expect(name, [Need(*need) for need in needs])
        least = self._policy.least_bytes() if check and self._limit is not None else 0
        if self._limit is not None and self._limit < least:
            self.forget(name)
            raise OptionError(
                f"cache_bytes={self._limit} is too small for this order, which reads shards of {least} bytes at one "
                "time: give at least so many, or shuffle fewer shards at a time (BlockShuffleSampler, buffer_blocks)"
            )

    def forget(self, name: str) -> None:
        """Forget the order of a reader of which no process is left."""
        if self._origin is not None:
            self._policy.forget(name)
        (self._folder / ORDERS / f"{name}.json").unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Remove what only a running fetcher needs."""
        for path in (*(self._folder / ORDERS).iterdir(), *self._partials):
            path.unlink(missing_ok=True)

    def arrived_bytes(self) -> int:
        """Return how many bytes have arrived, those of unfinished files included."""
        arrived = self._stats.fetched_bytes
        for path in list(self._partials):
            with suppress(OSError):
                arrived += path.stat().st_size
        return arrived

    def _path(self, shard: int) -> Path:
        return self._folder / SHARD_FOLDER / self._table.shards[shard].name

    def _arrived(self, shard: int) -> None:
        """Note that a shard is there, with its size: that of one made of records was an estimate."""
        self._policy.nbytes[shard] = nbytes = self._path(shard).stat().st_size
        self._present.add(shard)
        self._stats = self._stats._replace(nbytes=self._stats.nbytes + nbytes)

    def _gone(self, shard: int) -> None:
        self._present.discard(shard)
        self._stats = self._stats._replace(nbytes=self._stats.nbytes - self._policy.nbytes[shard])

    def _next(self) -> Fetch | None:
        firsts = [reader.shards[0] for reader in self.readers if reader.shards]
        waited_for = [*firsts, *(shard for reader in self.readers for shard in reader.shards[1:])]
        fixed = self._coming | {reader.pinned for reader in self.readers if reader.pinned is not None}
        return self._policy.next(self._present | self._coming, waited_for, fixed, self._failed)

    def _download(self, origin: Origin) -> None:
        while True:
            with self.changed:
                while (step := self._next()) is None:
                    self.changed.wait()
                for shard in step.remove:
                    self._path(shard).unlink(missing_ok=True)
                    self._gone(shard)
                self._coming.add(step.shard)
            began, retries = time.monotonic(), 0
            entry = self._table.shards[step.shard]
            while (error := self._try(origin, f"{SHARD_FOLDER}/{entry.name}", entry.digest)) is not None:
                if isinstance(error, (StoreFullError, NotAStoreError)) or retries + 1 == _ATTEMPTS:
                    break
                self.last_cause = str(error)
                time.sleep(_PAUSE_S * 2**retries)
                retries += 1
            with self.changed:
                self._coming.discard(step.shard)
                used = sum(self._policy.nbytes[shard] for shard in self._present | self._coming)
                if error is None:
                    self._arrived(step.shard)
                elif isinstance(error, StoreFullError) and used >= self._policy.nbytes[step.shard]:
                    self._policy.limit = used  # all that the disk has room for: the shard comes in place of others
                else:
                    self._failed[step.shard] = error
                self._count(step, retries, time.monotonic() - began, came=error is None)
                self.changed.notify_all()

    def _count(self, step: Fetch, retries: int, seconds: float, *, came: bool) -> None:
        stats = self._stats
        self._stats = stats._replace(
            fetches=stats.fetches + came,
            fetched_bytes=stats.fetched_bytes + came * self._policy.nbytes[step.shard],
            removed=stats.removed + len(step.remove),
            retries=stats.retries + retries,
            seconds=round(stats.seconds + seconds, 3),
        )
        self._write_stats()

    def _write_stats(self) -> None:
        with suppress(OSError):  # a full disk
            write_whole(self._folder / STATS, json.dumps(self._stats._asdict()))

    def _try(self, origin: Origin, name: str, digest: str) -> DBLoaderError | None:
        """Fetch a shard; return the error, if there is one."""
        try:
            self._fetch(origin, name, digest)
        except Exception as error:  # the reader that waits for it gets it
            with suppress(DBLoaderError):
                if _ids(ShardTable.decode(origin.manifest(), origin.place)) != _ids(self._table):
                    return NotAStoreError(
                        f"the store at {origin.place} has been replaced since it was opened: "
                        "open it again, with another cache"
                    )
            return as_ours(error, f"{origin.place}/{name}")
        return None

    def _fetch(self, origin: Origin, name: str, digest: str, of: bytes | None = None) -> None:
        """Fetch a file of the store; it comes to its place when it is whole and the one that the manifest names."""
        path, place = self._folder / name, f"{origin.place}/{name}"
        partial = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}{PARTIAL}")
        both = {partial, partial.with_name(partial.name + PARTIAL)}  # the second one is LMDBWriter's
        with self.changed:
            self._partials |= both
        try:
            origin.fetch(name, str(partial))
            LMDBHandle(str(partial), place, digest=digest, of=of)
            partial.replace(path)
        except OtherStoreError as error:
            raise DamagedStoreError(f"{place} is not the part of {origin.place} that was published") from error
        finally:
            partial.unlink(missing_ok=True)
            with self.changed:
                self._partials -= both


def _ids(table: ShardTable) -> list[tuple[str, str]]:
    return [(shard.name, shard.digest) for shard in table.shards]


def as_ours(error: Exception, place: str) -> DBLoaderError:
    """Return an error as one of dbloader, which can be sent to a reader."""
    return error if isinstance(error, DBLoaderError) else StoreAccessError(f"{place} cannot be fetched: {error!r}")
