"""A store elsewhere whose records are kept on this machine as they are read."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import lmdb
from typing_extensions import override

from dbloader.errors import DamagedRecordError, NotAStoreError, OptionError, StoreAccessError
from dbloader.manifest import Manifest
from dbloader.records import decode
from dbloader.stores import environments
from dbloader.stores.base import Store
from dbloader.stores.lmdb import META, MIRROR, RECORDS, LMDBStore, checked_path, explained, record_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from dbloader.columns import Names
    from dbloader.records import Record

# What LMDB needs beside the images: a page and a half for each record at worst, and the trees.
_BESIDE_A_RECORD = 8192
_LEAST_MAP_SIZE = 64 * 2**20


class MirroredStore(Store):
    """A store of which each record is read from its origin once, and from then on from a file on this machine.

    All processes of the machine may share the file; LMDB keeps them apart. Records are checked before they are kept
    and whenever they are read. Where the file is a whole store with the same records, such as ``dbloader mirror``
    makes, the origin is asked for nothing but its manifest, once.

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
        self._local: _Mirror | LMDBStore | None = None
        self._manifest: Manifest | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._manifest = self.origin.manifest
        return self._manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        local = self._open()
        if isinstance(local, LMDBStore):
            return local.read(indices)
        found, missing = self._found(local, indices)
        records = [self._checked(found[index], index, mirrored=index not in missing) for index in indices]
        if missing:
            local.keep({index: found[index] for index in missing})
        return records

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        local = self._open()
        if isinstance(local, LMDBStore):
            return local.documents(indices)
        found, _ = self._found(local, indices)
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
        if isinstance(self._local, LMDBStore):
            self._local.close()
        self._local = self._manifest = None
        self.origin.close()

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        return self._whole()._stored_chunk(number)

    def _whole(self) -> Store:
        local = self._open()
        return local if isinstance(local, LMDBStore) else self.origin

    def _found(self, local: _Mirror, indices: Sequence[int]) -> tuple[dict[int, bytes], set[int]]:
        """Gives the documents at some indices, and which of them were not in the mirror."""
        wanted = list(dict.fromkeys(map(int, indices)))
        for index in wanted:
            self._check_index(index)
        found = local.documents(wanted)
        missing = [index for index in wanted if index not in found]
        if missing:
            if self.origin.manifest.digest != self.manifest.digest:
                raise NotAStoreError(
                    f"the store at {self.place} has been replaced since it was opened: "
                    "open it again, with another mirror",
                )
            found.update(zip(missing, self.origin.documents(missing), strict=True))
        return found, set(missing)

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

    def _open(self) -> _Mirror | LMDBStore:
        local = self._local
        if local is None or (isinstance(local, _Mirror) and local.shared.pid != os.getpid()):
            local = self._local = self._opened()
        return local

    def _opened(self) -> _Mirror | LMDBStore:
        manifest = self.manifest
        whole = LMDBStore(self.path)
        try:
            mirrored = whole.manifest
        except (NotAStoreError, FileNotFoundError):
            pass  # a mirror that is being filled, none yet, or something else
        else:
            self._check_same(mirrored)
            return whole
        try:
            local = _Mirror(self._path, self.path, manifest, self.max_bytes)
        except lmdb.Error as error:
            raise explained(error, self.path) from error
        except OSError as error:
            raise StoreAccessError(f"the mirror {self.path} cannot be written: {error.strerror or error}") from error
        self._check_same(local.manifest)
        return local

    def _check_same(self, mirrored: Manifest) -> None:
        if (mirrored.digest, mirrored.length) != (self.manifest.digest, self.manifest.length):
            raise NotAStoreError(
                f"{self.path} mirrors another store than the one that is now at {self.place}: "
                "remove the file, or name another",
            )

    def __repr__(self) -> str:
        return f"MirroredStore({self.origin!r}, {self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # With the manifest, so that a worker need not ask the origin for what the mirror has.
        return {**self.__dict__, "_manifest": self.manifest, "_local": None}


class _Mirror:
    """A file that is being filled, as one process has it open."""

    def __init__(self, path: str, shown: str, manifest: Manifest, max_bytes: int | None) -> None:
        self._shown = shown
        room = manifest.image_bytes + manifest.length * _BESIDE_A_RECORD + _LEAST_MAP_SIZE
        self._max_bytes = min(max_bytes or room, room)
        # A map is address space, not memory or disk; the same for all processes, so that none has to grow it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        with environments.gate:
            self.shared = environments.acquire(path, map_size=room)
        self._full = False
        with environments.gate:
            env = self.shared.env
            with env.begin() as txn:
                known = txn.stat()["entries"] > 0
            if not known:
                with env.begin(write=True) as txn:
                    meta = env.open_db(META, txn)
                    env.open_db(RECORDS, txn)
                    txn.put(MIRROR, manifest.encode(), db=meta, overwrite=False)
            try:
                self._records = env.open_db(RECORDS, create=False)
                with env.begin() as txn:
                    data = txn.get(MIRROR, db=env.open_db(META, txn, create=False))
            except (lmdb.NotFoundError, lmdb.IncompatibleError):
                data = None
        if data is None:
            raise NotAStoreError(f"{shown} is something else than a mirror: remove the file, or name another")
        self.manifest = Manifest.decode(data, shown)

    def documents(self, indices: Sequence[int]) -> dict[int, bytes]:
        """Gives those of some records that are there."""
        found = {}
        with environments.gate, self.shared.env.begin(db=self._records) as txn:
            for index in indices:
                document = txn.get(record_key(index))
                if document is not None:
                    found[index] = document
        return found

    def keep(self, documents: dict[int, bytes]) -> None:
        """Keeps records, unless there is no room for them."""
        if self._full:
            return
        env = self.shared.env
        try:
            with environments.gate, env.begin(write=True, db=self._records) as txn:
                used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
                for index, document in documents.items():
                    used += len(document) + _BESIDE_A_RECORD
                    if used > self._max_bytes:
                        self._full = True
                        break
                    txn.put(record_key(index), document, overwrite=False)
        except lmdb.Error as error:
            # Training goes on from the server; no record is lost by it.
            self._full = True
            warnings.warn(f"the mirror {self._shown} takes no more records: {error}", RuntimeWarning, stacklevel=2)

    def __del__(self) -> None:
        if hasattr(self, "shared"):
            environments.release(self.shared)
