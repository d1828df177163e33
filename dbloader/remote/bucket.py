"""Objects below a place in object storage: the only code that imports obstore.

obstore hangs in a process that was forked after its first use, so only the process of a conversion or a copy, and that
of a cache's fetcher, may make a Bucket. In a forked process that raises an error.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dbloader.errors import OptionError, StoreError, StoreExistsError, StoreNotFoundError, StoreUnreachableError
from dbloader.remote.errors import NotWholeError, is_temporary, status_of, translate
from dbloader.remote.places import WRITABLE, parse_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

Result = TypeVar("Result")

# What one request fetches or sends of a large object; more of a file over 80 GB, as S3 takes at most so many parts.
PART_BYTES, MAX_PARTS = 8 * 2**20, 10_000
PARTS_AT_ONCE = 4
# A request fails for good when it has been repeated for so long; or a few times, if the server has never answered.
PATIENCE_S, FIRST_TRIES = 60.0, 3
_LONGEST_PAUSE_S = 10.0
# Of 2 % that are not whole, one object in 3 * 10^8 has so many in a row.
_ANSWERS = 5
# The ETags of S3: the MD5 of an object, or of the MD5s of its parts. With keys of KMS they look the same.
_MD5 = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
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
        repeats: Requests that were repeated: the server was overloaded, a connection failed or an answer was not whole.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = parse_place(place)
        self.repeats = 0
        self._answered = self._closed = False
        self._has_md5: bool | None = None  # whether ETags are MD5s; None while unknown
        self._lock = threading.Lock()
        self._once = self._open(retries=0)  # repeated here, which counts and has a deadline
        self._often = self._open(retries=1_000)  # obstore repeats one part of a file, or one page of a listing

    def _open(self, retries: int) -> Any:
        global _used_by
        try:
            from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
        except ModuleNotFoundError:
            raise OptionError(
                f"{self.place} is in object storage, which needs another package: pip install 'dbloader[cloud]'"
            ) from None
        pid = os.getpid()
        if _used_by not in (0, pid):
            raise OptionError(
                f"{self.place}: object storage cannot be used in a process that was forked: start processes with "
                '"spawn" or "forkserver"'
            )
        _used_by = pid
        scheme, server = self.place.scheme, self.place.server
        if scheme == "s3" and server and not _SERVER.fullmatch(server):  # obstore would panic
            raise OptionError(
                f"{self.place}: the environment variable AWS_ENDPOINT_URL must be an address such as https://host:9000"
            )
        options: Any = {
            "client_options": {**_TIMEOUTS, "allow_http": server.startswith("http://")},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=PATIENCE_S)},
        }
        with self._translated():
            if scheme not in WRITABLE:
                return HTTPStore.from_url(str(self.place), **options)
            kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
            return kind(self.place.bucket, prefix=self.place.key or None, **options)

    @contextmanager
    def _translated(self, key: str = "") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise translate(error, self.place, key) from None

    def _repeat(self, request: Callable[[], Result], key: str = "") -> Result:
        """Return what a request returns; repeat it with growing pauses while its failure is temporary."""
        deadline, tries = time.monotonic() + PATIENCE_S, 0
        while True:
            if self._closed:
                raise StoreError(f"{self.place} was closed")
            try:
                result = request()
            except Exception as error:
                tries += 1
                pause = min(0.05 * 2**tries, _LONGEST_PAUSE_S)
                failed = translate(error, self.place, key)
                self._answered = self._answered or status_of(error) > 0
                if not is_temporary(error) or (not self._answered and tries >= FIRST_TRIES):
                    raise failed from None
                if time.monotonic() + pause > deadline:
                    raise StoreUnreachableError(f"{failed}; it was asked again for {PATIENCE_S:.0f} s") from None
                with self._lock:
                    self.repeats += 1
                # Not all at once: those that failed together would come again together.
                time.sleep(pause * random.uniform(0.5, 1.0))
            else:
                self._answered = True
                return result

    def close(self) -> None:
        """Make all further requests fail, also those of copies that threads have begun."""
        self._closed = True

    def items(self, below: str = "") -> list[Item]:
        """Return all objects below a key, in the server's order; their keys begin with it."""
        return self._repeat(lambda: [_item(meta) for page in self._often.list(below or None) for meta in page], below)

    def folders(self) -> tuple[list[str], list[Item]]:
        """Return the names directly below the place that have objects below them, and the objects directly there."""
        found = self._repeat(self._once.list_with_delimiter)
        return sorted(found["common_prefixes"]), [_item(meta) for meta in found["objects"]]

    def head(self, key: str) -> Item | None:
        """Return an object without its bytes; None if it does not exist."""
        with suppress(StoreNotFoundError):
            return _item(self._repeat(lambda: self._once.head(key), key))
        return None

    def get(self, key: str, etag: str = "", span: tuple[int, int] | None = None, *, size: int | None = None) -> bytes:
        """Return the bytes of an object, or those from the first of ``span`` to before its second.

        Args:
            key: Its key below the place.
            etag: Its ETag, if it is known.
            span: Numbers of bytes.
            size: Its number of bytes, if it is known.

        Raises:
            ObjectChangedError: Its ETag is not the one that is given.
            NotWholeError: It does not come whole.
            StoreError: It does not exist, or cannot be read.
        """
        options: Any = ({"if_match": etag} if etag else {}) | ({"range": span} if span else {})
        size = span[1] - span[0] if span else size

        def ask() -> tuple[bytes, str, str | None]:
            answer = self._once.get(key, options=options)
            data = bytes(answer.bytes())
            if size not in (None, len(data)):
                return data, "", None
            stated = "" if span else answer.meta["e_tag"] or ""
            return data, stated, etag_of([md5_of(data)]) if stated else ""

        return self.until_whole(lambda: self._repeat(ask, key), key)

    def until_whole(self, ask: Callable[[], tuple[Result, str, str | None]], key: str) -> Result:
        """Return what a function has fetched, and call it again while that is not whole.

        The function also returns the ETag that the server states, and the one that S3 gives the bytes that came; None
        if their number is wrong.

        Raises:
            NotWholeError: It never was.
        """
        before: str | None = None
        for _ in range(_ANSWERS):
            result, stated, found = ask()
            if found is not None and self._agree(stated.strip('"'), found, before):
                return result
            before = found
            with self._lock:
                self.repeats += 1
        raise NotWholeError(
            f"{self.place}/{key} does not come whole: {_ANSWERS} answers had another size or other bytes than the "
            "server states"
        )

    def _agree(self, stated: str, found: str, before: str | None) -> bool:
        """Return whether bytes have the stated ETag; or it is made in another way, and the same bytes came before."""
        if not _MD5.fullmatch(stated) or stated[32:] != found[32:]:  # of another kind, or of other parts
            return True
        if stated == found:
            self._has_md5 = True
        elif found == before and self._has_md5 is None:
            self._has_md5 = False
        return found in (stated, before) or self._has_md5 is False

    def put_file(self, key: str, path: Path, there: Item | None = None) -> None:
        """Copy a file to a key, in parts; nobody sees it before it is whole.

        Nothing is sent if the object that is ``there`` has the file's size and the ETag that S3 gives its bytes.
        """
        size = path.stat().st_size
        part = part_bytes(size)
        if there is not None and (there.size, there.etag.strip('"')) == (size, _etag(path, part)):
            return
        with self._translated(key):
            self._often.put(key, path, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

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
            self._often.put(key, data, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            if self.get(key) != data:  # else the answer to an earlier try was lost
                raise StoreExistsError(f"{self.place}/{key} was written by another process meanwhile") from None
        except Exception as error:
            raise translate(error, self.place, key) from None

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects that nobody needs, up to the first one that cannot be removed."""
        with suppress(StoreError), self._translated():
            for key in keys:
                self._often.delete(key)


def _item(meta: Any) -> Item:
    return Item(meta["path"], meta["size"], meta["e_tag"] or "", meta["version"])


def part_bytes(size: int) -> int:
    """Return how many bytes one request fetches or sends of an object of some size."""
    return max(PART_BYTES, -(-size // MAX_PARTS))


def etag_of(parts: Sequence[bytes]) -> str:
    """Return the ETag that S3 gives an object, from the MD5s of its parts: the one MD5, or the MD5 of all of them."""
    return parts[0].hex() if len(parts) == 1 else f"{md5_of(b''.join(parts)).hex()}-{len(parts)}"


def _etag(path: Path, part: int) -> str:
    with path.open("rb") as file:
        return etag_of([md5_of(data) for data in iter(lambda: file.read(part), b"")])


def md5_of(data: bytes) -> bytes:
    """Return the MD5 of some bytes."""
    return hashlib.md5(data, usedforsecurity=False).digest()
