"""Make a sharded store of finished LMDB stores that lie in its folder, and put it in the place of another."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted, size
from dbloader.errors import DamagedStoreError, StoreError, StoreExistsError
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.partial import close_locked, open_locked, sync_folder
from dbloader.stores.lmdb.shard_index import write_index
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable, is_sharded, kept_manifest
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def index_shards(
    folder: Path,
    names: Sequence[str],
    digests: Sequence[str | None],
    *,
    classes: Sequence[str] = (),
    source: Mapping[str, Any] | None = None,
    created: str | None = None,
    salt: int | None = None,
    grows: tuple[Path, ShardTable] | None = None,
    index: str = "",
) -> ShardTable:
    """Write the index of the shards in the ``shards/`` of a folder, and return the table of their store.

    The folder is that store after ``put_manifest``.

    Args:
        folder: The folder.
        names: File names of the shards, in the order of their records.
        digests: The digest that each must have; None for any.
        classes: Name of each label from 0 on.
        source: Where the records came from, for people to read.
        created: UTC, ISO 8601; None for now.
        salt: Of the manifest; None for a random one.
        grows: Folder and table of the store that the shards are added to; None for a new store.
        index: File name of the index; "" for a new one.

    Raises:
        StoreError: A shard is missing, damaged, no store or another one; or the folder cannot be written.
        FieldError: A label has no class; or a manifest cannot hold the classes or the source.
    """
    shards: list[Shard] = [] if grows is None else [*grows[1].shards]

    def stores() -> Iterator[LMDBStore]:
        if grows is not None:
            yield LMDBStore(grows[0])
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
    # LMDB writes on a local disk, and other folders get whole files.
    with refusals(str(folder)), tempfile.TemporaryDirectory(prefix="dbloader-") as local:
        path = Path(local) / index
        salt = secrets.randbits(32) if salt is None else salt
        facts: dict[str, Any] = {"salt": salt, "classes": classes, "source": source, "created": created}
        manifest = write_index(str(path), stores(), str(folder), **facts)
        copy_durably(path, folder / index)
    return ShardTable(manifest, index, shards, "" if grows is None else grows[1].index_file)


def put_manifest(folder: Path, table: ShardTable) -> None:
    """Put a manifest in its place, once all that it names is on the disk."""
    aside = folder / f"{MANIFEST_FILE}.{secrets.token_hex(4)}"
    with refusals(str(folder)):
        try:
            write_durably(aside, table.encode())
            for changed in (folder / SHARD_FOLDER, folder):
                sync_folder(changed)
            aside.replace(folder / MANIFEST_FILE)
        finally:
            aside.unlink(missing_ok=True)
    with suppress(OSError):  # the store is in place
        sync_folder(folder)


def move_into(folder: Path, table: ShardTable, target: Path) -> None:
    """Put a store whose files are in a folder in the place of another, or of that which it grows from.

    It is the manifest that does so, in one step, once all that it names is there.

    Raises:
        StoreLockedError: Another process publishes there now.
        StoreExistsError: The store there is another one than that which is to grow.
        StoreError: The store cannot be written.
    """
    left: list[str] = []
    with refusals(str(target)), replacing(target) as old:
        with suppress(StoreError):  # a damaged store is replaced too
            there = ShardTable.decode(old, str(target))
            left = [*there.files, *there.older_files]
        if table.previous:
            check_base(target, ShardTable.decode(old, str(target)), table.previous)
            kept = target / kept_manifest(table.previous)
            kept.unlink(missing_ok=True)  # a publisher that was killed has left half of it
            write_durably(kept, old)
        (target / SHARD_FOLDER).mkdir(exist_ok=True)
        for name in table.files:
            _give_second_name(folder / name, target / name)
        put_manifest(target, table)
        # Only what the older store had: other files may be those of a process that publishes too.
        for name in {*left} - {*table.files, *table.older_files}:
            with suppress(OSError):  # the store is in place
                (target / name).unlink()


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


def _give_second_name(path: Path, to: Path) -> None:
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


def check_base(target: Path, table: ShardTable, index_file: str) -> None:
    """Raise StoreExistsError unless the store at a place is the one with this index, which is to grow."""
    if table.index_file != index_file:
        raise StoreExistsError(
            f"{target} is another store than the one that was to grow: somebody has published there meanwhile. Plan "
            "again with append and overwrite (dbloader plan --append --overwrite)"
        )


def check_target(target: Path, *, overwrite: bool) -> bool:
    """Return whether a store is at the place, and may be replaced; StoreExistsError if not."""
    if not os.path.lexists(target):
        return False
    if not is_sharded(target):
        raise StoreExistsError(f"{target} exists and is no folder with a store of shards: name another place")
    if not overwrite:
        raise StoreExistsError(f"{target} exists already; overwrite (--overwrite) replaces it")
    return True


def unnamed_warning(target: Path) -> list[str]:
    """Return a warning about files in a store's folder that its manifest does not name, if there are any."""
    with suppress(OSError, StoreError):  # the store is in place
        table = ShardTable.read(target)
        patterns = f"{SHARD_FOLDER}/*", "index-*", f"{MANIFEST_FILE}.*"
        found = [path for pattern in patterns for path in sorted(target.glob(pattern))]
        named = {target / name for name in (*table.files, *table.older_files)}
        if left := [path for path in found if path not in named]:
            nbytes = size(sum(path.stat().st_size for path in left))
            what = f"{counted(len(left), 'file')} ({nbytes}) that its manifest does not name"
            names = ", ".join(str(path.relative_to(target)) for path in left[:5])
            return [
                f"{target} has {what}: {names}{', …' * (len(left) > 5)}; a publisher that was killed has left them, "
                "or one is at work: if none is, remove them"
            ]
    return []


def copy_durably(path: Path, to: Path) -> None:
    """Copy a file, which is whole and on the disk once it has its name."""
    aside = to.with_name(f"{to.name}.{secrets.token_hex(4)}")
    try:
        with path.open("rb") as source, aside.open("xb") as copy:
            shutil.copyfileobj(source, copy, 2**20)
            copy.flush()
            os.fsync(copy.fileno())
        aside.rename(to)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
