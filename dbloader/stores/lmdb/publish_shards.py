"""Make a sharded store of finished LMDB stores that lie in its folder."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedStoreError, StoreError, StoreExistsError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.partial import close_locked, open_locked, sync_folder
from dbloader.stores.lmdb.shard_index import write_index
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable, kept_manifest
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
    before: ShardTable | None = None,
    index: str = "",
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
        before: The store in the folder, to which the shards are added, within ``replacing``; None for a new one.
        index: File name of the new index; "" for any.

    Raises:
        StoreError: A shard is missing, damaged, no store or another one; or the folder cannot be written.
        FieldError: A label has no class; or a manifest cannot hold the classes or the source.
    """
    shards: list[Shard] = []

    def stores() -> Iterator[LMDBStore]:
        if before is not None:
            shards.extend(before.shards)
            yield LMDBStore(folder)
        for number, (name, digest) in enumerate(zip(names, digests, strict=True)):
            path = folder / SHARD_FOLDER / name
            store = LMDBStore(path)
            try:
                shards.append(Shard(name, len(store), path.stat().st_size, store.manifest.digest))
                if digest not in (None, shards[-1].digest):
                    store.close()
                    raise DamagedStoreError(f"{path} is not the shard that part {number} made")
            except StoreError as error:
                raise type(error)(f"{error}; remove {path}, and make part {number} again") from error
            yield store

    index = index or f"index-{secrets.token_hex(4)}.lmdb"
    try:
        if before is not None:
            _keep(folder, before)
        manifest = write_index(
            str(folder / index), stores(), str(folder), classes=classes, source=source, created=created
        )
        previous = "" if before is None else before.index_file
        put_manifest(folder, ShardTable(manifest, index, shards, previous).encode(), index)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise translate_refusal(error, str(folder)) from error
    return manifest


def put_manifest(folder: Path, data: bytes, index: str) -> None:
    """Put a manifest in its place, once all that it names is on the disk; the index has a name of its own."""
    aside = folder / f"{MANIFEST_FILE}.{index}"
    aside.unlink(missing_ok=True)  # of a publisher that was killed
    write_durably(aside, data)
    for changed in (folder / SHARD_FOLDER, folder):
        sync_folder(changed)
    aside.replace(folder / MANIFEST_FILE)
    with suppress(OSError):  # the store is in place
        sync_folder(folder)


def _keep(folder: Path, table: ShardTable) -> None:
    """Keep the manifest of a store that grows, for its readers; remove what the store before it has left."""
    kept = kept_manifest(table.index_file)
    for name in (*table.older_files, kept):  # a publisher that was killed has left half of it
        (folder / name).unlink(missing_ok=True)
    write_durably(folder / kept, (folder / MANIFEST_FILE).read_bytes())


@contextmanager
def replacing(folder: Path) -> Iterator[bytes]:
    """Lock a sharded store against others that publish in it, and yield the content of its manifest.

    Raises:
        StoreLockedError: Another process is publishing in it.
        StoreAccessError: It cannot be written, or its file system has no locks.
    """
    path = folder / MANIFEST_FILE
    descriptor = open_locked(path, 0, str(folder), "publishing")
    try:
        yield path.read_bytes()
    finally:
        close_locked(descriptor)


def give_second_name(path: Path, to: Path) -> None:
    """Give a file a second name, so that a publisher which is killed leaves all parts.

    It is moved if another file has the name, such as a damaged one of the same store, or if there are no links.
    """
    try:
        os.link(path, to)
    except OSError:
        try:
            path.replace(to)  # does nothing if the file has the name already
        except FileNotFoundError:
            if not to.exists():
                raise


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
