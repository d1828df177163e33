"""Read and change LMDB files directly, count their descriptors, and fill a disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from dbloader.records.columns import seal_chunk, unseal_chunk
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.keys import RECORDS, column_key, record_key

ONE_ENVIRONMENT = 2  # two descriptors: one of LMDB, one of the readahead


def tamper(place: str | Path, database: bytes, changes: dict[bytes, bytes | None]) -> None:
    """Replace the values of some keys. None removes a key."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, sync=False) as env:
        there = env.open_db(database)
        with env.begin(write=True) as txn:
            for key, value in changes.items():
                if value is None:
                    assert txn.delete(key, db=there)
                else:
                    txn.put(key, value, db=there)


def tamper_with_records(place: str | Path, documents: dict[int, bytes | None]) -> None:
    """Replace the documents at some indices. None removes a record."""
    tamper(place, RECORDS, {record_key(index): document for index, document in documents.items()})


def value_at(place: str | Path, database: bytes, key: bytes) -> bytes:
    """Return the value at a key."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, readonly=True) as env:
        there = env.open_db(database, create=False)
        with env.begin() as txn:
            value = txn.get(key, db=there)
    assert value is not None
    return bytes(value)


def content_of(place: Path) -> dict[bytes, dict[bytes, bytes]]:
    """Return the keys and values of each sub-database."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, readonly=True) as env, env.begin() as txn:
        databases = {bytes(name): env.open_db(bytes(name), txn=txn, create=False) for name, _ in txn.cursor()}
        return {
            name: {bytes(key): bytes(value) for key, value in txn.cursor(db=database)}
            for name, database in databases.items()
        }


def change_manifest(place: Path, **changes: object) -> None:
    """Change values in the manifest, and correct its CRC-32."""
    manifest = open_sealed(value_at(place, b"meta", b"manifest"))
    tamper(place, b"meta", {b"manifest": seal({**manifest, **changes})})


def put_chunk(place: Path, column: str, number: int, chunk: bytes) -> None:
    """Replace a chunk of a column, and correct its CRC-32."""
    sealed = seal_chunk(column, number, chunk, salt_at(place))
    tamper(place, b"meta", {column_key(column, number): sealed})


def chunk_at(place: Path, column: str, number: int) -> bytes:
    """Return a chunk of a column."""
    chunk = unseal_chunk(column, number, value_at(place, b"meta", column_key(column, number)), salt_at(place))
    assert chunk is not None
    return bytes(chunk)


def salt_at(place: Path) -> int:
    """Return the salt in the manifest."""
    return int(open_sealed(value_at(place, b"meta", b"manifest"))["salt"])


def open_descriptors(path: str | Path) -> int:
    """Count how often this process has a file open."""
    target = os.path.realpath(path)
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        with suppress(OSError):  # the descriptor of the listing
            count += os.readlink(f"/proc/self/fd/{descriptor}") == target  # noqa: PTH115
    return count


def fill_disk(folder: Path, block: int = 4096) -> Any:
    """Fill a file system, and return the file that fills it."""
    other = folder / "other"
    with suppress(OSError), open(other, "wb", buffering=0) as file:  # noqa: PTH123
        while file.write(bytes(block)):
            pass
    return other
