"""The file that a store is written to, beside its place, until it is whole."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import lmdb

from dbloader.errors import DamagedStoreError, StoreAccessError, StoreError, StoreFullError, StoreLockedError
from dbloader.stores.lmdb.keys import NO_ROOM, PARTIAL
from dbloader.stores.lmdb.unsynced import Unsynced

# Bytes that must still fit for a disk not to be full: more than a block of any file system.
_PROBE = 2**20
_NO_RIGHT = ("Permission denied", "Read-only file system", "Operation not permitted")


class PartialFile:
    """``PLACE.partial``, which one process at a time has open and locked.

    Args:
        place: The store's place, as the user gave it.

    Attributes:
        target: Where the store will be: where a link at the place leads to.
        path: The file.
        unsynced: The mark beside the file while it is written without syncing.
        holds_nothing: Whether there is no commit in it.
        kept: Whether there is a commit in it that is left for a later writer.
        fd: The file, open to be written to, once ``lock`` has been called.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.target = Path(os.path.realpath(place))  # of links that lead in a circle, Path.resolve makes an error
        self.path = Path(f"{self.target}{PARTIAL}")
        self.unsynced = Unsynced(self.target)
        self.holds_nothing = False
        self.kept = False
        self.fd = -1

    def lock(self) -> None:
        """Open the file, which is made if it is not there, and locks it for this process.

        Raises:
            StoreLockedError: Another process has it.
            StoreAccessError: It may not be written.
            StoreFullError: There is no room for another file.
        """
        while True:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise self.refused(error) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(fd)
                raise StoreLockedError(f"another process is writing {self.place} now: wait for it or end it") from error
            except OSError as error:
                os.close(fd)
                raise self.refused(error) from error
            # Between opening and locking, another process may have finished and renamed the very file.
            if self.path.exists() and os.path.samestat(os.fstat(fd), self.path.stat()):
                self.fd = fd
                return
            os.close(fd)

    def unlock(self) -> None:
        """Let go of the file."""
        # Closing alone would not do: a process forked meanwhile, such as a DataLoader worker, has the file open too.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)

    def is_empty(self) -> bool:
        """Return whether the file is a new one."""
        return not self.path.stat().st_size

    def check_synced(self, *, begins: bool, durable: bool) -> None:
        """Refuse to go on with what a crash of the machine may have broken; notes if this writer does not sync.

        Raises:
            DamagedStoreError: The machine has been restarted since the file was written without syncing.
        """
        if begins:
            self.unsynced.clear()
        elif self.unsynced.may_be_broken():
            raise DamagedStoreError(
                f"the machine was restarted while the unfinished conversion at {self.place} was not synced, "
                "so it may not be whole: begin again with overwrite (--overwrite)",
            )
        if not durable:
            self.unsynced.set()

    def remove(self) -> None:
        """Remove the file, and the mark beside it."""
        self.path.unlink(missing_ok=True)
        self.unsynced.clear()

    def full(self) -> StoreFullError:
        """Return the error that says that no room is left."""
        kept = "free some space and resume (--resume)" if self.kept else "nothing was written"
        return StoreFullError(f"no room is left for {self.place}: {kept}")

    def refused(self, error: OSError) -> StoreError:
        """Return the error of ours that says what an error of the system means."""
        if error.errno in NO_ROOM:
            return StoreFullError(f"no room is left for {self.place}: {error.strerror}")
        return StoreAccessError(f"{self.place} cannot be written: {error.strerror}")

    def explained(self, error: lmdb.Error) -> StoreError:
        """Return the error of ours that says what an error of LMDB means for a writer."""
        text = str(error)
        # LMDB says "Input/output error" when the disk takes only a part of what it writes.
        if any(os.strerror(number) in text for number in NO_ROOM) or (
            os.strerror(errno.EIO) in text and self._is_full()
        ):
            return self.full()
        if any(reason in text for reason in _NO_RIGHT):
            return StoreAccessError(f"{self.place} cannot be written: {text}")
        if isinstance(error, (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)):
            return DamagedStoreError(f"{self.path} is damaged ({text}); begin again with overwrite (--overwrite)")
        return StoreError(f"{self.place} cannot be written: {text}")

    def _is_full(self) -> bool:
        """Return whether the file cannot grow, by trying: what is free says nothing where there are quotas."""
        size = os.fstat(self.fd).st_size
        try:
            return os.pwrite(self.fd, bytes(_PROBE), size) < _PROBE
        except OSError as error:
            return error.errno in NO_ROOM
        finally:
            os.ftruncate(self.fd, size)
