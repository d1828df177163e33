"""Read images from LMDB files of other programs: one file, or a folder with ``data.mdb``.

The keys, and the first bytes of some values, show the layout. This module reads without LMDB's locks. No other program
may write to the file meanwhile.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb
from typing_extensions import override

from dbloader._describe import counted, short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.ext.sources.pickles import image_of, label_of, unpickled
from dbloader.sources.base import Entry, Problem, Source, Tally, full_path, readable
from dbloader.stores.lmdb import env

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    # The generator returns the number of values that it left out.
    Entries = Generator[Entry | Problem, None, int]

_KEYS_AT_ONCE = 1000  # number of keys that one transaction reads
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
_ABOUT = (b"__keys__", b"__len__")  # keys of metadata that tutorials write beside the pickled images
_LOOKED_AT = 20  # number of values to check for an image


class LMDBSource(Source):
    """Reads the images in an LMDB file. Raises SourceError for an unreadable file, or one without images."""

    def __init__(self, place: str | os.PathLike[str], path: Path) -> None:
        super().__init__(Path(os.sep), (), place=full_path(place))
        with ExitStack() as after_error:
            self._pairs = Pairs(path)
            after_error.callback(self._pairs.close)
            self._pairs.check_size()
            self._layout = _find_layout(self._pairs)
            after_error.pop_all()

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        left_out = yield from self._layout.entries(self._pairs)
        what = f"{counted(left_out, 'other value')} of the file left out: it was read as {self._layout.what}"
        return Tally([what] if left_out else [])

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for entry in entries:
            (key,) = entry.location
            try:
                size = self._pairs.size(key)
                hold(size or 0)  # outside of a transaction, which delays forks: `hold` may wait long
                value = self._pairs.get(key)
                yield Problem(entry.name, "is not in the file") if value is None else self._layout.image(value)
            except SourceError as error:
                yield Problem(entry.name, str(error))
            except ValueError as error:
                yield Problem(entry.name, f"holds no image: {error}")

    @override
    def close(self) -> None:
        self._pairs.close()


# --- keys and values --------------------------------------------------------------------------------------------------


class Pairs:
    """Reads the keys and values of an LMDB file. Threads may share an instance."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self._file = env.acquire(path)

    def check_size(self) -> None:
        """Raise SourceError if the file is cut short: reading a missing page would kill the process."""
        with self._transaction() as txn:
            used = (self._file.env.info()["last_pgno"] + 1) * txn.stat()["psize"]
        size = self.path.stat().st_size
        if size < used:
            raise SourceError(f"{readable(self.path)}: is cut short: it has {size:,} bytes of {used:,}; copy it again")

    def count(self) -> int:
        """Return the number of values."""
        with self._transaction() as txn:
            return int(txn.stat()["entries"])

    def size(self, key: bytes) -> int | None:
        """Return the number of bytes of a value; None without the key."""
        with self._transaction() as txn:
            return None if (value := txn.get(key)) is None else len(value)

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None without the key."""
        with self._transaction() as txn:
            return None if (value := txn.get(key)) is None else bytes(value)

    def keys(self) -> Iterator[bytes]:
        """Yield all keys in LMDB's order. Each transaction reads a thousand keys."""
        last = b""
        while True:
            with self._transaction() as txn:
                cursor = txn.cursor()
                keys = cursor.iternext_nodup(values=False) if not last or cursor.set_range(last) else ()
                block = [bytes(key) for key in islice(keys, _KEYS_AT_ONCE) if key != last]
            if not block:
                return
            yield from block
            last = block[-1]

    def close(self) -> None:
        """Close the file, unless other objects in this process have it open."""
        env.release(self._file)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Begin a transaction. Its values are views of the file. They are valid until the transaction ends."""
        with self._errors(), self._file.env.begin(buffers=True) as txn:
            yield txn

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Delay forks of this process while a ``with`` block uses the file. Turn errors into SourceErrors."""
        try:
            with env.gate:
                yield
        except (lmdb.Error, OSError) as error:
            raise SourceError(f"{readable(self.path)}: cannot be read: {error}") from error


def _key_text(key: bytes) -> str:
    """Return a key as text, or in hexadecimal if it is not printable UTF-8."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()


# --- layouts ----------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """How to read the images of a file."""

    what: str  # description in messages
    entries: Callable[[Pairs], Entries]
    image: Callable[[bytes], bytes] = bytes  # returns the image file in a value, or raises ValueError


def _find_layout(pairs: Pairs) -> _Layout:
    """Return the layout of a file; SourceError if it is not known."""
    if _number(pairs, b"num-samples") is not None and pairs.size(b"image-%09d" % 1) is not None:
        return _Layout("images with texts (num-samples, image-000000001, label-000000001)", _ocr_entries)
    keys = (key for key in islice(pairs.keys(), _LOOKED_AT) if key not in _ABOUT)
    values = filter(None, map(pairs.get, keys))  # read one at a time: a value may be large
    first = next(values, b"")
    about = pairs.get(b"__keys__") or pairs.get(b"__len__")
    if _is_pickle(first) and (about is None or _is_pickle(about)):
        return _Layout("pickled images and labels", _pickled_entries, lambda value: image_of(unpickled(value)))
    names = pairs.path.with_name("meta_info.txt")
    if pairs.path.name == "data.mdb" and names.is_file():
        return _Layout("the images that meta_info.txt names", partial(_basicsr_entries, names))
    if any(value.startswith(_IMAGES) for value in chain([first], values)):
        return _Layout("image files under any keys", _plain_entries)
    where = readable(pairs.path)
    key = next(pairs.keys(), None)
    if key is None:
        raise SourceError(f"{where}: is an LMDB file without any value")
    begin = short_repr((pairs.get(key) or b"")[:16])
    raise SourceError(
        f"{where}: is an LMDB file of no known layout: its first key is {short_repr(key)}, and the value begins with "
        f"{begin}; read the file with the program that made it, and hand the images to dbloader.write_store"
    )


# --- text recognition (CRNN, MORAN and others): num-samples, image-000000001, label-000000001 -------------------------


def _ocr_entries(pairs: Pairs) -> Entries:
    count = pairs.count()
    left = count - 1
    said = _number(pairs, b"num-samples") or 0
    for number in range(1, min(said, count) + 1):
        key = b"image-%09d" % number
        if pairs.size(key) is None:
            yield Problem(_key_text(key), "is not in the file")
            continue
        label = pairs.get(b"label-%09d" % number)
        left -= 1 + (label is not None)
        try:
            yield Entry(_key_text(key), (key,), None, {} if label is None else {"text": label.decode()})
        except UnicodeDecodeError:
            yield Problem(_key_text(key), "its text is not valid UTF-8")
    yield from _shortage("num-samples", said, count)
    return left


def _number(pairs: Pairs, key: bytes) -> int | None:
    """Return the value of a key if it is a number in digits; otherwise None."""
    value = pairs.get(key) or b""
    return int(value) if len(value) < 19 and value.isdigit() else None


def _shortage(key: str, said: int, count: int) -> Iterator[Problem]:
    if said > count:
        yield Problem(key, f"is {said:,}, but the file has only {counted(count, 'value')}")


# --- pickles, with or without __keys__ and __len__ --------------------------------------------------------------------


def _is_pickle(value: bytes) -> bool:
    return value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5") and value.endswith(b".")


def _pickled_entries(pairs: Pairs) -> Entries:
    """Yield the entries with the keys 0, 1, 2, … in this order. Without a key 0, yield all entries in LMDB's order."""
    count = pairs.count() - sum(pairs.size(key) is not None for key in _ABOUT)
    left = count
    numbered = (b"%d" % number for number in range(count))
    for key in numbered if pairs.size(b"0") is not None else pairs.keys():
        if key in _ABOUT:
            continue
        value = pairs.get(key)
        left -= value is not None
        try:
            if value is None:
                yield Problem(_key_text(key), "is not in the file")
            else:
                label, fields = label_of(unpickled(value))
                yield Entry(_key_text(key), (key,), label, fields)
        except (FieldError, ValueError) as error:
            yield Problem(_key_text(key), f"cannot be read: {error}")
    with suppress(ValueError):
        said = unpickled(pairs.get(b"__len__") or b"")
        if isinstance(said, int):
            yield from _shortage("__len__", said, count)
    return left


# --- BasicSR: meta_info.txt beside data.mdb ---------------------------------------------------------------------------


def _basicsr_entries(file: Path, pairs: Pairs) -> Entries:
    """Yield the images in a file with lines such as ``baboon.png (480,500,3) 1``. Keys usually lack the extension."""
    left = pairs.count()
    with file.open(encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            name = re.split(r" \(| [0-9]+$", line.strip())[0]
            if not name:
                continue
            keys = (name.rpartition(".")[0], name)
            key = next((key for text in keys if text and pairs.size(key := text.encode()) is not None), None)
            left -= key is not None
            yield Problem(name, "is not in the file") if key is None else Entry(name, (key,), None, {})
    return max(left, 0)


# --- image files, under any keys --------------------------------------------------------------------------------------


def _plain_entries(pairs: Pairs) -> Entries:
    """Yield all values, as in LSUN's files."""
    for key in pairs.keys():  # noqa: SIM118 - not a dict
        yield Entry(_key_text(key), (key,), None, {})
    return 0
