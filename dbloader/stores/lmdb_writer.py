"""Writing a store in one LMDB file: aside, in ``PLACE.partial``, and renamed when it is whole."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import lmdb
import numpy as np
from typing_extensions import override

from dbloader.columns import CHUNK, COLUMNS, DTYPES, is_whole
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreLockedError,
    StoreVersionError,
)
from dbloader.stores import name_index
from dbloader.stores.growing import GrowingFile
from dbloader.stores.lmdb import (
    MANIFEST,
    META,
    NO_ROOM,
    PARTIAL,
    PROGRESS,
    RECORDS,
    LMDBStore,
    bucket_key,
    checked_path,
    column_key,
    event_key,
    record_key,
)
from dbloader.stores.unsynced import Unsynced, boot_id, sync_folder
from dbloader.stores.writer import COMMIT_BYTES, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dbloader.manifest import Manifest

# Bytes that must still fit for a disk not to be full: more than a block of any file system.
_PROBE = 2**20
_NO_RIGHT = ("Permission denied", "Read-only file system", "Operation not permitted")


class LMDBWriter(Writer):
    """A store that is being written to one LMDB file; see Writer.

    Args:
        place: Path of the file; ``PLACE.partial`` beside it holds the store until it is finished.
        overwrite: See Writer; a file that is something else than a dbloader store is not replaced.
        resume: See Writer.
        resumable: See Writer.
        durable: See Writer.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        resumable: bool = False,
        durable: bool = True,
    ) -> None:
        super().__init__(checked_path(place), overwrite=overwrite, resume=resume, resumable=resumable, durable=durable)
        self._target = Path(self.place).absolute()
        self._partial = Path(f"{self._target}{PARTIAL}")
        self._unsynced = Unsynced(self._target)
        self.durable = durable or not boot_id()  # where a crash could not be told from a kill, nothing is left to it
        self.scratch = self._target.parent
        self._committed = False
        self._published = False

    @override
    def _open(self) -> None:
        self._check_target()
        self._lock = self._locked()
        begins = False
        try:
            begins = self._begins()
            self._check_synced(begins=begins)
            self._open_partial()
        except BaseException as error:
            if begins:
                self._remove_partial()
            _unlock(self._lock)
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise self._refused(error) from error
            raise

    @override
    def _close(self) -> None:
        if not self._published:
            self._file.close()
            if not (self.resumable and self._committed):
                self._remove_partial()
        _unlock(self._lock)

    def _remove_partial(self) -> None:
        self._partial.unlink(missing_ok=True)
        self._unsynced.clear()

    def _check_target(self) -> None:
        """Refuses a place that may not become a new store."""
        try:
            if not self._target.parent.is_dir():
                raise StoreAccessError(
                    f"{self.place} cannot be written: the folder {self._target.parent} does not exist"
                )
            if self._target.is_dir():
                raise StoreExistsError(
                    f"{self.place} is a folder; a store is one file: name one, such as {self.place}.lmdb"
                )
            if not (self.resume and self._partial.exists()):
                self._check_replaceable()
        except StoreError:
            raise
        except PermissionError as error:
            raise StoreAccessError(f"{self.place} cannot be written: {error.strerror or error}") from error

    def _check_replaceable(self) -> None:
        """Refuses to replace what is at the place, unless it is to be overwritten and is a store."""
        if not self._target.exists():
            return
        if not self.overwrite and self.resumed:
            raise StoreExistsError(f"{self.place} has been made by somebody else meanwhile; move it away and resume")
        if not self.overwrite and self.resume:
            raise StoreExistsError(f"{self.place} is finished already: there is nothing to resume")
        if not self.overwrite:
            raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")
        try:
            with LMDBStore(self.place) as store:
                len(store)
        except NotAStoreError as error:
            raise StoreExistsError(f"{self.place} is not a dbloader store and will not be overwritten") from error
        except (DamagedStoreError, StoreVersionError):
            pass  # it may be replaced; what cannot even be looked at may not

    def _locked(self) -> int:
        """Opens the partial file and locks it for this process."""
        while True:
            try:
                lock = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise self._refused(error) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                raise StoreLockedError(f"another process is writing {self.place} now: wait for it or end it") from error
            except OSError as error:
                os.close(lock)
                raise self._refused(error) from error
            # Between opening and locking, another process may have finished and renamed the very file.
            if self._partial.exists() and os.path.samestat(os.fstat(lock), self._partial.stat()):
                return lock
            os.close(lock)

    def _begins(self) -> bool:
        """Says whether the partial file is a new one, or emptied to begin anew."""
        begins = not self._partial.stat().st_size
        if not begins and not self.resume:
            if not self.overwrite:
                raise StoreExistsError(
                    f"an unfinished conversion is at {self.place}: resume (--resume) goes on with it, "
                    "overwrite (--overwrite) begins anew",
                )
            os.ftruncate(self._lock, 0)
            begins = True
        return begins

    def _check_synced(self, *, begins: bool) -> None:
        """Refuses to go on with what a crash of the machine may have broken; notes if this writer does not sync."""
        if begins:
            self._unsynced.clear()
        elif self._unsynced.may_be_broken():
            raise DamagedStoreError(
                f"the machine was restarted while the unfinished conversion at {self.place} was not synced, "
                "so it may not be whole: begin anew with overwrite (--overwrite)",
            )
        if not self.durable:
            self._unsynced.set()

    def _open_partial(self) -> None:
        try:
            self._file = GrowingFile(str(self._partial), self._lock, sync=self.durable)
            self._env = self._file.env
            try:
                if self.durable and self._unsynced.is_set():  # by the writer before
                    self._env.sync(True)
                    self._unsynced.clear()
                self._records, self._meta = self._env.open_db(RECORDS), self._env.open_db(META)
                self._take_up()
            except BaseException:
                self._file.close()
                raise
        except lmdb.Error as error:
            raise self._explained(error) from error

    def _take_up(self) -> None:
        """Goes on from the last commit, if there is one."""
        with self._env.begin() as txn:
            data = txn.get(PROGRESS, db=self._meta)
        if data is not None:
            self._committed = True
            self._restore(bson.decode(data))
        self._check_replaceable()  # again: now it is known whether the conversion that is resumed may overwrite

    @override
    def _store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        events: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        meta: list[tuple[bytes, bytes]] = [
            (column_key(name, number), packed) for number, chunk in chunks.items() for name, packed in chunk.items()
        ]
        first_event = progress["events"] - len(events)
        meta += [(event_key(first_event + number), bson.encode(event)) for number, event in enumerate(events)]
        meta.append((PROGRESS, bson.encode(progress)))
        self._put(documents, first, meta)
        self._committed = True

    def _put(self, documents: Sequence[bytes], first: int, meta: Sequence[tuple[bytes, bytes]]) -> None:
        """Stores all in one transaction, in a larger map when this one is full."""
        try:
            self._file.make_room(itertools.chain(documents, (value for _, value in meta)))
            self._put_all(documents, first, meta)
        except lmdb.Error as error:
            raise self._explained(error) from error
        except OSError as error:
            raise self._full() if error.errno in NO_ROOM else self._refused(error) from error

    def _put_all(self, documents: Sequence[bytes], first: int, meta: Sequence[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for index, document in enumerate(documents, first):
                        txn.put(record_key(index), document, append=True, db=self._records)
                    for key, value in meta:
                        txn.put(key, value, db=self._meta)
            except lmdb.MapFullError:
                self._file.grow()
            else:
                return

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        with self._env.begin() as txn:
            values = {name: txn.get(column_key(name, number), db=self._meta) for name in COLUMNS}
        for name, value in values.items():
            if value is None or not is_whole(name, value, min(CHUNK, self.length - number * CHUNK)):
                raise DamagedStoreError(
                    f"{self._partial}: its column {name} is damaged; begin anew with overwrite (--overwrite)",
                )
        return values  # type: ignore[return-value]  # none is None, and without buffers=True they are bytes

    @override
    def _publish(self, manifest: Manifest) -> None:
        buckets: list[tuple[bytes, bytes]] = []
        for number, bucket in name_index.build(self._name_hashes, manifest.named):
            buckets.append((bucket_key(number), bucket))
            if len(buckets) * len(bucket) >= COMMIT_BYTES:
                self._put((), 0, buckets)
                buckets = []
        self._put((), 0, buckets)
        self._put((), 0, [(MANIFEST, manifest.encode())])
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise self._explained(error) from error
        self._file.close()
        self._check_replaceable()
        try:
            self._partial.replace(self._target)
        except OSError as error:
            raise self._refused(error) from error
        self._published = True
        self._unsynced.clear()
        with suppress(OSError):  # the store is whole and in place; not every folder can be opened, or synced
            sync_folder(self._target.parent)

    def _name_hashes(self) -> Iterable[np.ndarray[Any, Any]]:
        for number in range(-(-self.length // CHUNK)):
            yield np.frombuffer(self._stored_chunk(number)["name_hash"], DTYPES["name_hash"])

    def _is_full(self) -> bool:
        """Tells whether the partial file cannot grow, by trying: what is free says nothing where there are quotas."""
        size = os.fstat(self._lock).st_size
        try:
            return os.pwrite(self._lock, bytes(_PROBE), size) < _PROBE
        except OSError as error:
            return error.errno in NO_ROOM
        finally:
            os.ftruncate(self._lock, size)

    def _full(self) -> Exception:
        kept = "free some space and resume (--resume)" if self.resumable else "nothing was written"
        return StoreFullError(f"no room is left for {self.place}: {kept}")

    def _refused(self, error: OSError) -> Exception:
        if error.errno in NO_ROOM:
            return StoreFullError(f"no room is left for {self.place}: {error.strerror}")
        return StoreAccessError(f"{self.place} cannot be written: {error.strerror}")

    def _explained(self, error: lmdb.Error) -> Exception:
        text = str(error)
        # LMDB says "Input/output error" when the disk takes only a part of what it writes.
        if any(os.strerror(number) in text for number in NO_ROOM) or (
            os.strerror(errno.EIO) in text and self._is_full()
        ):
            return self._full()
        if any(reason in text for reason in _NO_RIGHT):
            return StoreAccessError(f"{self.place} cannot be written: {text}")
        if isinstance(error, (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)):
            return DamagedStoreError(f"{self._partial} is damaged ({text}); begin anew with overwrite (--overwrite)")
        return StoreError(f"{self.place} cannot be written: {text}")


def _unlock(lock: int) -> None:
    # Closing alone would not do: a process forked meanwhile, such as a DataLoader worker, has the file open too.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
