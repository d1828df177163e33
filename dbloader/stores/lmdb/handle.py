"""Open LMDB stores: one file, or a folder of shards.

``LMDBStore.open_handle`` makes a handle when a process first uses the store. A forked child makes a new handle too,
because env.py closes all inherited environments in the child.
"""

from __future__ import annotations

import os
import resource
import stat
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from contextlib import ExitStack, suppress
from itertools import accumulate, count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreAccessError, StoreError
from dbloader.records.columns import CHUNK, whole_chunk
from dbloader.records.manifest import Manifest
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.keys import MANIFEST, META, RECORDS, SHARD_INDEX, column_key, record_key
from dbloader.stores.lmdb.shard_table import COPY_AGAIN, MANIFEST_FILE, SHARD_FOLDER, ShardTable, kept_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.stores.lmdb.shard_table import Shard

# A handle calls `release_pages` each time it has read _BYTES_KEPT bytes of columns. Each chunk counts as _AROUND bytes
# more, because Linux also maps pages around it.
_BYTES_KEPT, _AROUND = 2**24, 2**17
# An open shard has two file descriptors: one of LMDB and one of ReadAhead.
_DESCRIPTORS = 2


class _OtherStoreError(Exception):
    """The file is a store, but not the expected store."""


class LMDBHandle:
    """One open LMDB file. In one process, all stores on the same file share one LMDB environment.

    Args:
        path: The file.
        place: The file's name in messages.
        digest: The expected digest; None accepts any digest.
        index_of: If the file is an index, the manifest of the sharded store that the index must belong to; else None.

    Raises:
        _OtherStoreError: The file is not the expected store or index.
        NotAStoreError: The file is neither a store nor the index of a sharded store.
        DamagedStoreError: The file is truncated, or its manifest is damaged.
        StoreVersionError: This version of dbloader cannot read the store's newer format.
    """

    def __init__(self, path: Path, place: str, *, digest: str | None = None, index_of: Manifest | None = None) -> None:
        self.place = place
        self._bytes_read = 0
        # Idle transactions are kept for reuse, because beginning a transaction takes as long as reading a record.
        self._idle: list[lmdb.Transaction] = []
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) and status.st_size):
            raise NotAStoreError(f"{place} is empty or not an ordinary file, so it is not a dbloader store")
        self.shared = env.acquire(path)
        self.pid = self.shared.pid
        # This is not a __del__ method, because at interpreter exit Python clears the modules that the method needs.
        release = weakref.finalize(self, env.release, self.shared)
        release.atexit = False
        with ExitStack() as undo:
            undo.callback(release)  # if a caller kept the error, its traceback would keep the file open
            # Between `stat` and `acquire`, another process may have replaced the file by a shorter file.
            opened_size = self.shared.ahead.size_and_mtime()[0] or status.st_size
            self._read_header(min(status.st_size, opened_size), digest, index_of)
            undo.pop_all()
        self.size_and_mtime = self.shared.ahead.size_and_mtime()

    def _read_header(self, size: int, digest: str | None, index_of: Manifest | None) -> None:
        opened, place = self.shared.env, self.place
        env.check_size(opened, size, place, "copy it again from the original")
        try:
            self.records = opened.open_db(RECORDS, create=False)
            self.meta = opened.open_db(META, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise NotAStoreError(
                f"{place} is an LMDB file, but not a dbloader store; if another program stored images in this file, "
                f"dbloader convert {place} NEW.lmdb makes a store of these images"
            ) from error
        with opened.begin() as txn:
            manifest, is_index = txn.get(MANIFEST, db=self.meta), txn.get(SHARD_INDEX, db=self.meta) is not None
        if is_index and not index_of:
            raise NotAStoreError(f"{place} is the index of a folder of shards: open the folder instead")
        if manifest is None:
            raise NotAStoreError(
                f"{place} is not a finished store: its conversion was interrupted "
                "(dbloader convert --resume continues it)"
            )
        self.manifest = Manifest.decode(manifest, place)
        if digest not in (None, self.manifest.digest):
            raise _OtherStoreError
        if index_of and (index_of.digest, index_of.salt) != (self.manifest.digest, self.manifest.salt):
            raise _OtherStoreError

    def is_changed(self) -> bool:
        """Return whether the file has changed since this handle opened it."""
        return self.shared.ahead.size_and_mtime() != self.size_and_mtime

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the kernel to load the records at some indices, and do not wait for them."""
        self.shared.ahead.prefetch(indices)

    def release_pages(self) -> None:
        """Remove the file's pages from this process's memory, but not from the system's page cache."""
        self.shared.release_pages()

    def look_up(self, indices: Sequence[int]) -> Iterator[tuple[int, int, int, memoryview | None]]:
        """Yield documents like ``ShardedHandle.look_up``. A view is valid while the file is open."""
        return zip(count(), indices, repeat(self.manifest.salt), self.views(indices))

    def views(self, indices: Sequence[int]) -> Iterator[memoryview | None]:
        """Yield each document as a view into LMDB's memory map, valid while the file is open; None if missing."""
        try:
            txn = self._idle.pop()  # two threads cannot pop the same transaction
        except IndexError:
            txn = self._begin()
        get, records, usable = txn.get, self.records, True
        try:
            for index in indices:
                document: Any = get(record_key(index), None, records)
                yield document
        except lmdb.Error as error:
            usable = False  # after an error, LMDB refuses to use the transaction again
            raise translate(error, self.place) from error
        finally:
            if usable:
                self._idle.append(txn)

    def _begin(self) -> lmdb.Transaction:
        try:
            return self.shared.env.begin(buffers=True)
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    def get(self, key: bytes) -> bytes | None:
        """Return a value from the sub-database ``meta``."""
        try:
            with env.gate, self.shared.env.begin(db=self.meta) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise translate(error, self.place) from error

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column, or raise DamagedStoreError."""
        stored = self.get(column_key(column, number))
        self._bytes_read += len(stored or b"") + _AROUND
        if self._bytes_read > _BYTES_KEPT:
            # The columns of ten million records take 580 MB, which would stay in this process's memory.
            self.shared.release_pages()
            self._bytes_read = 0
        chunk = whole_chunk(column, number, stored, self.manifest.length, self.manifest.salt)
        if chunk is None:
            raise DamagedStoreError(
                f"{self.place}: chunk {number} of its column {column} is missing or damaged; "
                "copy the file again from the original"
            )
        return chunk

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Raise DamagedStoreError at once if the file has too few chunks."""
        number_of_chunks = -(-self.manifest.length // CHUNK)
        with env.gate, self._begin() as txn:
            entries = txn.stat(self.meta)["entries"]
        if number_of_chunks > entries:
            raise DamagedStoreError(
                f"{self.place}: its manifest counts {self.manifest.length:,} records, but chunks of its column "
                f"{column} are missing; copy the file again from the original"
            )
        return (self.chunk(column, number) for number in range(number_of_chunks))


def open_file(
    path: Path, store: str, name: str, remedy: str, *, digest: str | None = None, index_of: Manifest | None = None
) -> LMDBHandle:
    """Open a shard or the index of a sharded store. LMDBHandle describes ``digest`` and ``index_of``.

    Raises:
        DamagedStoreError: The file is missing or damaged, or is not the file ``name`` of the store.
        StoreError: The file cannot be read.
    """
    place = os.path.join(store, name)  # noqa: PTH118 - pathlib would change s3:// to s3:/
    try:
        return LMDBHandle(path, place, digest=digest, index_of=index_of)
    except FileNotFoundError as error:
        raise DamagedStoreError(f"{place} is missing: {remedy}") from error
    except _OtherStoreError as error:
        raise DamagedStoreError(f"{place} is not the file that the manifest of {store} lists: {remedy}") from error
    except OSError as error:
        raise StoreAccessError(f"{place} cannot be read: {error.strerror}") from error
    except lmdb.Error as error:
        raise translate(error, place, remedy=remedy) from error


class ShardFiles:
    """The files of a sharded store in a folder. A cache overrides the public methods.

    Attributes:
        opened: The open shards, the least recently read first.
        lock: Protects ``opened``. Acquire it inside ``env.gate``, which delays forks: no child may inherit a held lock.
    """

    cached = False
    """Whether the files are in a cache, which may remove or replace them at any time. Other files never change."""

    remedy = f"if the store was replaced, open it again; otherwise {COPY_AGAIN}"
    """What a user can do about a damaged file."""

    def __init__(self, path: Path, place: str, manifest_file: str = MANIFEST_FILE) -> None:
        self.path, self.place = path, place
        try:
            self.table = ShardTable.decode((path / manifest_file).read_bytes(), place)
        except FileNotFoundError as error:
            raise NotAStoreError(
                f"{place} is a folder without {MANIFEST_FILE}, so it is not a store "
                "(dbloader convert makes a store of a folder of images)"
            ) from error
        self.opened: OrderedDict[int, LMDBHandle] = OrderedDict()
        self.lock = threading.Lock()

    def open_index(self) -> LMDBHandle:
        """Open the index. Raise the errors of ``open_file``."""
        name = self.table.index_file
        return open_file(self.path / name, self.place, name, self.remedy, index_of=self.table.manifest)

    def open(self, number: int) -> LMDBHandle:
        """Open a shard. Raise the errors of ``open_file``, or DamagedStoreError for a file of a wrong size.

        The caller must hold ``lock``. A cache may close other shards to make room.
        """
        shard = self.table.shards[number]
        name = f"{SHARD_FOLDER}/{shard.name}"
        handle = open_file(self.path / name, self.place, name, self.remedy, digest=shard.digest)
        self._check_size(shard)
        return handle

    def find_open(self, number: int) -> LMDBHandle | None:
        """Return the handle of a shard if it is open. The caller must hold ``lock``."""
        return self.opened.get(number)

    def check(self) -> None:
        """Raise DamagedStoreError unless every shard exists and has the size in the manifest."""
        for shard in self.table.shards:
            self._check_size(shard)

    def _check_size(self, shard: Shard) -> None:
        try:
            size = (self.path / SHARD_FOLDER / shard.name).stat().st_size
        except OSError:
            size = None
        if size != shard.nbytes:
            found = "is missing" if size is None else f"has {size:,} bytes, not {shard.nbytes:,}"
            raise DamagedStoreError(f"{Path(self.place, SHARD_FOLDER, shard.name)} {found}: {self.remedy}")


class ShardedHandle:
    """An open sharded store: its manifest, its index, and recently read shards. Threads may share a handle.

    A shard is opened when one of its records is read. Open shards use at most a quarter of the file descriptors that
    the process may open. To open one more shard, the handle closes the least recently read shard.
    """

    def __init__(self, files: ShardFiles) -> None:
        self.pid = os.getpid()
        self.files = files
        self.manifest = files.table.manifest
        self._starts = [0, *accumulate(shard.length for shard in files.table.shards)]
        self._index_handle: LMDBHandle | None = None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_opened = max(8, (2**20 if soft == resource.RLIM_INFINITY else soft) // 4 // _DESCRIPTORS)

    def open_previous(self, digest: str) -> ShardedHandle | None:
        """Return a handle of the store's previous version; None if that version is lost or has another digest."""
        with suppress(OSError, StoreError):
            files = self.files
            older = ShardedHandle(ShardFiles(files.path, files.place, kept_manifest(files.table.previous)))
            if older.manifest.digest == digest:
                return older
        return None

    @property
    def shard_lengths(self) -> list[int]:
        """The number of records in each shard."""
        return [shard.length for shard in self.files.table.shards]

    def get(self, key: bytes) -> bytes | None:
        """Return a value from the sub-database ``meta`` of the index."""
        return self._index().get(key)

    def chunk(self, column: str, number: int) -> memoryview:
        """Return one chunk of a column, or raise DamagedStoreError."""
        return self._index().chunk(column, number)

    def chunks(self, column: str) -> Iterator[memoryview]:
        """Return all chunks of a column. Raise DamagedStoreError at once if the index has too few chunks."""
        return self._index().chunks(column)

    def _index(self) -> LMDBHandle:
        with env.gate, self.files.lock:
            if self._index_handle is None:
                self._index_handle = self.files.open_index()
            return self._index_handle

    def _shard(self, number: int) -> LMDBHandle:
        with self.files.lock:  # the store has already entered ``env.gate``
            handle = self.files.find_open(number)
            if handle is None:
                handle = self.files.opened[number] = self.files.open(number)
                if len(self.files.opened) > self._most_opened:
                    self.files.opened.popitem(last=False)  # the shard closes when no thread reads from it
            self.files.opened.move_to_end(number)
            return handle

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the kernel to load the records at some indices, and do not wait for them."""
        parts = self.divide(indices)
        if self.files.cached:  # opening a shard that is not in the cache would wait for its download
            parts = {number: inside for number, inside in parts.items() if number in self.files.opened}
        for number, inside in islice(parts.items(), self._most_opened):
            with suppress(StoreError):  # reading the records later raises the error
                self._shard(number).prefetch(inside)

    def divide(self, indices: Sequence[int]) -> dict[int, list[int]]:
        """Return a dict that maps the number of each shard to the wanted records' positions in this shard."""
        parts = self._by_shard(indices).items()
        return {number: [indices[at] - self._starts[number] for at in positions] for number, positions in parts}

    def release_pages(self) -> None:
        """Remove the open shards' pages from this process's memory, but not from the system's page cache."""
        with env.gate, self.files.lock:
            for handle in self.files.opened.values():
                handle.release_pages()

    def look_up(self, indices: Sequence[int]) -> Iterator[tuple[int, int, int, memoryview | None]]:
        """Yield four values for each document: position in ``indices``, index in shard, salt of shard, and view.

        The documents come shard by shard, and are not copied. The view is None if the document is missing. A view is
        valid until the next document is requested.
        """
        for number, positions in self._by_shard(indices).items():
            inside = [indices[position] - self._starts[number] for position in positions]
            handle = self._shard(number)
            yield from zip(positions, inside, repeat(handle.manifest.salt), handle.views(inside))
            if self.files.cached and handle.is_changed():  # a record may have changed after it was verified
                raise DamagedStoreError(f"{handle.place}, in the cache, was changed while it was read")

    def _by_shard(self, indices: Sequence[int]) -> dict[int, list[int]]:
        """Return a dict that maps the number of a shard to the positions of its records in ``indices``."""
        parts: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            if 0 <= index < self.manifest.length:  # the store raises an error for an invalid index
                parts.setdefault(bisect_right(self._starts, index) - 1, []).append(position)
        return parts
