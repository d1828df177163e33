"""A store whose shards are copied to a folder on this machine before they are read."""

from __future__ import annotations

import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any

import lmdb
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.caching.client import FetcherClient
from dbloader.errors import DamagedStoreError, NotAStoreError, OptionError, PlaceError
from dbloader.remote.places import is_remote, parse_place
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.lmdb.handle import ShardedHandle
from dbloader.stores.lmdb.keys import checked_path
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.mongo.uri import is_mongo, parse
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dbloader.caching.policy import Need
    from dbloader.errors import DamagedRecordError
    from dbloader.records.manifest import Manifest
    from dbloader.stores.base import Store
    from dbloader.stores.lmdb.handle import LMDBHandle
    from dbloader.stores.lmdb.shard_table import Shard
    from dbloader.stores.mongo.uri import MongoURI


def with_cache(
    store: Store | None, place: str | os.PathLike[str], cache: str | os.PathLike[str] | None, cache_bytes: int | None
) -> Store:
    """Return the store, or with ``cache`` a cached store of the place."""
    if cache is not None:
        return CachedStore(place, cache, max_bytes=cache_bytes)
    if cache_bytes is not None:
        raise OptionError(f"cache_bytes needs a cache (cache=FOLDER), got {cache_bytes!r}")
    assert store is not None
    return store


class CachedStore(LMDBStore):
    """A store whose shards are copied to a disk of this machine when they are needed.

    All processes of the machine share the folder. A separate process, the fetcher, fetches, verifies and removes
    shards. It ends when no process uses the cache.

    Args:
        place: A folder of shards, an LMDB file, or a place in MongoDB or in object storage.
        cache: The folder. It is created if it does not exist.
        max_bytes: Most bytes of the shards in the folder; None for no limit.
    """

    downloads = True

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
            self._origin = os.path.abspath(self.place)  # noqa: PTH100 - any str
        self.max_bytes = whole_number("cache_bytes", max_bytes, 1, none=True)
        try:
            self._path = os.path.abspath(checked_path(cache))  # noqa: PTH100 - any str
        except (PlaceError, TypeError) as error:
            raise OptionError("cache must be the path of a folder on this machine") from error
        self._reader, self._reader_pid = secrets.token_hex(8), os.getpid()
        self._digest: str | None = None  # of the opened store; copies of this object expect the same store
        self.handle = None

    def expect(self, needs: Iterable[Need], *, check: bool = True) -> None:
        """Announce the order in which this process and its workers will need shards from now on.

        Args:
            needs: When which shard is needed.
            check: Whether to check the size of the cache.

        Raises:
            OptionError: The cache is too small for this order; the message has the bytes that it needs.
        """
        if self._reader_pid != os.getpid():  # a rank that inherited the dataset has its own order
            self._reader, self._reader_pid, self.handle = secrets.token_hex(8), os.getpid(), None
        handle = self.open_handle()
        with env.gate:
            handle.ask("the order", expect=list(needs), check=check)

    @property
    def _uri(self) -> str:
        """The origin, with its credentials."""
        return self._origin if isinstance(self._origin, str) else self._origin.uri

    @override
    def open_handle(self) -> CachedHandle:
        handle = self.handle
        if not isinstance(handle, CachedHandle) or handle.pid != os.getpid():
            opening = {"place": self._uri, "limit": self.max_bytes, "known": self._digest is not None}
            try:
                with env.gate:
                    client = FetcherClient(self._path, self.place, {"open": opening, "reader": self._reader})
                    handle = CachedHandle(self._path, client)
            except lmdb.Error as error:
                raise translate(error, self._path) from error
            if self._digest not in (None, handle.manifest.digest):
                raise NotAStoreError(
                    f"the store at {self.place} has been replaced since it was opened: "
                    "open it again, with another cache"
                )
            self.handle, self._digest = handle, handle.manifest.digest
        return handle

    @override
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        if is_remote(self.place):
            return False
        with open_store(self._uri) as origin:
            return origin.is_at(place)

    @override
    def close(self) -> None:
        self.handle = self._digest = None

    @override
    def _damaged(self, index: int, what: str) -> DamagedRecordError:
        file = self.open_handle().file_of(index)
        return super()._damaged(index, f"{what} (in the cache: {file}; remove that file to have it fetched again)")

    def __repr__(self) -> str:
        return f"CachedStore({self.place!r}, {self._path!r})"


class CachedHandle(ShardedHandle):
    """An open cache, which fetches a missing shard when it is needed."""

    def __init__(self, path: str, client: FetcherClient) -> None:
        super().__init__(path, path)
        self._client = client
        weakref.finalize(self, client.close)

    def ask(self, what: str, **message: Any) -> None:
        """Send the fetcher a question and return its answer. Threads may call this at the same time."""
        with self._lock:
            self._client.ask(what, **message)

    def file_of(self, index: int) -> str:
        """Return the path of the shard with a record, in the cache."""
        return self._file(self._number_of(index))

    def _file(self, number: int) -> str:
        return os.path.join(self.place, SHARD_FOLDER, self._table.shards[number].name)  # noqa: PTH118 - any str

    @override
    def _open(self, *names: str, digest: str | None = None, index_of: Manifest | None = None) -> LMDBHandle:
        try:
            return super()._open(*names, digest=digest, index_of=index_of)
        except (NotAStoreError, DamagedStoreError) as error:
            file = os.path.join(self.place, *names)  # noqa: PTH118 - any str
            raise DamagedStoreError(f"{file}, in the cache, is damaged: remove it to have it fetched again") from error

    @override
    def _open_shard(self, number: int) -> LMDBHandle:
        self._client.ask(f"shard {number} ({self._table.shards[number].name})", need=number)
        for other in [other for other in self._opened if not os.path.exists(self._file(other))]:  # noqa: PTH110
            del self._opened[other]  # the fetcher removed it; while it is open, it takes space on the disk
        try:
            return super()._open_shard(number)
        finally:
            self._client.tell(opened=True)

    @override
    def check_files(self) -> None:
        """Do nothing: missing shards are fetched."""

    @override
    def _check_size(self, shard: Shard) -> None:
        """Do nothing: the fetcher has checked it. The size of a shard made from records is an estimate."""

    @override
    def prefetch(self, indices: Sequence[int]) -> None:
        super().prefetch([index for index in indices if self._number_of(index) in self._opened])
