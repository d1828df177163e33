"""Make a sharded store of finished LMDB stores that lie in its folder."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedStoreError, StoreExistsError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.partial import sync_folder
from dbloader.stores.lmdb.shard_index import write_index
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from dbloader.records.manifest import Manifest


def publish_shards(
    folder: Path,
    names: Sequence[str],
    digests: Sequence[str | None],
    *,
    classes: Sequence[str] = (),
    source: Mapping[str, Any] | None = None,
    created: str | None = None,
) -> Manifest:
    """Make a folder a store of the shards in its ``shards/``, and return the manifest of all their records.

    The store is there, or is the new one in place of an older one, once the manifest has been renamed to its place.
    Whoever has the older one open goes on reading it.

    Args:
        folder: The folder of the sharded store.
        names: File names of the shards, in the order of their records.
        digests: The digest that each must have; None for any.
        classes: Name of each label from 0 on.
        source: Where the records came from, for people to read.
        created: UTC, ISO 8601; None for now.

    Raises:
        StoreError: A shard is missing, damaged, no store or another one; or the folder cannot be written.
        FieldError: A label has no class; or a manifest cannot hold the classes or the source.
    """
    shards: list[Shard] = []

    def stores() -> Iterator[LMDBStore]:
        for number, (name, digest) in enumerate(zip(names, digests, strict=True)):
            path = folder / SHARD_FOLDER / name
            store = LMDBStore(path)
            shards.append(Shard(name, len(store), path.stat().st_size, store.manifest.digest))
            if digest not in (None, shards[-1].digest):
                store.close()
                raise DamagedStoreError(f"{path} is not the shard that part {number} made; make that part again")
            yield store

    index = f"index-{secrets.token_hex(4)}.lmdb"
    try:
        manifest = write_index(
            str(folder / index), stores(), str(folder), classes=classes, source=source, created=created
        )
        aside = folder / f"{MANIFEST_FILE}.{index}"
        try:
            write_durably(aside, ShardTable(manifest, index, shards).encode())
            for changed in (folder / SHARD_FOLDER, folder):
                sync_folder(changed)
            aside.replace(folder / MANIFEST_FILE)
        except BaseException:
            for path in (aside, folder / index):
                path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise translate_refusal(error, str(folder)) from error
    with suppress(OSError):  # the store is in place
        sync_folder(folder)
    return manifest


def check_target(target: Path, *, overwrite: bool) -> bool:
    """Return whether a store is at the place, and may be replaced; StoreExistsError if not."""
    if not os.path.lexists(target):
        return False
    if not (target / MANIFEST_FILE).is_file():
        raise StoreExistsError(f"{target} exists and is no folder with a store of shards: name another place")
    if not overwrite:
        raise StoreExistsError(f"{target} exists already; overwrite (--overwrite) replaces it")
    return True


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
