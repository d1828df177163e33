"""The file of a cache: an LMDB file with some records of a store, filled by all processes of a machine.

Every reader and writer locks the file itself with flock(2). LMDB's own locks are off; see ``env``.
"""

from __future__ import annotations

import fcntl
import os
import stat
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lmdb

from dbloader.errors import NotAStoreError
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.keys import CACHE, META, RECORDS, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.errors import StoreError

# Address space, not memory or disk; the same in all processes, so that none must enlarge it.
_MAP_BYTES = 2**40
# Most that LMDB adds: a page and a half for each record, and for each commit the changed pages of its trees.
_BYTES_PER_RECORD = 2**13
_BYTES_PER_COMMIT = 2**17


class CacheFile:
    """A cache file that ``create_file`` has made, as one process has it open.

    If it is still empty, ``manifest`` is that of the store to be cached.
    """

    def __init__(self, path: str, manifest: Manifest, max_bytes: int | None) -> None:
        self._path = path
        self._max_bytes = _MAP_BYTES if max_bytes is None else max_bytes
        self._full = False
        self.shared = env.acquire(path, map_size=_MAP_BYTES)
        weakref.finalize(self, env.release, self.shared).atexit = False  # see LMDBHandle
        opened = self.shared.env
        with self.shared.locked(fcntl.LOCK_EX):
            with opened.begin() as txn:
                empty = not txn.stat()["entries"]
            if empty:
                with opened.begin(write=True) as txn:
                    opened.open_db(RECORDS, txn)
                    txn.put(CACHE, manifest.encode(), db=opened.open_db(META, txn))
            try:
                self.records = opened.open_db(RECORDS, create=False)
                with opened.begin(db=opened.open_db(META, create=False)) as txn:
                    data = txn.get(CACHE)
            except (lmdb.NotFoundError, lmdb.IncompatibleError):
                data = None
        if data is None:
            raise _not_a_cache(path)
        self.manifest = Manifest.decode(data, path)

    def documents(self, indices: Sequence[int]) -> dict[int, bytes]:
        """Return the documents that are in the cache, of the records at some indices."""
        found = {}
        try:
            with env.gate, self.shared.locked(fcntl.LOCK_SH), self.shared.env.begin(db=self.records) as txn:
                for index in indices:
                    document = txn.get(record_key(index))
                    if document is not None:
                        found[index] = document
        except lmdb.Error as error:
            raise translate_cache_error(error, self._path) from error
        return found

    def add(self, documents: dict[int, bytes]) -> None:
        """Add records, as long as they fit."""
        if self._full:
            return
        opened = self.shared.env
        try:
            with env.gate, self.shared.locked(fcntl.LOCK_EX), opened.begin(write=True, db=self.records) as txn:
                used = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"] + _BYTES_PER_COMMIT
                for index, document in documents.items():
                    used += len(document) + _BYTES_PER_RECORD
                    if used > self._max_bytes:
                        self._full = True
                        break
                    txn.put(record_key(index), document, overwrite=False)
        except (lmdb.Error, OSError) as error:
            # Training goes on from the origin; no record is lost.
            self._full = True
            warnings.warn(f"the cache {self._path} takes no more records: {error}", RuntimeWarning, stacklevel=2)


@contextmanager
def without_writers(path: str) -> Iterator[None]:
    """Lock a file against processes that fill a cache."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for a writer
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def create_file(path: str) -> None:
    """Make an LMDB file where there is none. The lock keeps a second process from undoing what the first wrote."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_cache(path)
        if not status.st_size:
            try:
                lmdb.open(path, subdir=False, lock=False).close()
            except BaseException:
                os.ftruncate(file, 0)  # half a header would be taken for a file of another kind
                raise
    finally:
        os.close(file)


def translate_cache_error(error: lmdb.Error, path: str) -> StoreError:
    """Return the error of dbloader for an error of LMDB about a cache."""
    if isinstance(error, (lmdb.InvalidError, lmdb.VersionMismatchError)):
        return _not_a_cache(path)
    return translate(error, f"the cache {path}", remedy="remove that file, and dbloader fills a new one")


def _not_a_cache(path: str) -> NotAStoreError:
    return NotAStoreError(f"{path} is not a cache: remove it, or name another file")
