"""The file of a cache: an LMDB file with some of a store's records, which all processes of a machine fill.

Whoever reads or writes locks the file itself, by ``flock``, for that long. LMDB's own locks are off: they are in a
second file that is found by its name, and would lock nothing for one who has removed and made the first anew.
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

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreFullError
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.keys import CACHE, META, NO_ROOM, RECORDS, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Of address space, not of memory or disk; the same for all processes, so that none has to make it larger.
_MAP_SIZE = 2**40
# What LMDB needs at worst: a page and a half beside each record, and for each commit the paths through its trees.
_BESIDE_A_RECORD = 2**13
_BESIDE_A_COMMIT = 2**17


class CacheFile:
    """A file that is being filled, as one process has it open.

    Args:
        path: The file, which ``begin`` has made.
        shown: How messages name it.
        manifest: Of the store whose records it is to have, if it has none yet.
        max_bytes: Largest size of the file; None for any.

    Attributes:
        manifest: Of the store whose records it has.

    Raises:
        NotAStoreError: It is something else than a cache.
    """

    def __init__(self, path: str, shown: str, manifest: Manifest, max_bytes: int | None) -> None:
        self._shown = shown
        self._max_bytes = _MAP_SIZE if max_bytes is None else max_bytes
        self._full = False
        self._shared = env.acquire(path, map_size=_MAP_SIZE)
        weakref.finalize(self, env.release, self._shared).atexit = False  # as the Handle of a store
        opened = self._shared.env
        with self._shared.held(fcntl.LOCK_EX):
            with opened.begin() as txn:
                begun = txn.stat()["entries"] > 0
            if not begun:
                with opened.begin(write=True) as txn:
                    opened.open_db(RECORDS, txn)
                    txn.put(CACHE, manifest.encode(), db=opened.open_db(META, txn))
            try:
                self._records = opened.open_db(RECORDS, create=False)
                with opened.begin(db=opened.open_db(META, create=False)) as txn:
                    data = txn.get(CACHE)
            except (lmdb.NotFoundError, lmdb.IncompatibleError):
                data = None
        if data is None:
            raise something_else(shown)
        self.manifest = Manifest.decode(data, shown)

    def documents(self, indices: Sequence[int]) -> dict[int, bytes]:
        """Return those of some records that are there."""
        found = {}
        try:
            with env.gate, self._shared.held(fcntl.LOCK_SH), self._shared.env.begin(db=self._records) as txn:
                for index in indices:
                    document = txn.get(record_key(index))
                    if document is not None:
                        found[index] = document
        except lmdb.Error as error:
            raise explained(error, self._shown) from error
        return found

    def keep(self, documents: dict[int, bytes]) -> None:
        """Keep records, unless there is no room for them."""
        if self._full:
            return
        opened = self._shared.env
        try:
            with (
                env.gate,
                self._shared.held(fcntl.LOCK_EX),
                opened.begin(write=True, db=self._records) as txn,
            ):
                used = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"] + _BESIDE_A_COMMIT
                for index, document in documents.items():
                    used += len(document) + _BESIDE_A_RECORD
                    if used > self._max_bytes:
                        self._full = True
                        break
                    txn.put(record_key(index), document, overwrite=False)
        except (lmdb.Error, OSError) as error:
            # Training goes on from the server; no record is lost by it.
            self._full = True
            warnings.warn(f"the cache {self._shown} takes no more records: {error}", RuntimeWarning, stacklevel=2)


@contextmanager
def without_writers(path: str) -> Iterator[None]:
    """Keep those out who fill a cache."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def begin(path: str, shown: str) -> None:
    """Make an LMDB file where there is none; two processes that did so at once would undo what the first one wrote."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise something_else(shown)
        if not status.st_size:
            try:
                lmdb.open(path, subdir=False, lock=False).close()
            except BaseException:
                os.ftruncate(file, 0)  # half a header would be taken for something else
                raise
    finally:
        os.close(file)


def something_else(shown: str) -> NotAStoreError:
    """Return the error of a file that is not a cache."""
    return NotAStoreError(f"{shown} is something else than a cache: remove it, or name another file")


def explained(error: lmdb.Error, shown: str) -> Exception:
    """Return the error of ours that says what an error of LMDB means for a cache."""
    text = str(error)
    if isinstance(error, (lmdb.InvalidError, lmdb.VersionMismatchError)):
        return something_else(shown)
    if any(os.strerror(number) in text for number in NO_ROOM):
        return StoreFullError(f"no room is left for the cache {shown}: {text}")
    return DamagedStoreError(f"the cache {shown} cannot be used: {text}; remove that file, and it is filled anew")
