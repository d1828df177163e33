"""A store elsewhere whose records are kept on this machine as they are read."""

from __future__ import annotations

import os
import threading
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
from dbloader.records.record import decode
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.cache_file import CacheFile, begin, explained, without_writers
from dbloader.stores.lmdb.keys import NO_ROOM, checked_path
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from dbloader.records.columns import Names
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record

# One thread at a time looks what a file is: it is opened as a store for that, and cannot be opened twice.
_looking = threading.Lock()


class CachedStore(Store):
    """A store of which each record is read from its origin once, and from then on from a file on this machine.

    All processes of the machine may share the file: whoever reads or writes locks it for that long. Records are checked
    before they are kept and whenever they are read. Where the file is a whole store with the same records, such as
    ``dbloader copy`` makes, nothing is written, and the origin is asked for nothing but its manifest, once.

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
        records = [self._checked(found[index], index, cached=index not in missing) for index in indices]
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
        """Return the store that has what is kept of all records together."""
        manifest, local, _ = self._open()
        if isinstance(local, LMDBStore):
            return local
        self._check_origin(manifest)
        return self.origin

    def _found(self, manifest: Manifest, local: CacheFile, indices: Sequence[int]) -> tuple[dict[int, bytes], set[int]]:
        """Return the documents at some indices, and which of them were not in the cache."""
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
        """Refuse what has come to the place of the origin since: a worker opens it anew."""
        if self.origin.manifest.digest != manifest.digest:
            raise NotAStoreError(
                f"the store at {self.place} has been replaced since it was opened: open it again, with another cache",
            )

    def _checked(self, document: bytes, index: int, *, cached: bool) -> Record:
        if not cached:
            return self._decode(document, index)
        try:
            return decode(document, index)
        except DamagedRecordError as error:
            raise DamagedRecordError(
                f"record {index} of {self.place} is damaged in its cache {self.path}: {error}; "
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

    def _local(self, manifest: Manifest) -> CacheFile | LMDBStore:
        try:
            with env.gate, _looking:
                whole = self._whole_store()
                if whole is not None:
                    return whole
                begin(self._path, self.path)
                local = CacheFile(self._path, self.path, manifest, self.max_bytes)
        except OSError as error:
            if isinstance(error, (StoreAccessError, StoreFullError)):
                raise
            kind = StoreFullError if error.errno in NO_ROOM else StoreAccessError
            raise kind(f"the cache {self.path} cannot be written: {error.strerror or error}") from error
        except lmdb.Error as error:
            raise explained(error, self.path) from error
        self._check_same(local.manifest, manifest)
        return local

    def _whole_store(self) -> LMDBStore | None:
        """Return the store that the file is; None if it is a cache, something else, or not there."""
        whole = LMDBStore(self._path)
        try:
            with without_writers(self._path):
                len(whole)
        except (FileNotFoundError, NotAStoreError):
            return None
        except DamagedStoreError as error:
            raise DamagedStoreError(f"{error}; or remove that file, and a cache is filled anew") from error
        return whole

    def _check_same(self, cached: Manifest, manifest: Manifest) -> None:
        if (cached.digest, cached.length) != (manifest.digest, manifest.length):
            raise NotAStoreError(
                f"{self.path} caches another store than the one that is now at {self.place}: "
                "remove the file, or name another",
            )

    def __repr__(self) -> str:
        return f"CachedStore({self.origin!r}, {self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # With the manifest, so that a worker need not ask the origin for what the cache has.
        opened = self._opened
        return {**self.__dict__, "_manifest": opened.manifest if opened else self._manifest, "_opened": None}


class _Opened(NamedTuple):
    """What one process has opened."""

    manifest: Manifest
    local: CacheFile | LMDBStore
    pid: int
