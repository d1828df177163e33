"""A store elsewhere whose records are kept on this machine as they are read."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb
from typing_extensions import override

from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    NotAStoreError,
    OptionError,
    StoreAccessError,
    StoreFullError,
)
from dbloader.manifest import Manifest
from dbloader.records import decode
from dbloader.stores import environments
from dbloader.stores.base import Store
from dbloader.stores.lmdb import META, MIRROR, NO_ROOM, RECORDS, LMDBStore, checked_path, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from dbloader.columns import Names
    from dbloader.records import Record

# Of address space, not of memory or disk; the same for all processes, so that none has to make it larger.
_MAP_SIZE = 2**40
# What LMDB needs at worst: a page and a half beside each record, and for each commit the paths through its trees.
_BESIDE_A_RECORD = 2**13
_BESIDE_A_COMMIT = 2**17

# One thread at a time looks what a file is: it is opened as a store for that, and cannot be opened twice.
_looking = threading.Lock()


class MirroredStore(Store):
    """A store of which each record is read from its origin once, and from then on from a file on this machine.

    All processes of the machine may share the file: whoever reads or writes locks it for that long. Records are checked
    before they are kept and whenever they are read. Where the file is a whole store with the same records, such as
    ``dbloader mirror`` makes, nothing is written, and the origin is asked for nothing but its manifest, once.

    The file must be on a disk of this machine. Over NFS, processes of two machines would not see the same file.

    Args:
        origin: The store.
        path: The file; it is made where there is none.
        max_bytes: Largest size of the file in bytes; records that no longer fit are read from the origin every time.

    Raises:
        PlaceError: The path is none.
        OptionError: ``max_bytes`` is less than 1.
    """

    def __init__(self, origin: Store, path: str | os.PathLike[str], *, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise OptionError(f"max_bytes must be at least 1, got {max_bytes}")
        self.origin = origin
        self.place = origin.place
        self.max_bytes = max_bytes
        self.path = checked_path(path)
        self._path = os.path.abspath(self.path)  # noqa: PTH100 - the path may be any str
        self._manifest: Manifest | None = None  # of the parent's store, in a worker
        self._opened: _Opened | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._open().manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        opened = self._open()
        if isinstance(opened.local, LMDBStore):
            return opened.local.read(indices)
        found, missing = self._found(opened.manifest, opened.local, indices)
        records = [self._checked(found[index], index, mirrored=index not in missing) for index in indices]
        if missing:
            opened.local.keep({index: found[index] for index in missing})
        return records

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        opened = self._open()
        if isinstance(opened.local, LMDBStore):
            return opened.local.documents(indices)
        found, _ = self._found(opened.manifest, opened.local, indices)
        return [found[index] for index in indices]

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        return self._whole().column(name)

    @override
    def names(self) -> Names:
        return self._whole().names()

    @override
    def name(self, index: int) -> str | None:
        return self._whole().name(index)

    @override
    def find(self, name: str) -> int:
        return self._whole().find(name)

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        return self._whole().events()

    @override
    def close(self) -> None:
        self._opened = self._manifest = None
        self.origin.close()

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        return self._whole()._stored_chunk(number)

    def _whole(self) -> Store:
        """Gives the store that has what is kept of all records together."""
        manifest, local, _ = self._open()
        if isinstance(local, LMDBStore):
            return local
        self._check_origin(manifest)
        return self.origin

    def _found(self, manifest: Manifest, local: _Mirror, indices: Sequence[int]) -> tuple[dict[int, bytes], set[int]]:
        """Gives the documents at some indices, and which of them were not in the mirror."""
        wanted = list(dict.fromkeys(map(int, indices)))
        for index in wanted:
            if not 0 <= index < manifest.length:
                self._check_index(index)
        found = local.documents(wanted)
        missing = [index for index in wanted if index not in found]
        if missing:
            self._check_origin(manifest)
            found.update(zip(missing, self.origin.documents(missing), strict=True))
            self._check_origin(manifest)  # which another thread may have closed, and opened anew, meanwhile
        return found, set(missing)

    def _check_origin(self, manifest: Manifest) -> None:
        """Refuses what has come to the place of the origin since: a worker opens it anew."""
        if self.origin.manifest.digest != manifest.digest:
            raise NotAStoreError(
                f"the store at {self.place} has been replaced since it was opened: open it again, with another mirror",
            )

    def _checked(self, document: bytes, index: int, *, mirrored: bool) -> Record:
        if not mirrored:
            return self._decode(document, index)
        try:
            return decode(document, index)
        except DamagedRecordError as error:
            raise DamagedRecordError(
                f"record {index} of {self.place} is damaged in its mirror {self.path}: {error}; "
                "remove that file, and it is filled anew",
            ) from error

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            manifest = opened.manifest if opened else self._manifest or self.origin.manifest
            opened = self._opened = _Opened(manifest, self._local(manifest), os.getpid())
        if isinstance(opened.local, LMDBStore):
            self._check_same(opened.local.manifest, opened.manifest)  # each process has opened it for itself
        return opened

    def _local(self, manifest: Manifest) -> _Mirror | LMDBStore:
        try:
            with environments.gate, _looking:
                whole = self._whole_store()
                if whole is not None:
                    return whole
                _begin(self._path, self.path)
                local = _Mirror(self._path, self.path, manifest, self.max_bytes)
        except OSError as error:
            if isinstance(error, (StoreAccessError, StoreFullError)):
                raise
            kind = StoreFullError if error.errno in NO_ROOM else StoreAccessError
            raise kind(f"the mirror {self.path} cannot be written: {error.strerror or error}") from error
        except lmdb.Error as error:
            raise _explained(error, self.path) from error
        self._check_same(local.manifest, manifest)
        return local

    def _whole_store(self) -> LMDBStore | None:
        """Gives the store that the file is; None if it is a mirror, something else, or not there."""
        whole = LMDBStore(self._path)
        try:
            with _without_writers(self._path):
                len(whole)
        except (FileNotFoundError, NotAStoreError):
            return None
        except DamagedStoreError as error:
            raise DamagedStoreError(f"{error}; or remove that file, and a mirror is filled anew") from error
        return whole

    def _check_same(self, mirrored: Manifest, manifest: Manifest) -> None:
        if (mirrored.digest, mirrored.length) != (manifest.digest, manifest.length):
            raise NotAStoreError(
                f"{self.path} mirrors another store than the one that is now at {self.place}: "
                "remove the file, or name another",
            )

    def __repr__(self) -> str:
        return f"MirroredStore({self.origin!r}, {self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # With the manifest, so that a worker need not ask the origin for what the mirror has.
        opened = self._opened
        return {**self.__dict__, "_manifest": opened.manifest if opened else self._manifest, "_opened": None}


class _Opened(NamedTuple):
    """What one process has opened."""

    manifest: Manifest
    local: _Mirror | LMDBStore
    pid: int


class _Mirror:
    """A file that is being filled, as one process has it open."""

    def __init__(self, path: str, shown: str, manifest: Manifest, max_bytes: int | None) -> None:
        self._shown = shown
        self._max_bytes = _MAP_SIZE if max_bytes is None else max_bytes
        self._full = False
        self._shared = environments.acquire(path, map_size=_MAP_SIZE)
        env = self._shared.env
        with self._shared.held(fcntl.LOCK_EX):
            with env.begin() as txn:
                begun = txn.stat()["entries"] > 0
            if not begun:
                with env.begin(write=True) as txn:
                    env.open_db(RECORDS, txn)
                    txn.put(MIRROR, manifest.encode(), db=env.open_db(META, txn))
            try:
                self._records = env.open_db(RECORDS, create=False)
                with env.begin(db=env.open_db(META, create=False)) as txn:
                    data = txn.get(MIRROR)
            except (lmdb.NotFoundError, lmdb.IncompatibleError):
                data = None
        if data is None:
            raise _something_else(shown)
        self.manifest = Manifest.decode(data, shown)

    def documents(self, indices: Sequence[int]) -> dict[int, bytes]:
        """Gives those of some records that are there."""
        found = {}
        try:
            with environments.gate, self._shared.held(fcntl.LOCK_SH), self._shared.env.begin(db=self._records) as txn:
                for index in indices:
                    document = txn.get(record_key(index))
                    if document is not None:
                        found[index] = document
        except lmdb.Error as error:
            raise _explained(error, self._shown) from error
        return found

    def keep(self, documents: dict[int, bytes]) -> None:
        """Keeps records, unless there is no room for them."""
        if self._full:
            return
        env = self._shared.env
        try:
            with (
                environments.gate,
                self._shared.held(fcntl.LOCK_EX),
                env.begin(write=True, db=self._records) as txn,
            ):
                used = (env.info()["last_pgno"] + 1) * env.stat()["psize"] + _BESIDE_A_COMMIT
                for index, document in documents.items():
                    used += len(document) + _BESIDE_A_RECORD
                    if used > self._max_bytes:
                        self._full = True
                        break
                    txn.put(record_key(index), document, overwrite=False)
        except (lmdb.Error, OSError) as error:
            # Training goes on from the server; no record is lost by it.
            self._full = True
            warnings.warn(f"the mirror {self._shown} takes no more records: {error}", RuntimeWarning, stacklevel=2)

    def __del__(self) -> None:
        if hasattr(self, "_shared"):
            environments.release(self._shared)


@contextmanager
def _without_writers(path: str) -> Iterator[None]:
    """Keeps those out who fill a mirror."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def _begin(path: str, shown: str) -> None:
    """Makes an LMDB file where there is none; two processes that did so at once would undo what the first one wrote."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _something_else(shown)
        if not status.st_size:
            try:
                lmdb.open(path, subdir=False, lock=False).close()
            except BaseException:
                os.ftruncate(file, 0)  # half a header would be taken for something else
                raise
    finally:
        os.close(file)


def _something_else(shown: str) -> NotAStoreError:
    return NotAStoreError(f"{shown} is something else than a mirror: remove it, or name another file")


def _explained(error: lmdb.Error, shown: str) -> Exception:
    """Gives the error of ours that says what an error of LMDB means for a mirror."""
    text = str(error)
    if isinstance(error, (lmdb.InvalidError, lmdb.VersionMismatchError)):
        return _something_else(shown)
    if any(os.strerror(number) in text for number in NO_ROOM):
        return StoreFullError(f"no room is left for the mirror {shown}: {text}")
    return DamagedStoreError(f"the mirror {shown} cannot be used: {text}; remove that file, and it is filled anew")
