"""Make the folder of a cache: a sharded store with the origin's manifest and index, but perhaps without some shards.

``cache.json`` marks the folder. dbloader removes files only in a folder with this file. ``partial/`` has the files that
are being fetched. The running fetcher locks ``fetcher.lock``, listens on ``fetcher.sock``, and writes its counters to
``stats.json`` and its errors to ``fetcher.log``. checksums.py describes the file ``checksums``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

from dbloader.errors import NotAStoreError, OptionError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER

MARKER, LOCK, SOCKET, LOG, STATS, CHECKSUMS, PARTIAL = (
    "cache.json", "fetcher.lock", "fetcher.sock", "fetcher.log", "stats.json", "checksums", "partial",
)  # fmt: skip


@dataclasses.dataclass
class CacheStats:
    """Counters of a cache's fetcher since it started.

    Attributes:
        nbytes: Bytes of the shards in the cache.
        fetches: Number of fetched shards.
        fetched_bytes: Bytes of the fetched shards.
        removed: Number of shards removed to make room.
        damaged: Number of shards that were fetched again because their files in the cache were damaged.
        readers: Number of connected processes.
        retries: Number of repeated attempts to fetch a shard and repeated requests to object storage.
        seconds: Seconds spent fetching, summed over all threads.
        last_error: Error of the last failed attempt; "" if a shard has arrived since then.
    """

    nbytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    removed: int = 0
    damaged: int = 0
    readers: int = 0
    retries: int = 0
    seconds: float = 0.0
    last_error: str = ""

    def write(self, cache: Path) -> None:
        """Write the counters into the cache's folder."""
        with suppress(OSError):  # the disk may be full
            write_whole(cache / STATS, json.dumps(dataclasses.asdict(self)))


def read_stats(cache: str | os.PathLike[str]) -> CacheStats:
    """Return the counters of the cache in a folder; zeros before its fetcher has done anything."""
    try:
        return CacheStats(**json.loads((Path(cache) / STATS).read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # the file is missing or damaged
        return CacheStats()


def arriving_bytes(cache: str) -> int:
    """Return the total bytes of the files that are being fetched."""
    found = 0
    for path in Path(cache, PARTIAL).iterdir():
        with suppress(FileNotFoundError):  # the file is complete and has been renamed
            found += path.stat().st_size
    return found


def make_folder(cache: str, origin: str) -> None:
    """Make the folder of a cache, if it is not a cache already.

    Raises:
        OptionError: The cache is its origin, or is inside the origin, or contains the origin.
        NotAStoreError: The path is a file, or a folder with other files.
        StoreAccessError: The folder cannot be made.
    """
    if "://" not in origin:
        there, here = os.path.realpath(origin), os.path.realpath(cache)
        if os.path.commonpath((there, here)) in (there, here):
            raise OptionError(f"cache {cache} must not be its origin {origin}, or be inside or contain the origin")
    folder = Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not ((folder / MARKER).exists() and (folder / MANIFEST_FILE).exists()):  # the folder is new or was cleared
            # Another process may be making the same cache. So look for the marker again after listing the folder.
            other_files = [name for name in os.listdir(folder) if not name.startswith(MARKER)]  # noqa: PTH208 - names
            if other_files and not (folder / MARKER).exists():
                raise NotAStoreError(
                    f"{cache} is not a cache, and not empty: name an empty folder, or a folder that does not exist"
                )
            write_whole(folder / MARKER, json.dumps({"format": "dbloader cache", "version": 1, "origin": origin}))
        for name in (SHARD_FOLDER, PARTIAL):
            (folder / name).mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(
            f"{cache} is a file, but a cache is a folder: name another place, or remove the file if an earlier "
            "version of dbloader made it as a cache"
        ) from error
    except OSError as error:
        raise translate_refusal(error, cache) from error


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file under a temporary name, and rename it when it is complete."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        aside.write_bytes(data.encode() if isinstance(data, str) else data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)  # after a failure, such as a full disk
