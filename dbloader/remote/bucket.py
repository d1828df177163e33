"""Objects below a place in object storage: the only code that imports obstore.

obstore hangs in a process that was forked after its first use, so only the process of a conversion or a copy, and that
of a cache's fetcher, may import this module. In a forked process it raises an error.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dbloader.errors import OptionError, StoreError, StoreExistsError, StoreNotFoundError, StoreUnreachableError
from dbloader.remote.errors import is_temporary, status_of, translate
from dbloader.remote.places import WRITABLE, parse_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

Result = TypeVar("Result")

# What one request fetches or sends of a large object; more of a file over 80 GB, as S3 takes at most so many parts.
PART_BYTES, MAX_PARTS = 8 * 2**20, 10_000
PARTS_AT_ONCE = 4
_PAGE = 1000  # objects of one answer to a listing
# A request fails for good when it has been repeated for so long; or a few times, if the server has never answered.
PATIENCE_S, FIRST_TRIES = 60.0, 3
_LONGEST_PAUSE_S = 10.0
_SERVER = re.compile(r"https?://[\w.:@%\[\]-]+(/\S*)?")
# A part takes 5 minutes at 28 kB/s. A connection that brings nothing for 30 s is given up.
_TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "5m"}
_used_by = 0  # pid of the process that has used obstore


class Item(NamedTuple):
    """An object.

    Attributes:
        key: Its key below the place.
        size: Its number of bytes.
        etag: Changes with its content; "" if the server gives none.
        version: Its number in Google's cloud, which takes it in place of the ETag; else None.
    """

    key: str
    size: int
    etag: str
    version: str | None = None


class Bucket:
    """The objects below a place; threads may share it.

    Attributes:
        place: The place.
        repeats: Requests that were repeated, since the server was overloaded or a connection failed.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = parse_place(place)
        self.repeats = 0
        self._answered = self._closed = False
        self._lock = threading.Lock()
        self._reading = self._open(retries=0)  # repeated here, which counts and has a deadline
        self._writing = self._open(retries=10)  # obstore repeats one part, not the whole file

    def _open(self, retries: int) -> Any:
        global _used_by
        try:
            from obstore.store import HTTPStore, from_url
        except ModuleNotFoundError:
            raise OptionError(
                f"{self.place} is in object storage, which needs another package, for Python 3.11 or newer: "
                "pip install 'dbloader[cloud]'"
            ) from None
        pid = os.getpid()
        if _used_by not in (0, pid):
            raise OptionError(
                f"{self.place}: object storage cannot be used in a process that was forked: start processes with "
                '"spawn" or "forkserver"'
            )
        _used_by = pid
        server = self.place.server
        if self.place.scheme == "s3" and server and not _SERVER.fullmatch(server):  # obstore would panic
            raise OptionError(
                f"{self.place}: the environment variable AWS_ENDPOINT_URL must be an address such as https://host:9000"
            )
        options: Any = {
            "client_options": {**_TIMEOUTS, "allow_http": server.startswith("http://")},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=PATIENCE_S)},
        }
        try:
            if self.place.scheme not in WRITABLE:
                return HTTPStore.from_url(str(self.place), **options)
            return from_url(f"{self.place.scheme}://{self.place.bucket}", **options)
        except Exception as error:
            raise translate(error, self.place) from None

    def _path(self, key: str) -> str:
        below = self.place.key if self.place.scheme in WRITABLE else ""
        return "/".join(filter(None, (below, key)))

    def _repeat(self, request: Callable[[], Result], key: str = "") -> Result:
        """Return what a request returns; repeat it with growing pauses while its failure is temporary."""
        deadline, pause = time.monotonic() + PATIENCE_S, 0.1
        tries = 0
        while True:
            if self._closed:
                raise StoreError(f"{self.place} was closed")
            try:
                result = request()
            except Exception as error:
                tries += 1
                failed = translate(error, self.place, key)
                self._answered = self._answered or status_of(error) > 0
                if not is_temporary(error) or (not self._answered and tries >= FIRST_TRIES):
                    raise failed from None
                if time.monotonic() + pause > deadline:
                    raise StoreUnreachableError(f"{failed}; it was tried {tries} times in {PATIENCE_S:.0f} s") from None
                with self._lock:
                    self.repeats += 1
                # Not all at once: those that failed together would come again together.
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._answered = True
                return result

    def close(self) -> None:
        """Make all further requests fail, also those of copies that threads have begun."""
        self._closed = True

    def items(self, below: str = "") -> Iterator[Item]:
        """Yield all objects below a key, in the server's order; their keys begin with it."""
        stream: Any = None
        last, in_order = "", True

        def next_page() -> Sequence[Any]:
            nonlocal stream
            if stream is None:  # the first time, or again from where the listing failed
                # A server of S3 goes on in its own order; elsewhere obstore may leave out all lesser keys itself.
                if not in_order and self.place.scheme != "s3":
                    raise StoreError("the listing failed, and it cannot go on, as its keys are not sorted")
                stream = self._reading.list(self._path(below) or None, offset=last or None, chunk_size=_PAGE)
            try:
                return next(stream, ())
            except BaseException:
                stream = None
                raise

        while page := self._repeat(next_page, below):
            yield from map(self._item, page)
            for meta in page:
                in_order, last = in_order and last < meta["path"], meta["path"]

    def folders(self) -> tuple[list[str], list[Item]]:
        """Return the names directly below the place that have objects below them, and the objects directly there."""
        found = self._repeat(lambda: self._reading.list_with_delimiter(self._path("") or None))
        names = sorted(self._below(prefix) for prefix in found["common_prefixes"])
        return names, [self._item(meta) for meta in found["objects"]]

    def head(self, key: str) -> Item | None:
        """Return an object without its bytes; None if it does not exist."""
        with suppress(StoreNotFoundError):
            return self._item(self._repeat(lambda: self._reading.head(self._path(key)), key))
        return None

    def get(self, key: str, etag: str = "", span: tuple[int, int] | None = None) -> bytes:
        """Return the bytes of an object, or those from the first of ``span`` to before its second.

        Raises:
            ObjectChangedError: Its ETag is not the one that is given.
            StoreError: It does not exist, or cannot be read.
        """
        options: Any = ({"if_match": etag} if etag else {}) | ({"range": span} if span else {})
        return self._repeat(lambda: bytes(self._reading.get(self._path(key), options=options).bytes()), key)

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file to a key, in parts; nobody sees it before it is whole."""
        try:
            part = max(PART_BYTES, -(-path.stat().st_size // MAX_PARTS))
            self._writing.put(self._path(key), path, chunk_size=part, max_concurrency=PARTS_AT_ONCE)
        except Exception as error:
            raise translate(error, self.place, key) from None

    def put_if(self, key: str, data: bytes, replaces: Item | None) -> None:
        """Make a new object, or replace exactly the one that is given.

        Raises:
            StoreExistsError: An object is there, or not the one to be replaced.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create"
        if replaces is not None:
            mode = {"e_tag": replaces.etag} | ({"version": replaces.version} if replaces.version else {})
        try:
            self._writing.put(self._path(key), data, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            if self.get(key) == data:
                return  # the answer to an earlier try was lost
            raise StoreExistsError(f"{self.place}/{key} was written by another process meanwhile") from None
        except Exception as error:
            raise translate(error, self.place, key) from None

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        for key in keys:
            try:
                self._writing.delete(self._path(key))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise translate(error, self.place, key) from None

    def _below(self, path: str) -> str:
        below = self._path("")
        return path.removeprefix(f"{below}/") if below else path

    def _item(self, meta: Any) -> Item:
        return Item(self._below(meta["path"]), meta["size"], meta["e_tag"] or "", meta["version"])
