"""Describe, check, fill or clear a cache."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dbloader.errors import NotAStoreError, StoreLockedError
from dbloader.ext.caching.folder import CHECKSUMS, LOCK, MARKER, PARTIAL, STATS, Checksums, read_stats
from dbloader.ext.caching.policy import Need
from dbloader.ext.caching.store import CachedStore
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.ext.caching.folder import CacheStats


class CacheFacts(NamedTuple):
    """What is in a cache.

    Attributes:
        origin: Path or URI of the store that the cache copies.
        shards: Number of shards in the cache.
        of: Number of shards in the store; 0 if unknown.
        nbytes: Bytes of the shards in the cache.
        idle_s: Seconds since the last use; 0 while processes use the cache.
        stats: Counters of the running fetcher, or of the last one.
    """

    origin: str
    shards: int
    of: int
    nbytes: int
    idle_s: float
    stats: CacheStats


def describe_cache(cache: str | os.PathLike[str]) -> CacheFacts:
    """Return what is in a cache; raise NotAStoreError if the folder is not a cache."""
    folder, origin = Path(cache), _origin(cache)
    with refusals(str(cache)):
        sizes = [path.stat().st_size for path in _shards(folder)]
        used = max(path.stat().st_mtime for path in (folder / STATS, folder / MARKER) if path.exists())
        with _no_fetcher(folder) as is_idle:
            stats = read_stats(folder)
        if is_idle:
            stats.readers = 0  # the file of a killed fetcher still counts its readers
    of = 0
    with suppress(FileNotFoundError):
        of = len(ShardTable.read(folder).shards)
    idle_s = max(0.0, time.time() - used) if is_idle else 0.0
    return CacheFacts(origin, len(sizes), of, sum(sizes), idle_s, stats)


def check_cache(cache: str | os.PathLike[str], progress: Callable[[int, int], object] = lambda *_: None) -> list[str]:
    """Compare all files of a cache with their checksums, remove the damaged files, and return their names.

    The cache may be in use. Removed files are fetched again when readers need them.

    Args:
        cache: The folder.
        progress: Called with the number of checked files and the number of all files.

    Raises:
        NotAStoreError: The folder is not a cache.
    """
    folder = Path(cache)
    _origin(cache)
    with refusals(str(cache)):
        files = [*_shards(folder), *folder.glob("index-*.lmdb")]
        checksums, damaged = Checksums(folder), []  # a checksum is stored before its file, so read the checksums last
        for number, path in enumerate(files):
            progress(number, len(files))
            with suppress(FileNotFoundError):  # the fetcher removed the file to make room
                if not checksums.agrees(path, compare=True):
                    path.unlink()
                    damaged.append(path.name)
    return damaged


def fill_cache(
    place: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    max_bytes: int | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> None:
    """Fetch the first shards of a store, in order, until the cache is full.

    Args:
        place: The store.
        cache: The folder.
        max_bytes: Limit of the cache: total bytes of its shards; None for no limit.
        progress: Called with the number of fetched shards and the number of all shards to fetch.

    Raises:
        DBLoaderError: A shard cannot be fetched, or the cache belongs to another store.
    """
    with CachedStore(place, cache, max_bytes=max_bytes) as store:
        files = store.files
        numbers = files.first_shards(max_bytes)
        store.expect([Need(number, number, number) for number in numbers], check=False)
        for number in numbers:
            progress(number, len(numbers))
            files.fetch(number)


def clear_cache(cache: str | os.PathLike[str]) -> int:
    """Remove the files of a cache, and return the bytes of its shards. The folder can then cache any store.

    Raises:
        NotAStoreError: The folder is not a cache.
        StoreLockedError: Processes use the cache.
    """
    folder = Path(cache)
    _origin(cache)
    with refusals(str(cache)), _no_fetcher(folder) as is_idle:
        if not is_idle:
            readers = read_stats(folder).readers
            raise StoreLockedError(f"{cache} is used by {readers} processes, so nothing was removed")
        shards = _shards(folder)
        nbytes = sum(path.stat().st_size for path in shards)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)  # the manifest first: without it, the folder is no store
        for path in (*shards, *folder.glob("index-*"), *(folder / PARTIAL).iterdir(), folder / CHECKSUMS):
            path.unlink(missing_ok=True)
    return nbytes


def _origin(cache: str | os.PathLike[str]) -> str:
    try:
        return str(json.loads((Path(cache) / MARKER).read_bytes()).get("origin"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(f"{os.fspath(cache)} is not a cache: it has no {MARKER}") from None
    except ValueError:
        return "an unknown place"  # the file is damaged


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / SHARD_FOLDER).iterdir())


@contextmanager
def _no_fetcher(folder: Path) -> Iterator[bool]:
    """Yield True if no fetcher runs. Then no fetcher can start inside the ``with`` block."""
    flags = os.O_RDONLY | os.O_CREAT  # read-only, because a user without write permission may call describe_cache
    with open(folder / LOCK, "rb", opener=lambda path, _: os.open(path, flags, 0o666)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
