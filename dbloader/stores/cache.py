"""A store elsewhere, whose records are kept in a file on this machine once they have been read."""

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
    StoreError,
)
from dbloader.records.decode import decode
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.cache_file import CacheFile, create_file, translate_cache_error, without_writers
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.keys import checked_path
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.stores.handle import Handle

# To see what a file is, it is opened as a store. A file cannot be opened twice, so one thread does that at a time.
_opening = threading.Lock()


class CachedStore(Store):
    """A store whose records are read from their origin once, and then from a file on this machine.

    All processes of the machine may share the file, which they lock while they read or write. Records are verified
    before they are added and whenever they are read. If the file is a complete store with the same records, such as
    ``dbloader copy`` makes, nothing is written, and the origin is asked only for its manifest.

    The file must be on a disk of this machine: over NFS, the processes of two machines would not see the same file.
    It is created if it does not exist. Records for which ``max_bytes`` leaves no room are read from the origin every
    time.
    """

    def __init__(self, origin: Store, path: str | os.PathLike[str], *, max_bytes: int | None = None) -> None:
        self.origin = origin
        self.place = origin.place
        self.max_bytes = max_bytes
        self.path = os.path.abspath(checked_path(path))  # noqa: PTH100 - the path may be any str
        self._manifest: Manifest | None = None  # in a worker: that of the parent's store
        self._opened: _Opened | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._cache().manifest

    @property
    def local(self) -> CacheFile | LMDBStore | None:
        """The open cache, or the complete store; None if this process has not opened it."""
        return self._opened.local if self._opened else None

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        opened = self._cache()
        if isinstance(opened.local, LMDBStore):
            return opened.local.read(indices)
        found, missing = self._found(opened.manifest, opened.local, indices)
        records = [self._checked(found[index], index, cached=index not in missing) for index in indices]
        if missing:
            opened.local.add({index: found[index] for index in missing})
        return records

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        opened = self._cache()
        if isinstance(opened.local, LMDBStore):
            return opened.local.documents(indices)
        found, _ = self._found(opened.manifest, opened.local, indices)
        return [found[index] for index in indices]

    @override
    def find(self, name: str) -> int:
        return self._complete().find(name)

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        return self._complete().events()

    @override
    def close(self) -> None:
        self._opened = self._manifest = None
        self.origin.close()

    @override
    def _open(self) -> Handle:
        return self._complete()._open()

    def _complete(self) -> Store:
        """Return the store with all records: the local one if it is complete, otherwise the origin."""
        manifest, local, _ = self._cache()
        if isinstance(local, LMDBStore):
            return local
        self._check_origin(manifest)
        return self.origin

    def _found(self, manifest: Manifest, local: CacheFile, indices: Sequence[int]) -> tuple[dict[int, bytes], set[int]]:
        """Return the documents at some indices, and the indices that were not in the cache."""
        wanted = list(dict.fromkeys(map(int, indices)))
        for index in wanted:
            if not 0 <= index < manifest.length:
                self._check_index(index)
        found = local.documents(wanted)
        missing = [index for index in wanted if index not in found]
        if missing:
            self._check_origin(manifest)
            found.update(zip(missing, self.origin.documents(missing), strict=True))
            self._check_origin(manifest)  # another thread may have closed and reopened it meanwhile
        return found, set(missing)

    def _check_origin(self, manifest: Manifest) -> None:
        """Refuse an origin that was replaced: a worker opens it again."""
        if self.origin.manifest.digest != manifest.digest:
            raise NotAStoreError(
                f"the store at {self.place} has been replaced since it was opened: open it again, with another cache"
            )

    def _checked(self, document: bytes, index: int, *, cached: bool) -> Record:
        if not cached:
            return self._decode(document, index)
        try:
            return decode(document, index)
        except DamagedRecordError as error:
            raise DamagedRecordError(
                f"record {index} of {self.place} is damaged in its cache {self.path}: {error}; "
                "remove that file, and dbloader fills a new one"
            ) from error

    def _cache(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            manifest = opened.manifest if opened else self._manifest or self.origin.manifest
            opened = self._opened = _Opened(manifest, self._open_file(manifest), os.getpid())
        if isinstance(opened.local, LMDBStore):
            self._check_same(opened.local.manifest, opened.manifest)  # every process opens the local store itself
        return opened

    def _open_file(self, manifest: Manifest) -> CacheFile | LMDBStore:
        try:
            with env.gate, _opening:
                store = self._open_as_store()
                if store is not None:
                    return store
                create_file(self.path)
                local = CacheFile(self.path, manifest, self.max_bytes)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise translate_refusal(error, f"the cache {self.path}") from error
        except lmdb.Error as error:
            raise translate_cache_error(error, self.path) from error
        self._check_same(local.manifest, manifest)
        return local

    def _open_as_store(self) -> LMDBStore | None:
        """Return the file as a store; None if it is a cache, something else, or does not exist."""
        store = LMDBStore(self.path)
        try:
            with without_writers(self.path):
                len(store)
        except (FileNotFoundError, NotAStoreError):
            return None
        except DamagedStoreError as error:
            raise DamagedStoreError(f"{error}; or remove that file, and dbloader fills a new one") from error
        return store

    def _check_same(self, cached: Manifest, manifest: Manifest) -> None:
        if (cached.digest, cached.length) != (manifest.digest, manifest.length):
            raise NotAStoreError(
                f"{self.path} caches another store than the one that is now at {self.place}: "
                "remove the file, or name another"
            )

    def __repr__(self) -> str:
        return f"CachedStore({self.origin!r}, {self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # With the manifest, so that a worker need not ask the origin for records that are in the cache.
        opened = self._opened
        return {**self.__dict__, "_manifest": opened.manifest if opened else self._manifest, "_opened": None}


class _Opened(NamedTuple):
    """What one process has opened."""

    manifest: Manifest
    local: CacheFile | LMDBStore
    pid: int
