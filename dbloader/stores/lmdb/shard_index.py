"""Make the index of a sharded store: the columns and the report of all shards, one after the other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.records.columns import CHUNK, DTYPES, names_in, pack_names, seal_chunk
from dbloader.records.document import seal
from dbloader.records.manifest import Summary
from dbloader.stores.lmdb.keys import MANIFEST, SHARD_INDEX, column_key, event_key
from dbloader.stores.lmdb.partial import PartialFile
from dbloader.stores.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import lmdb

    from dbloader.records.manifest import Manifest
    from dbloader.stores.base import Store

# Chunks, or events, of one transaction: a few megabytes.
_AT_ONCE = 64
_COUNTERS = ("outcome", "formats", "depths", "fields")


def write_index(
    path: str,
    shards: Iterable[Store],
    place: str,
    *,
    salt: int,
    classes: Sequence[str],
    source: Mapping[str, Any] | None,
    created: str | None,
) -> Manifest:
    """Write the index of some shards into a new file, and return the manifest of all of their records.

    Args:
        path: The file, which comes to its place when it is whole.
        shards: The shards, in order. Each is opened when it is taken.
        place: That of the sharded store, for messages.
        salt: Of the manifest.
        classes: Name of each label from 0 on.
        source: Where the records came from, for the manifest.
        created: UTC, ISO 8601; None for now.

    Raises:
        StoreError: A shard cannot be read, or the file not be written.
        FieldError: A label has no class.
    """
    file = PartialFile(path, resumable=False)
    file.lock()
    try:
        file.clear()
        file.open()
        try:
            manifest = _write(file, shards, place, salt, classes=classes, source=source, created=created)
            file.sync()
        finally:
            file.env.close()
        file.publish()
    except BaseException:
        file.remove()
        raise
    finally:
        file.unlock()
    return manifest


def _write(file: PartialFile, shards: Iterable[Store], place: str, salt: int, **facts: Any) -> Manifest:
    totals, summary, length = Totals(), Summary(), 0
    pending: list[tuple[bytes, bytes]] = []

    def put(txn: lmdb.Transaction) -> None:
        for key, value in pending:
            txn.put(key, value, db=file.meta)

    def add(key: bytes, value: bytes, most: int = _AT_ONCE * len(DTYPES)) -> None:
        pending.append((key, value))
        if len(pending) >= most:
            file.write(put)
            pending.clear()

    def pieces() -> Iterator[dict[str, Any]]:
        nonlocal length
        for shard in shards:
            with shard:
                for event in shard.events():
                    add(event_key(totals.events), seal(event, totals.events, salt))
                    totals.events += 1
                length += len(shard)
                for name in _COUNTERS:
                    getattr(totals, name).update(Counter(getattr(shard.manifest, name)))
                yield from _chunks(shard)

    for number, chunk in enumerate(_cut(pieces())):
        summary.add(chunk)
        for name, packed in chunk.items():
            add(column_key(name, number), seal_chunk(name, number, packed, salt))
    manifest = totals.manifest(place, length, summary, salt=salt, **facts)
    add(SHARD_INDEX, b"")
    add(MANIFEST, manifest.encode(), most=0)
    return manifest


def _chunks(shard: Store) -> Iterator[dict[str, Any]]:
    """Yield the columns of a shard, chunk by chunk: an array of each, and the names as a list."""
    handle = shard.open_handle()
    for number in range(-(-len(shard) // CHUNK)):
        values: dict[str, Any] = {
            name: np.frombuffer(handle.chunk(name, number), dtype) for name, dtype in DTYPES.items()
        }
        yield {**values, "name": names_in(handle.chunk("name", number))}


def _cut(pieces: Iterable[dict[str, Any]]) -> Iterator[dict[str, bytes]]:
    """Yield the packed columns of pieces of any lengths again, in chunks of CHUNK records."""
    held: dict[str, Any] = {**{name: np.empty(0, dtype) for name, dtype in DTYPES.items()}, "name": []}
    for piece in pieces:
        held = {
            name: part + piece[name] if name == "name" else np.concatenate((part, piece[name]))
            for name, part in held.items()
        }
        if len(held["name"]) >= CHUNK:
            yield _pack({name: part[:CHUNK] for name, part in held.items()})
            held = {name: part[CHUNK:] for name, part in held.items()}
    if held["name"]:
        yield _pack(held)


def _pack(chunk: dict[str, Any]) -> dict[str, bytes]:
    return {name: pack_names(part) if name == "name" else part.tobytes() for name, part in chunk.items()}
