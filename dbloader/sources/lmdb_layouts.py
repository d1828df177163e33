"""The layouts of LMDB files that hold images: which keys are images, and what else is known of them."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.sources.base import Entry, Problem, readable
from dbloader.sources.lmdb_pairs import Layout, key_text
from dbloader.sources.lmdb_values import image_of, label_of, unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dbloader.sources.lmdb_pairs import Entries, Pairs


_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
_LOOKED_AT = 20
"""Values that are looked at to find an image."""


def find_layout(pairs: Pairs) -> Layout:
    """Return the layout of a file; SourceError if it is not known."""
    for find in _LAYOUTS:
        layout = find(pairs)
        if layout is not None:
            return layout
    where = readable(pairs.path)
    key = next(pairs.keys(), None)
    if key is None:
        raise SourceError(f"{where}: is an LMDB file without any value")
    value = short_repr((pairs.get(key) or b"")[:16])
    raise SourceError(
        f"{where}: is an LMDB file of no known layout: its first key is {short_repr(key)}, whose value begins with "
        f"{value}; read it with the program that made it, and hand its images to dbloader.write_store"
    )


def _is_image(value: bytes | None) -> bool:
    return value is not None and value.startswith(_IMAGES)


# --- texts to be read (CRNN, MORAN and others): num-samples, image-000000001, label-000000001 -------------------------


def _ocr(pairs: Pairs) -> Layout | None:
    if _number(pairs, b"num-samples") is None or pairs.size(b"image-%09d" % 1) is None:
        return None
    return Layout("images with texts (num-samples, image-000000001, label-000000001)", _ocr_entries)


def _ocr_entries(pairs: Pairs) -> Entries:
    count, left = pairs.count(), pairs.count() - 1
    said = _number(pairs, b"num-samples") or 0
    for number in range(1, min(said, count) + 1):
        key = b"image-%09d" % number
        if pairs.size(key) is None:
            yield Problem(key_text(key), "is not in the file")
            continue
        label = pairs.get(b"label-%09d" % number)
        left -= 1 + (label is not None)
        try:
            yield Entry(key_text(key), (key,), None, {} if label is None else {"text": label.decode()})
        except UnicodeDecodeError:
            yield Problem(key_text(key), "its text is not valid UTF-8")
    yield from _shortage("num-samples", said, count)
    return left


def _number(pairs: Pairs, key: bytes) -> int | None:
    """Return the value of a key if it is a number in digits; otherwise None."""
    value = pairs.get(key) or b""
    return int(value) if len(value) < 19 and value.isdigit() else None


def _shortage(key: str, said: int, count: int) -> Iterator[Problem]:
    if said > count:
        yield Problem(key, f"says {said:,}, but the file has only {count:,} values")


# --- pickles, and other values under __keys__ and __len__ -------------------------------------------------------------

_ABOUT = (b"__keys__", b"__len__")


def _serialized(pairs: Pairs) -> Layout | None:
    """Of values that are not pickles, SourceError says which they are."""
    about = pairs.get(b"__keys__") or pairs.get(b"__len__")
    values = (pairs.get(key) for key in islice(pairs.keys(), _LOOKED_AT) if key not in _ABOUT)
    first = next((value for value in values if value), b"")
    if _is_pickle(first) and (about is None or _is_pickle(about)):
        return Layout("pickled images and labels", _pickled_entries, _pickled_image)
    if about is None or _is_image(first):
        return None
    if about.startswith(b"\0\0\0\0"):  # numbers of tensors, then an IPC stream
        by, how = "pyarrow.serialize, which pyarrow no longer has", "pyarrow.deserialize of pyarrow 11 or older"
    elif about and about[0] in (*range(0x90, 0xA0), 0xDC, 0xDD):
        by, how = "msgpack, as tensorpack's LMDBSerializer does", "LMDBSerializer.load (tensorpack or dataflow)"
    else:
        return None
    raise SourceError(
        f"{readable(pairs.path)}: its values were serialized by {by}: read them with {how}, and hand each image "
        "and label to dbloader.write_store"
    )


def _is_pickle(value: bytes) -> bool:
    return value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5") and value.endswith(b".")


def _pickled_entries(pairs: Pairs) -> Entries:
    """Yield the entries in the order of keys that are numbers, as of DataLoader, or else in LMDB's."""
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
                yield Problem(key_text(key), "is not in the file")
            else:
                label, fields = label_of(unpickled(value))
                yield Entry(key_text(key), (key,), label, fields)
        except (FieldError, ValueError) as error:
            yield Problem(key_text(key), f"cannot be read: {error}")
    with suppress(ValueError):
        said = unpickled(pairs.get(b"__len__") or b"")
        if isinstance(said, int):
            yield from _shortage("__len__", said, count)
    return left


def _pickled_image(value: bytes) -> bytes:
    return image_of(unpickled(value))


# --- BasicSR: meta_info.txt beside data.mdb ---------------------------------------------------------------------------


def _basicsr(pairs: Pairs) -> Layout | None:
    """A line of the file has the name of an image, ``baboon.png (480,500,3) 1``; the key is without the extension."""
    file = pairs.path.with_name("meta_info.txt")
    if pairs.path.name != "data.mdb" or not file.is_file():
        return None
    return Layout("the images that meta_info.txt names", partial(_basicsr_entries, file))


def _basicsr_entries(file: Path, pairs: Pairs) -> Entries:
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


def _plain(pairs: Pairs) -> Layout | None:
    """LSUN and others: every value is an image file."""
    if any(_is_image(pairs.get(key)) for key in islice(pairs.keys(), _LOOKED_AT)):
        return Layout("image files under any keys", _plain_entries)
    return None


def _plain_entries(pairs: Pairs) -> Entries:
    for key in pairs.keys():  # noqa: SIM118 - not a dict
        yield Entry(key_text(key), (key,), None, {})
    return 0


_LAYOUTS: tuple[Callable[[Pairs], Layout | None], ...] = (
    _ocr,
    _serialized,
    _basicsr,
    _plain,
)
