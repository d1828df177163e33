"""Objects below a place in object storage: the only code that imports obstore.

obstore hangs in a process that was forked after its first use, so only the process of a conversion or a copy, and that
of a cache's fetcher, may import this module. In a forked process it raises an error.
"""

from __future__ import annotations

import errno
import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dbloader.errors import (
    OptionError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.remote.errors import is_temporary, status_of, translate
from dbloader.remote.places import WRITABLE, parse_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

Result = TypeVar("Result")

# What one request fetches or sends of a large object: 10,000 parts, S3's limit, are 80 GB.
PART_BYTES = 8 * 2**20
PARTS_AT_ONCE = 4
_PAGE = 1000  # objects of one answer to a listing
# A request fails for good when it has been repeated for so long; or a few times, if the server has never answered.
PATIENCE_S, FIRST_TRIES = 60.0, 3
_LONGEST_PAUSE_S = 10.0
_ENDPOINT = re.compile(r"https?://[\w.:@%\[\]-]+(/\S*)?")
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
        self._answered = False
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
        options: Any = {
            "client_options": {**_TIMEOUTS, "allow_http": self._may_be_http()},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=PATIENCE_S)},
        }
        try:
            if self.place.scheme not in WRITABLE:
                return HTTPStore.from_url(str(self.place), **options)
            return from_url(f"{self.place.scheme}://{self.place.bucket}", **options)
        except Exception as error:
            raise translate(error, self.place) from None

    def _may_be_http(self) -> bool:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        endpoint = next((os.environ[name] for name in names if os.environ.get(name)), "")
        if self.place.scheme == "s3" and endpoint and not _ENDPOINT.fullmatch(endpoint):  # obstore would panic
            raise OptionError(
                f"{self.place}: the environment variable AWS_ENDPOINT_URL must be an address such as https://host:9000"
            )
        return self.place.scheme == "http" or endpoint.startswith("http://")

    def _path(self, key: str) -> str:
        below = self.place.key if self.place.scheme in WRITABLE else ""
        return "/".join(filter(None, (below, key)))

    def _repeat(self, request: Callable[[], Result], key: str = "") -> Result:
        """Return what a request returns; repeat it with growing pauses while its failure is temporary."""
        deadline, pause = time.monotonic() + PATIENCE_S, 0.1
        tries = 0
        while True:
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

    def items(self, below: str = "") -> Iterator[Item]:
        """Yield all objects below a key, sorted as bytes; their keys begin with it."""
        stream: Any = None
        last: str | None = None

        def next_page() -> Sequence[Any]:
            nonlocal stream
            if stream is None:  # the first time, or again from where the listing failed
                stream = self._reading.list(self._path(below) or None, offset=last, chunk_size=_PAGE)
            try:
                return next(stream, ())
            except BaseException:
                stream = None
                raise

        while page := self._repeat(next_page, below):
            yield from map(self._item, page)
            last = page[-1]["path"]

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

    def get(self, key: str, etag: str = "") -> bytes:
        """Return the bytes of an object.

        Raises:
            ObjectChangedError: Its ETag is not the one that is given.
            StoreError: It does not exist, or cannot be read.
        """
        return self._get(key, etag)

    def _get(self, key: str, etag: str, span: tuple[int, int] | None = None) -> bytes:
        options: Any = ({"if_match": etag} if etag else {}) | ({"range": span} if span else {})
        return self._repeat(lambda: bytes(self._reading.get(self._path(key), options=options).bytes()), key)

    def get_to_file(self, key: str, path: str | os.PathLike[str]) -> int:
        """Copy an object into a new file, in several requests at once, and return its size.

        The file is removed if that fails.

        Raises:
            StoreError: The object does not exist or cannot be read, or the file cannot be written.
        """
        item = self.head(key)
        if item is None:
            raise StoreNotFoundError(f"{self.place}/{key} does not exist")
        try:
            return self._copy(item, path)
        except StoreError:
            raise
        except OSError as error:
            kind = StoreFullError if error.errno == errno.ENOSPC else StoreAccessError
            raise kind(f"a copy of {self.place}/{key} cannot be written: {error.strerror}") from error

    def _copy(self, item: Item, path: str | os.PathLike[str]) -> int:
        key = item.key
        with open(path, "xb") as file, ThreadPoolExecutor(PARTS_AT_ONCE) as threads:  # noqa: PTH123 - any path

            def copy(start: int) -> None:
                end = min(start + PART_BYTES, item.size)
                data = self._get(key, item.etag, (start, end))
                if len(data) != end - start:
                    raise StoreUnreachableError(f"{self.place}/{key}: the answer is cut short")
                os.pwrite(file.fileno(), data, start)

            try:
                [*threads.map(copy, range(0, item.size, PART_BYTES))]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                os.unlink(path)  # noqa: PTH108 - any path
                raise
        return item.size

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file to a key, in parts; nobody sees it before it is whole."""
        try:
            self._writing.put(self._path(key), path, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except Exception as error:
            raise translate(error, self.place, key) from None

    def put_if(self, key: str, data: bytes, replaces: Item | None) -> None:
        """Make an object if there is none, or replace exactly the one that is given.

        Raises:
            StoreExistsError: There is one, or another one.
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
