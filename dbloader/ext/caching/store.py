"""Read a store by copying its shards to a folder on this machine first."""

from __future__ import annotations

import os
import secrets
import warnings
import weakref
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
from typing_extensions import override

from dbloader._options import whole_number
from dbloader._places import checked_path, is_mongo, is_remote, parse_place
from dbloader.errors import DamagedRecordError, DamagedStoreError, NotAStoreError, OptionError, PlaceError, StoreError
from dbloader.ext.caching.client import FetcherClient
from dbloader.ext.caching.folder import STATS
from dbloader.ext.caching.policy import needs_of
from dbloader.records.decode import decode
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.handle import ShardedHandle, ShardFiles, open_file
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dbloader.ext.caching.policy import Need
    from dbloader.records.record import EncodedRecord, Record
    from dbloader.stores.lmdb.handle import LMDBHandle
    from dbloader.stores.mongo.uri import MongoURI

Result = TypeVar("Result")

# Reading a batch again may find more damage. If damage remains after this number of repairs, the disk may be faulty.
_REPAIRS = 4
_DAMAGE = (DamagedRecordError, DamagedStoreError, NotAStoreError)


class CachedStore(LMDBStore):
    """A store whose shards are copied to a disk of this machine when they are needed.

    All processes of the machine share the folder. A separate process, the fetcher, fetches, verifies and removes
    shards. If the file of a shard is damaged, the fetcher fetches the shard again. The fetcher ends when no process
    uses the cache.

    Args:
        place: A folder of shards, an LMDB file, or a place in MongoDB or in object storage.
        cache: The folder of the cache. It is created if it does not exist.
        max_bytes: Limit of the total bytes of the shards in the folder; None for no limit.
    """

    downloads = True
    handle: ShardedHandle | None = None

    def __init__(
        self, place: str | os.PathLike[str], cache: str | os.PathLike[str], *, max_bytes: int | None = None
    ) -> None:
        self._origin: str | MongoURI  # a MongoURI is pickled without its credentials
        if is_mongo(place):
            self._origin = parse(place)
            self.place = self._origin.redacted
        elif is_remote(place):
            self.place = self._origin = str(parse_place(place))
        else:
            self.place = checked_path(place)
            self._origin = os.path.abspath(self.place)  # noqa: PTH100 - Path.absolute keeps ".."
        self.max_bytes = whole_number("cache_bytes", max_bytes, 1, none=True)
        try:
            self._folder = Path(os.path.abspath(checked_path(cache)))  # noqa: PTH100 - Path.absolute keeps ".."
        except (PlaceError, TypeError) as error:
            raise OptionError("cache must be the path of a folder on this machine") from error
        self._reader, self._reader_pid = secrets.token_hex(8), os.getpid()
        self._digest: str | None = None  # digest of the opened store; unpickled copies refuse any other store

    def expect(self, needs: Iterable[Need], *, check: bool = True) -> None:
        """Announce the order in which this process and its workers will need shards from now on.

        Args:
            needs: The shards, and the positions at which each shard is needed.
            check: Whether to check that the cache is large enough for this order.

        Raises:
            OptionError: The cache is too small for this order. The message gives a sufficient number of bytes.
        """
        if self._reader_pid != os.getpid():  # this process is a forked rank, which needs an order of its own
            self._reader, self._reader_pid, self.handle = secrets.token_hex(8), os.getpid(), None
        self.files.ask("the order", expect=list(needs), check=check)

    @override
    def expect_order(self, sampler: Any, since: Mapping[str, Any], indices: Any, *, margin: int, check: bool) -> None:
        needs = needs_of(sampler, since, self.shard_lengths or [], indices, margin=margin)
        self.expect(needs, check=check)
        # Wait for the first shards in this process. Otherwise each worker would print that it waits.
        for shard in dict.fromkeys(need.shard for need in needs if not need.first):
            self.files.fetch(shard, show=True)

    @property
    def _uri(self) -> str:  # with credentials
        return self._origin if isinstance(self._origin, str) else self._origin.uri

    @property
    def files(self) -> CachedFiles:
        """The files of the cache, with this process's connection to the fetcher."""
        files = self.open_handle().files
        assert isinstance(files, CachedFiles)
        return files

    @override
    def open_handle(self) -> ShardedHandle:
        handle = self.handle
        if handle is None or handle.pid != os.getpid():
            opening = {"place": self._uri, "limit": self.max_bytes, "known": self._digest is not None}
            try:
                with env.gate:
                    client = FetcherClient(str(self._folder), self.place, {"open": opening, "reader": self._reader})
                    handle = ShardedHandle(CachedFiles(self._folder, client))
            except lmdb.Error as error:
                raise translate(error, str(self._folder)) from error
            if self._digest not in (None, handle.manifest.digest):
                what = "has been replaced since it was opened: open it again, with another cache"
                raise NotAStoreError(f"the store at {self.place} {what}")
            self.handle, self._digest = handle, handle.manifest.digest
        return handle

    @override
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        if is_remote(self.place):
            return False
        with open_store(self._uri) as origin:
            return origin.is_at(place)

    @override
    def open_older(self, digest: str) -> None:
        """Do nothing: a cache has one version of its store."""

    @override
    def close(self) -> None:
        self.handle = self._digest = None

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        return self._repaired(lambda: LMDBStore.read(self, indices), indices)

    @override
    def encoded(self, indices: Sequence[int], *, elements: bool = True) -> list[EncodedRecord]:
        return self._repaired(lambda: LMDBStore.encoded(self, indices, elements=elements), indices)

    # Store.borrow copies records. LMDBStore.borrow would return memory of mapped files, which the fetcher may replace.
    borrow = Store.borrow

    def _repaired(self, read: Callable[[], Result], indices: Sequence[int]) -> Result:
        """Return the result of ``read``. After damage, let the fetcher replace the shard, and call ``read`` again."""
        for _ in range(_REPAIRS):
            try:
                return read()
            except _DAMAGE as error:
                self._repair(indices, error)
        return read()

    def _repair(self, indices: Sequence[int], error: Exception) -> None:
        """Let the fetcher replace the damaged shards of some records. Raise ``error`` if the damage remains."""
        try:
            with env.gate:
                self.files.repair(self.open_handle().divide(indices))
        except DamagedStoreError as same:
            raise type(error)(f"{error}; {same}") from error

    def __repr__(self) -> str:
        return f"CachedStore({self.place!r}, {str(self._folder)!r})"


class CachedFiles(ShardFiles):
    """The files of a cache. Opening a missing shard requests it from the fetcher. Threads may share this object."""

    cached = True

    def __init__(self, path: Path, client: FetcherClient) -> None:
        super().__init__(path, str(path))
        self.remedy = f"dbloader cache {path} --verify removes damaged files, which are then fetched again"
        self._client = client
        weakref.finalize(self, client.close)

    def ask(self, what: str, **message: Any) -> dict[str, Any]:
        """Send the fetcher a question and return its answer."""
        with env.gate, self.lock:
            return self._client.ask(what, **message)

    def first_shards(self, limit: int | None) -> range:
        """Return the numbers of the first shards that together have at most ``limit`` bytes."""
        ends = [*accumulate(shard.nbytes for shard in self.table.shards)]
        return range(len(ends) if limit is None else bisect_right(ends, limit))

    def fetch(self, number: int, *, show: bool = False) -> None:
        """Wait until a shard is in the cache. With ``show``, show a long wait on stderr."""
        with env.gate, self.lock:
            self._client.shows = show
            try:
                self.open(number)
            finally:
                self._client.shows = False

    def repair(self, parts: Mapping[int, list[int]]) -> None:
        """Read records again, and let the fetcher replace each damaged shard. ``parts`` is {shard: indices of records}.

        Raises:
            DamagedStoreError: The fetcher has received the same damage twice.
        """
        with self.lock:  # another thread may have repaired the shard meanwhile
            for number, indices in parts.items():
                handle = self.find_open(number)
                if handle is not None and not _is_whole(handle, indices):
                    del self.opened[number]
                    damaged_file = handle.shared.key[1], handle.size_and_mtime[1]
                    self.opened[number] = self.open(number, damaged_file)

    @override
    def find_open(self, number: int) -> LMDBHandle | None:
        if number in self.opened and self.opened[number].is_changed():
            del self.opened[number]  # reading beyond the end of a shorter file would crash the process
        return self.opened.get(number)

    @override
    def open(self, number: int, damaged_file: tuple[int, int] | None = None) -> LMDBHandle:
        """Wait until a shard is in the cache, and open the shard.

        Args:
            number: The shard.
            damaged_file: Inode and mtime (ns) of a damaged file of this shard; None without damage.
        """
        shard, path = self.table.shards[number], self._file(number)
        for _ in range(_REPAIRS):
            answer = self._client.ask(f"shard {number} ({path.name})", need=number, damaged_file=damaged_file)
            for other in [other for other in self.opened if not self._file(other).exists()]:
                del self.opened[other]  # the fetcher removed this file, but an open file still uses space on the disk
            found = damaged_file = None
            try:
                with suppress(FileNotFoundError):  # another reader found damage, so the fetcher removed the file
                    found = path.stat()
                # The fetcher has checked the file. Do not compare the size: the table may have only an estimate.
                return open_file(path, self.place, f"{SHARD_FOLDER}/{path.name}", self.remedy, digest=shard.digest)
            except StoreError as error:
                failed = error
                if found and isinstance(error, _DAMAGE):
                    damaged_file = found.st_ino, found.st_mtime_ns
            finally:
                self._client.tell(opened=True)
                if answer["damaged"] == 1:  # warn only of the first damaged shard since the fetcher started
                    what = f"{path}, in the cache, was damaged, so dbloader fetched it again"
                    warnings.warn(f"{what}; {STATS} counts further damage", UserWarning, stacklevel=2)
        raise failed

    @override
    def check(self) -> None:
        """Do nothing, because `open` fetches missing shards."""

    def _file(self, number: int) -> Path:
        return self.path / SHARD_FOLDER / self.table.shards[number].name


def _is_whole(handle: LMDBHandle, indices: Sequence[int]) -> bool:
    """Return whether the records at some indices of a shard are undamaged."""
    try:
        for index, document in zip(indices, handle.views(indices), strict=True):
            if document is None:
                return False
            decode(document, index, handle.manifest.salt, view=True)
    except (DamagedRecordError, StoreError):
        return False
    return True
