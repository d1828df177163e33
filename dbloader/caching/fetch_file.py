"""Fetch files of a store to the folder of a cache. A file gets its name there when it is complete and verified."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dbloader.caching.folder import PARTIAL, write_whole
from dbloader.errors import DamagedStoreError, DBLoaderError, NotAStoreError, StoreAccessError, StoreFullError
from dbloader.stores.lmdb.errors import NO_ROOM, translate_refusal
from dbloader.stores.lmdb.handle import open_file
from dbloader.stores.lmdb.shard_table import COPY_AGAIN, MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dbloader.caching.checksums import Checksums
    from dbloader.caching.origins import Origin

# Pauses before the second and the third attempt. In each attempt, some origins repeat requests for up to a minute.
_PAUSES_S = (0.5, 1.0)


def fetch_index(origin: Origin, cache: Path, checksums: Checksums) -> ShardTable:
    """Fetch the manifest, and also the index if it is missing or damaged. Return the table of shards in the manifest.

    Raises:
        NotAStoreError: The cache has the shards of another store.
        DBLoaderError: The manifest or the index cannot be fetched.
    """
    data = origin.manifest()
    table = ShardTable.decode(data, origin.place)
    with suppress(FileNotFoundError, DamagedStoreError):
        if _files(ShardTable.read(cache)) != _files(table):
            raise NotAStoreError(
                f"{cache} is the cache of another store, not of the store now at {origin.place}: "
                "remove the folder, or name another folder"
            )
    index = cache / table.index_file
    if not index.exists() or not checksums.agrees(index):
        _fetch(origin, cache, checksums, table.index_file, index_of=table.manifest)
    write_whole(cache / MANIFEST_FILE, data)  # last, because a folder with a manifest counts as a store
    return table


def fetch_shard(
    origin: Origin,
    cache: Path,
    checksums: Checksums,
    table: ShardTable,
    number: int,
    note: Callable[[DBLoaderError], None],
) -> None:
    """Fetch a shard of a store in up to three attempts. If another attempt follows, call ``note`` with the error.

    Raises:
        DBLoaderError: All attempts failed, or another attempt would be useless.
    """
    shard = table.shards[number]
    name = f"{SHARD_FOLDER}/{shard.name}"
    for pause in (*_PAUSES_S, None):
        try:
            _fetch(origin, cache, checksums, name, digest=shard.digest)
        except (DBLoaderError, OSError) as error:
            failed = as_dbloader_error(error, f"{origin.place}/{name}")
            if isinstance(failed, StoreFullError):
                raise StoreFullError(f"{failed}: make room on the disk of {cache}, or give cache_bytes") from error
            if _is_replaced(origin, table):
                raise NotAStoreError(
                    f"the store at {origin.place} has been replaced since it was opened: "
                    "open it again, with another cache"
                ) from error
            if pause is None:
                raise failed from error
            note(failed)
            time.sleep(pause)
        else:
            return


def _fetch(origin: Origin, cache: Path, checksums: Checksums, name: str, **expected: Any) -> None:
    path = cache / name
    partial = cache / PARTIAL / path.name
    try:
        origin.fetch(name, partial)
        open_file(partial, origin.place, name, COPY_AGAIN, **expected)
        checksums.add(partial, path.name)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_replaced(origin: Origin, table: ShardTable) -> bool:
    with suppress(DBLoaderError, OSError):
        return _files(ShardTable.decode(origin.manifest(), origin.place)) != _files(table)
    return False


def _files(table: ShardTable) -> list[tuple[str, str]]:
    """Return the names and digests of a store's shards. A cache may be used for every store with the same shards."""
    return [(shard.name, shard.digest) for shard in table.shards]


def as_dbloader_error(error: Exception, place: str) -> DBLoaderError:
    """Return dbloader's error for any error. Only errors of dbloader can be sent to a reader."""
    if isinstance(error, DBLoaderError):
        return error
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return translate_refusal(error, f"a copy of {place}")
    return StoreAccessError(f"{place} cannot be fetched: {error}")
