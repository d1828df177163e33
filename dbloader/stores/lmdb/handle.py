"""What one process opens of a store in an LMDB file."""

from __future__ import annotations

import os
import stat
import weakref

import lmdb

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreAccessError, StoreError
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.keys import CACHE, MANIFEST, META, RECORDS


class LMDBHandle:
    """What one process opens: the environment it shares with other stores, the sub-databases, the manifest."""

    def __init__(self, path: str, place: str) -> None:
        status = os.stat(path)  # noqa: PTH116 - two numbers are all that is wanted of it
        if stat.S_ISDIR(status.st_mode):
            raise NotAStoreError(f"{place} is a folder; a store is one file (dbloader convert makes one of a folder)")
        if not stat.S_ISREG(status.st_mode):
            raise NotAStoreError(f"{place} is not an ordinary file, so not a dbloader store")
        if not status.st_size:
            raise NotAStoreError(f"{place} is empty, so not a dbloader store")
        self.shared = env.acquire(path)
        # No __del__: at the end of the interpreter it would run when the modules are gone.
        release = weakref.finalize(self, env.release, self.shared)
        release.atexit = False
        try:
            self._look(status.st_size, place)
        except BaseException:
            release()  # now: code that keeps the error would else keep the file open
            raise

    def _look(self, size: int, place: str) -> None:
        env = self.env = self.shared.env
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if size < used:
            raise DamagedStoreError(
                f"{place} is cut short: it has {size} bytes of {used}; copy it again from where it is whole",
            )
        try:
            self.records = env.open_db(RECORDS, create=False)
            self.meta = env.open_db(META, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise NotAStoreError(f"{place} is an LMDB file, but not a dbloader store") from error
        with env.begin() as txn:
            data = txn.get(MANIFEST, db=self.meta)
            cached = txn.get(CACHE, db=self.meta) is not None
        if cached:
            raise NotAStoreError(
                f"{place} is not a whole store, but a cache of one in MongoDB, for MongoDataset(..., cache=...)",
            )
        if data is None:
            raise NotAStoreError(
                f"{place} is not a finished store: its conversion was interrupted "
                "(dbloader convert with --resume goes on with it)",
            )
        self.manifest = Manifest.decode(data, place)


def explained(error: lmdb.Error, place: str) -> Exception:
    """Return the error of ours that says what an error of LMDB means for a reader."""
    if isinstance(error, lmdb.InvalidError):
        return NotAStoreError(f"{place} is not an LMDB file, so not a dbloader store")
    if isinstance(error, lmdb.VersionMismatchError):
        return NotAStoreError(f"{place} is an LMDB file of another version of LMDB: {error}")
    text = str(error)
    if "Permission denied" in text:
        return StoreAccessError(f"{place} may not be read: {text}")
    if type(error) in (lmdb.Error, lmdb.MemoryError):
        # Too many open files, no address space, open already through lmdb itself: the store may well be whole.
        return StoreError(f"{place} cannot be read: {text}")
    return DamagedStoreError(f"{place} cannot be read: {text}")
