"""The open handle of an LMDB store.

``LMDBStore.open_handle`` makes it at the first use of the store in each process. A forked child does not use the handle
that it inherited: its first use makes a new one, and env.py closes the inherited environment before that.
"""

from __future__ import annotations

import os
import stat
import weakref
from typing import TYPE_CHECKING, Any

import lmdb

from dbloader.errors import DamagedStoreError, NotAStoreError
from dbloader.records.columns import CHUNK, whole_chunk
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.keys import CACHE, MANIFEST, META, RECORDS, SHARD_INDEX, column_key, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Files that have what a store has, and are none.
_PARTS = {
    CACHE: "a cache of one in MongoDB that an earlier version made: remove it",
    SHARD_INDEX: "the index of one in several files: give the folder that it is in",
}


class OtherStoreError(Exception):
    """A store has another digest than the one asked for."""


_CHUNKS_KEPT = 256  # in the memory of this process; those of names are 40 MB


class LMDBHandle:
    """An open store: the environment, shared with other stores on the file, its sub-databases and the manifest.

    Args:
        path: The file.
        place: The file in messages.
        digest: The digest that it must have, else OtherStoreError; None for any.
        index_of: The manifest of the sharded store whose index it must be, else OtherStoreError; None for a store.
    """

    def __init__(self, path: str, place: str, *, digest: str | None = None, index_of: Manifest | None = None) -> None:
        self.place = place
        self._chunks_read = 0
        # Transactions stay open, for a store does not change: a new one costs as much as reading a record.
        self._idle: list[lmdb.Transaction] = []
        status = os.stat(path)  # noqa: PTH116 - the path may be any str
        if stat.S_ISDIR(status.st_mode):
            raise NotAStoreError(f"{place} is a folder, where a file was")
        if not stat.S_ISREG(status.st_mode):
            raise NotAStoreError(f"{place} is not an ordinary file, so not a dbloader store")
        if not status.st_size:
            raise NotAStoreError(f"{place} is empty, so not a dbloader store")
        self.shared = env.acquire(path)
        # Not __del__: at interpreter exit it would run after the modules are gone.
        release = weakref.finalize(self, env.release, self.shared)
        release.atexit = False
        try:
            self._read_header(status.st_size, digest, index_of)
        except BaseException:
            release()  # now: a caller that keeps the error would keep the file open
            raise

    def _read_header(self, size: int, digest: str | None, index_of: Manifest | None) -> None:
        opened, place = self.shared.env, self.place
        used = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
        if size < used:
            raise DamagedStoreError(
                f"{place} is cut short: it has {size} bytes of {used}; copy it again from the original"
            )
        try:
            self.records = opened.open_db(RECORDS, create=False)
            self.meta = opened.open_db(META, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise NotAStoreError(
                f"{place} is an LMDB file, but not a dbloader store; if another program stored images in it, "
                f"dbloader convert {place} NEW.lmdb makes a store of them"
            ) from error
        with opened.begin() as txn:
            data = txn.get(MANIFEST, db=self.meta)
            found = [key for key in _PARTS if txn.get(key, db=self.meta) is not None]
        if found and not (found == [SHARD_INDEX] and index_of):
            raise NotAStoreError(f"{place} is not a whole store, but {_PARTS[found[0]]}")
        if data is None:
            raise NotAStoreError(
                f"{place} is not a finished store: its conversion was interrupted "
                "(dbloader convert with --resume goes on with it)"
            )
        self.manifest = Manifest.decode(data, place)
        if digest not in (None, self.manifest.digest):
            raise OtherStoreError
        if index_of and (index_of.digest, index_of.salt) != (self.manifest.digest, self.manifest.salt):
            raise OtherStoreError

    @property
    def pid(self) -> int:
        """The process that opened it."""
        return self.shared.pid

    @property
    def files(self) -> list[str]:
        """The paths of the store's files."""
        return [self.place]

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the kernel to read the records at some indices, without waiting."""
        self.shared.ahead.prefetch(indices)

    def release_pages(self) -> None:
        """Take what was read through the map out of this process's memory; it stays in the page cache."""
        self.shared.release_pages()

    def look_up(self, indices: Sequence[int]) -> Iterator[memoryview | None]:
        """Yield the documents of records, views into the map that are valid while this object is; None if missing."""
        try:
            txn = self._idle.pop()  # now no other thread has it
        except IndexError:
            txn = self.begin()
        get, records, usable = txn.get, self.records, True
        try:
            for index in indices:
                document: Any = get(record_key(index), None, records)
                yield document
        except lmdb.Error as error:
            usable = False  # LMDB does not go on with it after an error
            raise translate(error, self.place) from error
        finally:
            if usable:
                self._idle.append(txn)

    def begin(self) -> lmdb.Transaction:
        """Begin a transaction whose values are views into the map, valid until it ends."""
        try:
            return self.shared.env.begin(buffers=True)
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    def get(self, key: bytes) -> bytes | None:
        """Return a value of the sub-database ``meta``."""
        try:
            with env.gate, self.shared.env.begin(db=self.meta) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column."""
        self._chunks_read += 1
        if not self._chunks_read % _CHUNKS_KEPT:
            # Read through the map, the columns of ten million records would stay in this process's memory: 580 MB.
            self.shared.release_pages()
        stored = self.get(column_key(column, number))
        chunk = whole_chunk(column, number, stored, self.manifest.length, self.manifest.salt)
        if chunk is None:
            raise DamagedStoreError(
                f"{self.place}: chunk {number} of its column {column} is missing or damaged; "
                "copy it again from the original"
            )
        return chunk

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Their number is checked before anyone allocates memory for the records."""
        count = -(-self.manifest.length // CHUNK)
        with env.gate, self.begin() as txn:
            there = txn.stat(self.meta)["entries"]
        if count > there:
            raise DamagedStoreError(
                f"{self.place}: its manifest says {self.manifest.length:,} records, but the chunks of its column "
                f"{column} are missing; copy it again from the original"
            )
        return (self.chunk(column, number) for number in range(count))
