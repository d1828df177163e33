"""The keys and values of an LMDB file, and what a layout is."""

from __future__ import annotations

import os
import threading
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import lmdb

from dbloader.errors import SourceError
from dbloader.sources.base import readable
from dbloader.stores.lmdb import env

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from dbloader.sources.base import Entry, Problem

    # Returns the number of values that are left out.
    Entries = Generator[Entry | Problem, None, int]

T = TypeVar("T")
_BLOCK = 1000
"""Keys of one transaction."""


class Pairs:
    """The keys and values of an LMDB file. Any thread may read them, and a forked child opens the file again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shared: env.Environment | None = None
        self._opening = threading.Lock()  # held inside the gate, so never during a fork

    def __reduce__(self) -> tuple[type[Pairs], tuple[Path]]:
        return Pairs, (self.path,)

    def check_size(self) -> None:
        """Raise SourceError if the file is cut short: to read what is missing would kill the process."""
        used = self._read(lambda txn: (self._open().info()["last_pgno"] + 1) * txn.stat()["psize"])
        size = self.path.stat().st_size
        if size < used:
            raise SourceError(f"{readable(self.path)}: is cut short: it has {size:,} bytes of {used:,}; copy it again")

    def count(self) -> int:
        """Return the number of values."""
        return self._read(lambda txn: int(txn.stat()["entries"]))

    def size(self, key: bytes) -> int | None:
        """Return the number of bytes of a value; None if there is no such key."""

        def size(txn: Any) -> int | None:
            value = txn.get(key)
            return None if value is None else len(value)

        return self._read(size)

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None if there is no such key."""

        def get(txn: Any) -> bytes | None:
            value = txn.get(key)
            return None if value is None else bytes(value)

        return self._read(get)

    def keys(self) -> Iterator[bytes]:
        """Yield all keys in LMDB's order."""
        last = b""
        while True:
            block = self._read(partial(_keys_from, last))
            yield from (key for key in block if key != last)
            if len(block) <= _BLOCK:
                return
            last = block[-1]

    def close(self) -> None:
        """Close the file, unless others in this process use it; the next use opens it again."""
        shared, self._shared = self._shared, None
        if shared is not None:
            env.release(shared)

    def _read(self, read: Callable[[Any], T]) -> T:
        """Return what ``read`` makes of a transaction whose values are views."""
        try:
            with env.gate, self._open().begin(buffers=True) as txn:
                return read(txn)
        except (lmdb.Error, OSError) as error:
            raise SourceError(f"{readable(self.path)}: cannot be read: {error}") from error

    def _open(self) -> Any:
        with self._opening:
            if self._shared is None or self._shared.pid != os.getpid():
                self._shared = env.acquire(os.fspath(self.path))
            return self._shared.env


def key_text(key: bytes) -> str:
    """Return a key as text: itself, or in hexadecimal if it is no text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()


def _keys_from(key: bytes, txn: Any) -> list[bytes]:
    cursor = txn.cursor()
    there = cursor.set_range(key) if key else cursor.first()
    return [bytes(found) for found in islice(cursor.iternext_nodup(values=False), _BLOCK + 1)] if there else []


class Layout(NamedTuple):
    """How to read the images of a file."""

    what: str  # for people
    entries: Callable[[Pairs], Entries]
    image: Callable[[bytes], bytes] = bytes  # returns the image file in a value; ValueError if it has no image
