"""Write ``PLACE.partial``, the LMDB file of an unfinished store.

LMDB writes the file with pwrite(2), not through its memory map (MDB_WRITEMAP is off). So LMDB reports a full disk as an
error. Writing through the map could kill the process (SIGBUS).
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dbloader.errors import StoreAccessError, StoreFullError, StoreLockedError
from dbloader.stores.lmdb.env import check_size
from dbloader.stores.lmdb.errors import TOO_LARGE, translate, translate_refusal
from dbloader.stores.lmdb.keys import META, PARTIAL, RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.errors import StoreError

    Pair = tuple[bytes, bytes]

FIRST_MAP_BYTES = 2**26
"""Initial size of the memory map, which doubles when it is full. The map takes address space, not memory or disk."""

_BEGIN_AGAIN = "begin again with overwrite (--overwrite)"


class PartialFile:
    """The file ``PLACE.partial``, which only one process at a time can lock and open.

    Attributes:
        resumable: Whether the file's writer keeps committed records after an error.
        target: Path of the finished store. If ``place`` is a symbolic link, ``target`` is the link's target.
        committed: Whether the file may contain committed records.
        fd: File descriptor, open for writing after ``lock``.
        env: LMDB's environment after ``open``.
    """

    env: lmdb.Environment

    def __init__(self, place: str, *, resumable: bool = False) -> None:
        self.place = place
        self.resumable = resumable
        self.target = Path(os.path.realpath(place))  # Path.resolve raises an error for links in a circle
        self.path = Path(f"{self.target}{PARTIAL}")
        self.committed = True
        self.fd = -1
        self._map_bytes = 0

    def lock(self) -> None:
        """Create the file if needed, and lock it for this process, or raise StoreLockedError."""
        try:
            self.fd = open_locked(self.path, os.O_CREAT | os.O_NOFOLLOW, self.place)
        except StoreAccessError as error:
            if self.path.is_symlink():  # the link could lead to another user's file
                raise StoreAccessError(f"{self.path} is a symbolic link: remove it") from error
            if self.path.is_dir():
                raise StoreAccessError(
                    f"{self.path} is a folder, perhaps of an unfinished conversion in parts: finish the conversion "
                    f"(dbloader parts {self.place} lists the missing parts, dbloader publish joins all parts), or "
                    "remove the folder"
                ) from error
            raise
        self.committed = os.fstat(self.fd).st_size > 0

    def unlock(self) -> None:
        """Unlock and close the file."""
        close_locked(self.fd)

    def clear(self) -> None:
        """Empty the file."""
        os.ftruncate(self.fd, 0)
        self.committed = False

    def open(self) -> None:
        """Open the LMDB environment and its two sub-databases."""
        size = os.fstat(self.fd).st_size
        self._map_bytes = max(FIRST_MAP_BYTES, size)
        try:
            self.env = lmdb.open(
                str(self.path),
                subdir=False,
                lock=False,  # `lock` has already locked the file
                map_size=self._map_bytes,
                max_dbs=2,
                metasync=False,  # if the machine crashes, at most the last commit is lost
            )
            with ExitStack() as undo:
                undo.callback(self.env.close)
                if size:
                    check_size(self.env, size, str(self.path), _BEGIN_AGAIN)
                self.records, self.meta = self.env.open_db(RECORDS), self.env.open_db(META)
                undo.pop_all()
        except lmdb.Error as error:
            raise self._translate(error) from error

    def get(self, key: bytes) -> bytes | None:
        """Return a value from the sub-database ``meta``."""
        try:
            with self.env.begin(db=self.meta) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise self._translate(error) from error

    def write(self, meta: Sequence[Pair], records: Sequence[Pair] = ()) -> None:
        """Store keys and values in the two sub-databases, and commit. The keys of records must ascend."""
        try:
            while True:
                try:
                    with self.env.begin(write=True) as txn:
                        for key, value in records:
                            txn.put(key, value, append=True, db=self.records)
                        for key, value in meta:
                            txn.put(key, value, db=self.meta)
                except lmdb.MapFullError:
                    self._map_bytes *= 2
                    self.env.set_mapsize(self._map_bytes)
                else:
                    return
        except lmdb.Error as error:
            raise self._translate(error) from error

    def sync(self) -> None:
        """Wait until the file is on the disk, and close the environment."""
        try:
            self.env.sync(True)
        except lmdb.Error as error:
            raise self._translate(error) from error
        self.env.close()

    def publish(self) -> None:
        """Rename the file to the target, and wait until the new name is on the disk."""
        try:
            self.path.replace(self.target)
        except OSError as error:
            raise translate_refusal(error, self.place) from error
        with suppress(OSError):  # the store is already published; some folders cannot be opened or synced
            sync_folder(self.target.parent)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _translate(self, error: lmdb.Error) -> StoreError:
        found = translate(error, str(self.path), use="written", remedy=_BEGIN_AGAIN)
        # LMDB reports EIO when the disk has room for only a part of a write.
        may_fail = os.strerror(errno.EIO) in str(error)
        if may_fail or isinstance(found, StoreFullError):
            what = f"no room is left for {self.place}{', or its disk fails' * may_fail}: free some space"
            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            if os.strerror(errno.EFBIG) in str(error) or 0 <= limit <= os.fstat(self.fd).st_size:
                what = f"{self.place} would become {TOO_LARGE}"
            return StoreFullError(what + (", then resume (--resume)" if self.resumable and self.committed else ""))
        return found


def open_locked(path: Path, flags: int, place: str, doing: str = "writing") -> int:
    """Open a file for writing, lock the file for this process, and return its descriptor.

    ``flags`` are further flags for os.open. ``place`` and ``doing`` (what the lock is for) appear in the message of
    StoreLockedError.

    Raises:
        StoreLockedError: Another process has locked the file.
        StoreAccessError: The file cannot be opened, or its file system does not support locks.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666)
        except OSError as error:
            raise translate_refusal(error, str(path)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock, another process may have renamed or replaced the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise StoreLockedError(f"another process is {doing} {place} now: wait for it or end it") from error
        except OSError as error:
            os.close(descriptor)
            raise StoreAccessError(
                f"{place} cannot be written: {error.strerror}; its file system must support locks (flock)"
            ) from error
        os.close(descriptor)


def close_locked(descriptor: int) -> None:
    """Unlock and close a file that ``open_locked`` has opened."""
    # Closing alone would not unlock the file while a forked process, such as a DataLoader worker, keeps it open.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def remove_report(path: Path) -> None:
    """Remove the report of a store that is about to be replaced, and wait until the removal is on the disk.

    Otherwise a power loss after the replacement could leave the old report beside the new store.
    """
    with suppress(OSError):  # if removing fails, the new report still replaces the old report
        path.unlink()
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
