"""Fetch the files of a store to the folder of a cache. A file appears there only when it is whole and the right one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dbloader.caching.folder import PARTIAL, write_whole
from dbloader.errors import DamagedStoreError, DBLoaderError, NotAStoreError, StoreAccessError, StoreFullError
from dbloader.stores.lmdb.errors import NO_ROOM, translate_refusal
from dbloader.stores.lmdb.handle import LMDBHandle, OtherStoreError
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dbloader.caching.checksums import Checksums
    from dbloader.caching.origins import Origin

# Before each further attempt at a shard. Some origins repeat their own requests for up to a minute in each attempt.
_PAUSES_S = (0.5, 1.0)


def fetch_index(origin: Origin, cache: Path, checksums: Checksums, *, compare: bool = False) -> ShardTable:
    """Fetch the manifest, and the index unless it is there and undamaged, and return the manifest.

    With ``compare``, all bytes of the index are compared with its checksum.

    Raises:
        NotAStoreError: The cache has the shards of another store.
        DBLoaderError: Manifest or index cannot be fetched.
    """
    data = origin.manifest()
    table = ShardTable.decode(data, origin.place)
    there = None
    with suppress(FileNotFoundError, DamagedStoreError):
        there = ShardTable.decode((cache / MANIFEST_FILE).read_bytes(), str(cache))
    if there is not None and _files(there) != _files(table):
        raise NotAStoreError(
            f"{cache} caches another store than the one that is now at {origin.place}: "
            "remove the folder, or name another"
        )
    index = cache / table.index_file
    if not index.exists() or not checksums.agrees(index, compare=compare):
        _fetch(origin, cache, checksums, table.index_file, index_of=table.manifest)
    write_whole(cache / MANIFEST_FILE, data)  # last: it makes the folder a store
    return table


def fetch_shard(
    origin: Origin,
    cache: Path,
    checksums: Checksums,
    table: ShardTable,
    number: int,
    note: Callable[[DBLoaderError], None],
) -> None:
    """Fetch a shard of a store in up to three attempts. Call ``note`` with each error before the next attempt.

    Raises:
        DBLoaderError: No attempt succeeded, or none can succeed.
    """
    shard = table.shards[number]
    name = f"{SHARD_FOLDER}/{shard.name}"
    for pause in (*_PAUSES_S, None):
        try:
            _fetch(origin, cache, checksums, name, digest=shard.digest)
        except Exception as error:
            failed = as_ours(error, f"{origin.place}/{name}")
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
    path, place = cache / name, f"{origin.place}/{name}"
    partial = cache / PARTIAL / path.name
    try:
        origin.fetch(name, str(partial))
        LMDBHandle(str(partial), place, **expected)
        checksums.add(partial, path.name)
        partial.replace(path)
    except OtherStoreError as error:
        raise DamagedStoreError(f"{place} is not the part of {origin.place} that was published") from error
    finally:
        partial.unlink(missing_ok=True)


def _is_replaced(origin: Origin, table: ShardTable) -> bool:
    with suppress(DBLoaderError, OSError):
        return _files(ShardTable.decode(origin.manifest(), origin.place)) != _files(table)
    return False


def _files(table: ShardTable) -> list[tuple[str, str]]:
    return [(shard.name, shard.digest) for shard in table.shards]


def as_ours(error: Exception, place: str) -> DBLoaderError:
    """Return an error of dbloader for any error. It can be sent to a reader."""
    if isinstance(error, DBLoaderError):
        return error
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return translate_refusal(error, f"a copy of {place}")
    return StoreAccessError(f"{place} cannot be fetched: {error}")
