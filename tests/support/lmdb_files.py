"""LMDB files below dbloader's interface: looking into them, changing them, and who may use them."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import lmdb

from dbloader import create_store, open_store
from dbloader.records.columns import seal_chunk, unseal_chunk
from dbloader.records.document import open_sealed, seal
from dbloader.records.record import encode
from dbloader.stores.lmdb.keys import RECORDS, column_key, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dbloader import Record

NOBODY = 65534
ONE_ENVIRONMENT = 2  # descriptors: LMDB's, and that of the readahead


def write(place: str | Path, records: list[Record], **options: bool) -> None:
    """Make a store of records."""
    with create_store(place, **options) as writer:
        writer.write(encode(record) for record in records)
        writer.finish()


def check(place: Path, records: list[Record]) -> None:
    """Read a whole store, and compare it with what was written."""
    with open_store(place) as store:
        assert store.documents(range(len(store))) == [encode(r).document(i) for i, r in enumerate(records)]
        assert store.verify() == store.manifest.digest


def tamper(place: str | Path, database: bytes, changes: dict[bytes, bytes | None]) -> None:
    """Put other values at some keys of a store, or remove them."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, sync=False) as env:
        there = env.open_db(database)
        with env.begin(write=True) as txn:
            for key, value in changes.items():
                if value is None:
                    assert txn.delete(key, db=there)
                else:
                    txn.put(key, value, db=there)


def tamper_with_records(place: str | Path, documents: dict[int, bytes | None]) -> None:
    """Put other documents at some indices, or remove them."""
    tamper(place, RECORDS, {record_key(index): document for index, document in documents.items()})


def value_at(place: str | Path, database: bytes, key: bytes) -> bytes:
    """Return the value at a key."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, readonly=True) as env:
        there = env.open_db(database, create=False)
        with env.begin() as txn:
            value = txn.get(key, db=there)
    assert value is not None
    return bytes(value)


def change_manifest(place: Path, **changes: object) -> None:
    """Give a store another manifest, with the right CRC-32."""
    manifest = open_sealed(value_at(place, b"meta", b"manifest"))
    tamper(place, b"meta", {b"manifest": seal({**manifest, **changes})})


def put_chunk(place: Path, column: str, number: int, chunk: bytes) -> None:
    """Give a store another chunk of a column, with the right CRC-32."""
    tamper(place, b"meta", {column_key(column, number): seal_chunk(column, number, chunk)})


def chunk_at(place: Path, column: str, number: int) -> bytes:
    """Return a chunk of a column."""
    chunk = unseal_chunk(column, number, value_at(place, b"meta", column_key(column, number)))
    assert chunk is not None
    return bytes(chunk)


def open_descriptors(path: str | Path) -> int:
    """Count how often this process has a file open."""
    target = os.path.realpath(path)
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        with suppress(OSError):  # the one of the listing
            count += os.readlink(f"/proc/self/fd/{descriptor}") == target  # noqa: PTH115
    return count


@contextmanager
def as_nobody() -> Iterator[None]:
    """Take away root's right to read and write everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def fill_disk(folder: Path, block: int = 4096) -> Any:
    """Fill a file system, and return the file that does."""
    other = folder / "other"
    with suppress(OSError), open(other, "wb", buffering=0) as file:  # noqa: PTH123
        while file.write(bytes(block)):
            pass
    return other
