"""Images in LMDB files that other programs made: one file, or a folder with ``data.mdb``.

Every layout is found by its keys, and by the first bytes of some values: see ``lmdb_layouts``. The file is only read,
without LMDB's locks: no other program may write to it meanwhile.
"""

from __future__ import annotations

import os
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.base import Problem, Source, full_path, readable
from dbloader.sources.lmdb_layouts import find_layout
from dbloader.stores.lmdb import env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.base import Entry
    from dbloader.sources.lmdb_layouts import Layout

T = TypeVar("T")
# mdb.c: a page begins with 16 bytes, then a meta page with this number.
_MAGIC_AT, _MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")
_BLOCK = 1000
"""Keys of one transaction."""


def find_lmdb(place: str | os.PathLike[str]) -> Path | None:
    """Return the LMDB file that a place names; None if it is not one."""
    try:
        path = Path(place)
        path = path / "data.mdb" if path.is_dir() else path
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return path if file.read(_MAGIC_AT + 4)[_MAGIC_AT:] == _MAGIC else None
    except (OSError, ValueError):
        return None  # scan says what is wrong with it


def read_lmdb(place: str | os.PathLike[str], path: Path) -> LMDBSource:
    """Return the source of the images in an LMDB file; SourceError if it has none, or they cannot be read."""
    pairs = Pairs(path)
    try:
        pairs.check_size()
        return LMDBSource(place, pairs, find_layout(pairs))
    except BaseException:
        pairs.close()
        raise


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
            block = self._read(lambda txn, last=last: _keys_from(txn, last))
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


def _keys_from(txn: Any, key: bytes) -> list[bytes]:
    cursor = txn.cursor()
    there = cursor.set_range(key) if key else cursor.first()
    return [bytes(found) for found in islice(cursor.iternext_nodup(values=False), _BLOCK + 1)] if there else []


class LMDBSource(Source):
    """The images in an LMDB file; made by ``read_lmdb``."""

    def __init__(self, place: str | os.PathLike[str], pairs: Pairs, layout: Layout) -> None:
        super().__init__(Path(os.sep), ())
        self._place, self._pairs, self.layout = place, pairs, layout

    @property
    @override
    def place(self) -> str:
        return full_path(self._place)

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        left_out = yield from self.layout.entries(self._pairs)
        of = f"{left_out:,} other value{'s' * (left_out != 1)} of the file left out"
        self.warnings = (f"{of}: it was read as {self.layout.what}",) if left_out else ()

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for entry in entries:
            try:
                size = self._pairs.size(entry.path)
                hold(size or 0)  # outside of a transaction: it may wait, and a fork waits for transactions
                value = self._pairs.get(entry.path)
                yield Problem(entry.name, "is not in the file") if value is None else self.layout.image(value)
            except SourceError as error:
                yield Problem(entry.name, str(error))
            except ValueError as error:
                yield Problem(entry.name, f"holds no image: {error}")

    @override
    def close(self) -> None:
        self._pairs.close()
