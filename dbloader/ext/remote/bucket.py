"""Read and write objects in object storage. No other module imports obstore.

If a process has used obstore and then forks, obstore hangs in the forked child. Making a Bucket in such a child raises
OptionError. So Buckets are made only in the main process of a conversion or copy, and in a process that fills a cache.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dbloader._machine import NO_ROOM
from dbloader._places import WRITABLE, parse_place
from dbloader.errors import (
    OptionError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.ext.remote.credentials import profile_credentials
from dbloader.ext.remote.errors import NotWholeError, is_temporary, status_of, translate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

Result = TypeVar("Result")

_OWN = ".bson"
# A large object is fetched and sent in parts. S3 allows 10,000 parts, so files over 80 GB have larger parts.
PART_BYTES, MAX_PARTS = 8 * 2**20, 10_000
_AT_ONCE = 4
# A failing request is repeated for this time. If the server has never answered, the third failure causes a warning or
# an error (see ``Bucket.waits``).
PATIENCE_S, _FIRST_TRIES = 60.0, 3
_LONGEST_PAUSE_S = 10.0
# An object is requested up to this many times, until the answer is complete. If 2 % of all answers are incomplete, one
# object in 3 * 10^8 has five incomplete answers.
_ANSWERS = 5
_EQUAL_ANSWERS = 3  # this many equal answers are accepted, even if the server states the MD5 of other bytes
# The form of S3's ETags. ETags are MD5s (see `_etag_of`), except for objects that are encrypted with a KMS key.
_MD5 = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
_SERVER = re.compile(r"https?://[\w.:@%\[\]-]+(/\S*)?")
# A request may take 5 minutes, long enough for a part at 28 kB/s. A connection without bytes for 30 s is closed.
_TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "5m"}
_used_by = 0  # ID of the process that has used obstore; 0 before the first use


class Item(NamedTuple):
    """An object.

    Attributes:
        key: The object's key, relative to the URL of the Bucket.
        size: Number of bytes.
        etag: A value that changes with the content; "" if the server gives no ETag.
        modified: When the object was written, by the server's clock.
        version: The generation of an object in Google Cloud Storage; None on other servers. To replace only
            an unchanged object, Google compares the generation, not the ETag.
    """

    key: str
    size: int
    etag: str
    modified: datetime
    version: str | None = None


class Bucket:
    """The objects below a URL such as ``s3://bucket/folder``. Threads may share a Bucket.

    Attributes:
        place: The URL as text.
        parts: The scheme, bucket and key of the URL.
        waits: If the server has not answered in three tries, whether to warn and go on trying, or to raise an error.
        has_md5: Whether ETags are MD5s; None if unknown.
        differing: Keys of objects that were accepted, although their ETag looks like the MD5 of other bytes.
    """

    def __init__(self, place: str | os.PathLike[str], *, waits: bool = True) -> None:
        self.parts = parse_place(place)
        self.place = str(self.parts)
        self.waits, self._answered, self._closed = waits, False, False
        self.has_md5: bool | None = None
        self.differing: set[str] = set()
        # These two clients share no connection, for `_until_whole`. `_repeat` counts and repeats their requests.
        self._once, self._other = self._open(retries=0), self._open(retries=0)
        self._often = self._open(retries=1_000)  # for uploads and listings; obstore repeats their requests

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
                'the multiprocessing method "spawn" or "forkserver"'
            )
        _used_by = pid
        scheme, server = self.parts.scheme, self.parts.server
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
                return HTTPStore.from_url(self.place, **options)
            if scheme == "s3" and (profile := profile_credentials()):
                options["credential_provider"] = profile
            kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
            return kind(self.parts.bucket, prefix=self.parts.key or None, **options)

    @contextmanager
    def _translated(self, key: str = "") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise translate(error, self.parts, key) from None

    def _repeat(self, request: Callable[[], Result], key: str = "") -> Result:
        """Return the result of a request. After a temporary failure, pause and repeat the request. The pauses grow."""
        deadline, tries = time.monotonic() + PATIENCE_S, 0
        while True:
            if self._closed:
                raise StoreError(f"{self.place} was closed")
            try:
                result = request()
            except Exception as error:
                tries += 1
                pause = min(0.05 * 2**tries, _LONGEST_PAUSE_S)
                failed = translate(error, self.parts, key)
                self._answered = self._answered or status_of(error) > 0
                is_silent = not self._answered and tries >= _FIRST_TRIES
                if not is_temporary(error) or (is_silent and not self.waits):
                    raise failed from None
                if is_silent:
                    self._answered = True  # one warning is enough
                    warnings.warn(f"{failed}; the request is repeated for {PATIENCE_S:.0f} s", stacklevel=3)
                if time.monotonic() + pause > deadline:
                    raise StoreUnreachableError(f"{failed}; the request was repeated for {PATIENCE_S:.0f} s") from None
                # Random, because requests that fail together should not be repeated together.
                time.sleep(pause * random.uniform(0.5, 1.0))
            else:
                self._answered = True
                return result

    def close(self) -> None:
        """Make all further requests fail, including requests of a running ``fetch``."""
        self._closed = True

    def items(self, below: str = "") -> list[Item]:
        """Return all objects below a key, in the server's order."""
        return self._repeat(lambda: [_item(meta) for page in self._often.list(below or None) for meta in page], below)

    def folders(self) -> tuple[list[str], list[Item]]:
        """Return the names of the folders directly below the Bucket's URL, and the objects directly below this URL."""
        found = self._repeat(self._once.list_with_delimiter)
        return sorted(found["common_prefixes"]), [_item(meta) for meta in found["objects"]]

    def head(self, key: str) -> Item | None:
        """Return an object's Item; None if the object does not exist."""
        with suppress(StoreNotFoundError):
            try:
                return _item(self._repeat(lambda: self._once.head(key), key))
            except StoreAccessError:
                self.get(key, span=(0, 1))  # unlike an answer to HEAD, an answer to GET has a code with the reason
                raise
        return None

    def get(self, key: str, etag: str = "", span: tuple[int, int] | None = None, *, size: int | None = None) -> bytes:
        """Return the bytes of an object.

        Args:
            key: The object's key, relative to the URL of the Bucket.
            etag: The expected ETag; "" accepts any ETag.
            span: The offset of the first byte to return, and the offset after the last byte; None returns all bytes.
            size: The object's number of bytes; None if unknown.

        Raises:
            ObjectChangedError: The object has another ETag.
            NotWholeError: All answers are incomplete.
            StoreError: The object does not exist, or cannot be read.
        """
        options: Any = {}
        if etag:
            options["if_match"] = etag
        if span:
            options["range"] = span
            size = span[1] - span[0]

        def ask() -> tuple[bytes, str, str | None]:
            answer = self._once.get(key, options=options)
            data = bytes(answer.bytes())
            if size not in (None, len(data)):
                return data, "", None
            stated = "" if span else answer.meta["e_tag"] or ""
            found = _etag_of([_md5(data)]) if stated else ""
            # Without a matching MD5, compare the size of the answer with the size of the object.
            if size is None and key.endswith(_OWN) and (not stated or stated.strip('"') != found):
                return data, stated, found if self._once.head(key)["size"] == len(data) else None
            return data, stated, found

        return self._until_whole(lambda: self._repeat(ask, key), key)

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object to a new file, with several requests at the same time.

        Raises:
            StoreError: The object does not exist or cannot be read, or the file cannot be written. The file may be
                incomplete then.
        """
        item = self.head(key)
        if item is None:
            raise StoreNotFoundError(f"{self.place}/{key} does not exist")
        try:
            with path.open("xb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
                copy = partial(self._copy_part, item, file.fileno())
                starts = range(0, item.size, _part_bytes(item.size))

                def ask() -> tuple[None, str, str]:
                    return None, item.etag, _etag_of([*threads.map(copy, starts)])  # an error cancels the other parts

                self._until_whole(ask, key)
        except StoreError:
            raise
        except OSError as error:
            kind = StoreFullError if error.errno in NO_ROOM else StoreAccessError
            raise kind(f"a copy of {self.place}/{key} cannot be written: {error.strerror}") from error

    def _copy_part(self, item: Item, descriptor: int, start: int) -> bytes:
        """Copy the part that begins at the offset ``start``, and return the MD5 of the part."""
        end = min(start + _part_bytes(item.size), item.size)
        part = self.get(item.key, item.etag, (start, end))
        data = memoryview(part)
        while data:  # an almost full disk may accept only some of the bytes
            written = os.pwrite(descriptor, data, start)
            data, start = data[written:], start + written
        return _md5(part)

    def _until_whole(self, ask: Callable[[], tuple[Result, str, str | None]], key: str) -> Result:
        """Call ``ask`` until its answer is complete, and return the result.

        ``ask`` fetches bytes and returns three values: the result, the ETag from the server, and the ETag that S3 would
        give these bytes. The third value is None if the number of bytes is wrong.
        """
        counts, client = Counter[str](), self._once
        for number in range(1, _ANSWERS + 1):
            if number == _EQUAL_ANSWERS and self._once is client:  # ask over another connection
                self._once, self._other = self._other, self._once
            result, stated, found = ask()
            if found is not None and self._agree(key, stated.strip('"'), found, counts):
                return result
        raise NotWholeError(
            f"{self.place}/{key} cannot be read whole: {_ANSWERS} answers had another size or MD5 than the server "
            "states"
        )

    def _agree(self, key: str, stated: str, found: str, counts: Counter[str]) -> bool:
        """Return False if the ETags show that an answer may be incomplete, otherwise True.

        ``stated`` is the server's ETag, and ``found`` is the ETag that S3 would give the bytes. ``counts`` is
        {``found``: number of answers}. If ``found`` equals ``stated``, the answer is complete. Otherwise, accept the
        third equal answer and add the key to ``differing``, because the ETag may be no MD5. For later objects, the
        first answer is then enough, unless an ETag of this server has matched.
        """
        if not _MD5.fullmatch(stated) or stated[32:] != found[32:]:
            return True  # cannot compare: the server's ETag is no MD5, or the upload had another number of parts
        if stated == found:
            self.has_md5 = True
            self.differing.discard(key)
            return True
        counts[found] += 1
        if self.has_md5 is not False and counts[found] < _EQUAL_ANSWERS:
            return False
        self.has_md5 = bool(self.has_md5)
        self.differing.add(key)
        return True

    def put_file(self, key: str, path: Path, existing: Item | None = None) -> None:
        """Upload a file as an object. The object appears when it is complete.

        Nothing is sent if the object ``existing`` has the file's size and the ETag that S3 would give the file.
        """
        size = path.stat().st_size
        part = _part_bytes(size)
        if existing is not None and (existing.size, existing.etag.strip('"')) == (size, _file_etag(path, part)):
            return
        # Send a file of one part by `_once` first, because `_often` also repeats requests that can never succeed.
        once = iter([self._once] if size <= part else [])
        self._repeat(lambda: next(once, self._often).put(key, path, chunk_size=part, max_concurrency=_AT_ONCE), key)

    def put_if(self, key: str, data: bytes, replaces: Item | None) -> None:
        """Create an object, or replace the object ``replaces``. Nothing is written if another process was faster.

        Raises:
            StoreExistsError: Another process has written the key.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create"
        client = self._often if replaces else self._once  # S3 refuses concurrent updates; `_often` tries again
        if replaces is not None:
            mode = {"e_tag": replaces.etag} | ({"version": replaces.version} if replaces.version else {})

        def put() -> bool:
            with suppress(AlreadyExistsError, PreconditionError):
                client.put(key, data, mode=mode)
                return True
            return False

        if not self._repeat(put, key) and self.get(key) != data:  # equal data are from an earlier try of this call
            raise StoreExistsError(f"another process has written {self.place}/{key}")

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects that nobody needs. Stop silently at the first failure."""
        with suppress(StoreError), self._translated():
            for key in keys:
                self._often.delete(key)


def _item(meta: Any) -> Item:
    return Item(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"], meta["version"])


def _part_bytes(size: int) -> int:
    """Return how many bytes of an object with ``size`` bytes one request fetches or sends."""
    return max(PART_BYTES, -(-size // MAX_PARTS))


def _etag_of(parts: Sequence[bytes]) -> str:
    """Return the ETag that S3 gives an object: the MD5 of its only part, or the MD5 of the MD5s of its parts."""
    return parts[0].hex() if len(parts) == 1 else f"{_md5(b''.join(parts)).hex()}-{len(parts)}"


def _file_etag(path: Path, part: int) -> str:
    with path.open("rb") as file:
        return _etag_of([_md5(data) for data in iter(lambda: file.read(part), b"")])


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
