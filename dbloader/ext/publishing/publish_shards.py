"""Join a folder of LMDB files into one sharded store, and move the store to its place."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedStoreError, StoreError, StoreExistsError
from dbloader.records.columns import CHUNK, ColumnChunk, seal_chunk, stored_columns
from dbloader.records.document import seal
from dbloader.records.manifest import Summary, Totals
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.files import copy_durably, write_durably
from dbloader.stores.lmdb.growing_file import PartialFile, close_locked, open_locked, remove_report, sync_folder
from dbloader.stores.lmdb.keys import MANIFEST, SHARD_INDEX, column_key, event_key
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable, is_sharded, kept_manifest
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.stores.base import Store

# Number of column chunks and report lines in one transaction, about 10 MB.
_AT_ONCE = 256


def index_shards(
    folder: Path,
    names: Sequence[str],
    digests: Sequence[str | None],
    *,
    grows: tuple[Path, ShardTable] | None = None,
    index: str = "",
    **facts: Any,
) -> ShardTable:
    """Write the index of the shards in a folder, and return the table that ``put_manifest`` publishes.

    Args:
        folder: The folder, whose subfolder ``shards/`` contains the shards.
        names: File names of the shards, in the order of their records.
        digests: The expected digest of each shard; None accepts any digest.
        grows: Folder and table of the store to which the shards are added; None for a new store.
        index: File name of the index; "" for a new name.
        facts: ``classes``, ``source``, ``created`` and ``salt``, as in ``write_index``.

    Raises:
        StoreError: A shard is missing, is damaged or has another digest, or the folder cannot be written.
        FieldError: A label has no class, or the manifest cannot store the classes or the source.
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
    # LMDB needs a local disk, but the folder may be on a network. So write a local file, and copy the whole file.
    with refusals(str(folder)), tempfile.TemporaryDirectory(prefix="dbloader-") as local:
        path = Path(local) / index
        manifest = write_index(path, stores(), str(folder), **facts)
        copy_durably(path, folder / index)
    return ShardTable(manifest, index, shards, "" if grows is None else grows[1].index_file)


def write_index(
    path: Path,
    shards: Iterable[Store],
    place: str,
    *,
    classes: Sequence[str] = (),
    source: Mapping[str, Any] | None = None,
    created: str | None = None,
    salt: int | None = None,
) -> Manifest:
    """Write the index, a file with the columns and reports of all shards. Return the manifest of all records.

    Args:
        path: Path of the new file, which appears when it is complete.
        shards: The shards in order. Each shard is opened when its turn comes.
        place: The place of the sharded store, for messages.
        classes: Name of each label from 0 on.
        source: Where the records are from, for people to read.
        created: Time in UTC, ISO 8601; None for now.
        salt: The manifest's salt; None for a random salt.

    Raises:
        StoreError: A shard cannot be read, or the file cannot be written.
        FieldError: A label has no class, or the manifest cannot store the classes or the source.
    """
    totals, summary = Totals(), Summary()
    salt = secrets.randbits(32) if salt is None else salt
    entries = _index_entries(shards, totals, summary, salt)
    file = PartialFile(str(path))
    with ExitStack() as stack:
        file.lock()
        stack.callback(file.unlock)
        stack.callback(file.remove)  # does nothing after publishing
        file.clear()
        file.open()
        stack.callback(file.env.close)
        while batch := list(islice(entries, _AT_ONCE)):
            file.write(batch)
        manifest = totals.manifest(place, summary, salt=salt, classes=classes, source=source, created=created)
        file.write([(SHARD_INDEX, b""), (MANIFEST, manifest.encode())])
        file.sync()
        file.publish()
    return manifest


def _index_entries(
    shards: Iterable[Store], totals: Totals, summary: Summary, salt: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the index's keys and values: all report lines and column chunks. Add them to ``totals`` and ``summary``.

    The last chunk of a shard may be short. Then the next shard's values fill the rest of the chunk in the index.
    """
    chunk, number, fields = ColumnChunk(), 0, set[str]()
    for shard in shards:
        with shard:
            for event in shard.events():
                yield event_key(totals.events), seal(event, totals.events, salt)
                totals.events += 1
            totals.add_store(shard.manifest)
            handle, columns = shard.open_handle(), stored_columns(shard.manifest.fields)
            for own_number in range(-(-len(shard) // CHUNK)):
                chunk.extend(ColumnChunk.unpack({name: handle.chunk(name, own_number) for name in columns}))
                if len(chunk) >= CHUNK:
                    rest = chunk.split(CHUNK)
                    yield from _seal_chunk(chunk, number, fields, summary, salt)
                    chunk, number = rest, number + 1
    if len(chunk):
        yield from _seal_chunk(chunk, number, fields, summary, salt)


def _seal_chunk(
    chunk: ColumnChunk, number: int, fields: set[str], summary: Summary, salt: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and sealed columns of a chunk. For a new field, also yield empty columns of all earlier chunks."""
    for at, packed in chunk.pack_columns(number, fields):
        if at == number:
            summary.add(packed)
        for name, values in packed.items():
            yield column_key(name, at), seal_chunk(name, at, values, salt)


def put_manifest(folder: Path, table: ShardTable) -> None:
    """Wait until a store's files are on the disk, then write the manifest into the store's folder."""
    with refusals(str(folder)):
        for changed in (folder / SHARD_FOLDER, folder):
            sync_folder(changed)
        write_durably(folder / MANIFEST_FILE, table.encode())
    with suppress(OSError):  # the store is published even if its folder cannot be synced
        sync_folder(folder)


def move_into(folder: Path, table: ShardTable, target: Path) -> None:
    """Move a new store into the folder of an older store. The new store replaces the older store, or extends it.

    The new manifest is written last, and replaces the old manifest in one step.

    Raises:
        StoreLockedError: Another process is publishing at the target.
        StoreExistsError: The store at the target is not the store that ``table`` extends.
        StoreError: The store cannot be written.
    """
    old_files: list[str] = []
    with refusals(str(target)), locked(target / MANIFEST_FILE, 0, str(target), "publishing"):
        old = (target / MANIFEST_FILE).read_bytes()
        with suppress(StoreError):  # a damaged store may be replaced
            old_table = ShardTable.decode(old, str(target))
            old_files = [*old_table.files, *old_table.older_files]
        if table.previous:
            check_base(target, ShardTable.decode(old, str(target)), table.previous)
            write_durably(target / kept_manifest(table.previous), old)
        (target / SHARD_FOLDER).mkdir(exist_ok=True)
        for name in table.files:
            _give_second_name(folder / name, target / name)
        remove_report(target.with_name(f"{target.name}.report.jsonl"))
        put_manifest(target, table)
        # Other files in the folder may belong to a process that waits to publish, so they are kept.
        for name in {*old_files} - {*table.files, *table.older_files}:
            with suppress(OSError):  # the store is published even if old files remain
                (target / name).unlink()


def move_to(folder: Path, table: ShardTable, target: Path) -> None:
    """Turn a folder of shards into a store, and rename the folder to the target. The target must not exist."""
    put_manifest(folder, table)
    folder.rename(target)
    with suppress(OSError):  # the store is in place, and some folders cannot be synced
        sync_folder(target.parent)


def _give_second_name(path: Path, to: Path) -> None:
    """Make a file appear under a second name. If this process is killed, the file still has its first name.

    If a hard link is not possible, the file is moved. It replaces another file of this name, such as a damaged shard.
    """
    try:
        os.link(path, to)
    except OSError:
        try:
            path.replace(to)  # does nothing if both names already are hard links to one file
        except FileNotFoundError:
            if not to.exists():
                raise


def check_base(target: Path | str, table: ShardTable | None, index_file: str) -> None:
    """Raise StoreExistsError if the index of the store is not ``index_file``: the store has changed after the plan."""
    if table is None or table.index_file != index_file:
        raise StoreExistsError(
            f"{target} has changed since the plan was made, because another process has published there: plan again "
            "with append and overwrite (dbloader plan --append --overwrite)"
        )


def check_target(target: Path, *, overwrite: bool) -> bool:
    """Return whether the target has a store. Raise StoreExistsError if the target may not be replaced."""
    if not os.path.lexists(target):
        return False
    if not is_sharded(target):
        raise StoreExistsError(f"{target} exists and is not a folder of shards: name another place")
    if not overwrite:
        raise StoreExistsError(f"{target} exists already; overwrite (--overwrite) replaces it")
    return True


@contextmanager
def locked(path: Path, flags: int, place: str, doing: str) -> Iterator[None]:
    """Lock a file inside a ``with`` block. The arguments and errors are as in ``open_locked``."""
    descriptor = open_locked(path, flags, place, doing)
    try:
        yield
    finally:
        close_locked(descriptor)
