"""Define a record, and encode it as a BSON document. All kinds of stores use the same encoding.

docs/format.md describes every byte. ``encode`` needs no index, so records can be encoded in parallel before their order
is known. ``EncodedRecord.document`` adds the index.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import bson
import numpy as np
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE
from bson.int64 import Int64
from isal.isal_zlib import crc32

from dbloader._describe import cut, short_repr
from dbloader._extensions import html
from dbloader.errors import FieldError, OptionError
from dbloader.records.document import CRC32, HEAD, ID, IMAGE, IMAGE_TAG, MAX_DOCUMENT, TAIL, bound_crc32
from dbloader.records.field_columns import column_value
from dbloader.records.values import INT64_MIN, UINT32_MAX, array_bytes, checked_int, checked_size, checked_str, pack

STANDARD_FIELDS = ("name", "label", "image", "width", "height", "format", "damaged", "resized_from")
RESERVED_FIELDS = frozenset(STANDARD_FIELDS) | {"_id", "index", "crc32", "gridfs"}

TILES = "tiles"
"""Name of the field that contains the lengths of an image's tiles."""

_REPR_LETTERS = 500  # most letters in the repr of a record


@dataclass(slots=True)
class Record:
    """An image with its label, name and further named values.

    Every field may be missing. A record may contain only captions, masks or measurements, for example.

    Attributes:
        name: Path of the image file below the converted folder, with slashes.
        label: Class index or any other int64.
        image: Bytes of an image file, or an array of any dtype and shape. In a record from ``Store.borrow``, the
            file may be a memoryview, and the array may be read-only.
        width: In pixels, as encoded (before any EXIF rotation).
        height: In pixels, as encoded.
        format: Pillow's name of the image format, such as ``"JPEG"``.
        damaged: What is damaged in the image, such as a missing end; None for an undamaged image.
        resized_from: Width and height in pixels before the conversion made the image smaller.
        fields: Extra fields, which users add: bytes, str, int (64 bit), float, bool, None, NumPy arrays and scalars,
            and lists and str-keyed dicts of these.
        index: Position in the store; None for a record that is not from a store.
    """

    name: str | None = None
    label: int | None = None
    image: bytes | memoryview | np.ndarray[Any, Any] | None = None
    width: int | None = None
    height: int | None = None
    format: str | None = None
    damaged: str | None = None
    resized_from: tuple[int, int] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    index: int | None = None

    def __repr__(self) -> str:
        fields = [("fields", _line(self.fields, _REPR_LETTERS))] if self.fields else []
        parts = [f"{name}={text}" for name, text in (*self._known(), *fields)]
        return f"Record({cut(', '.join(parts), _REPR_LETTERS - len('Record()'))})"

    def _repr_html_(self) -> str | None:
        """Return the record as HTML, with its image, for notebooks."""
        return html("record_html", self, self._facts)

    def _facts(self) -> list[tuple[str, str]]:
        return [*self._known(), *((name, _line(self.fields[name])) for name in self.fields)]

    def _known(self) -> list[tuple[str, str]]:
        """Return the names and short reprs of all attributes that are not None, without ``fields``."""
        names = ("index", *(name for name in self.__slots__ if name not in ("index", "fields")))
        return [(name, _line(value)) for name in names if (value := getattr(self, name)) is not None]


class _ShortRepr(reprlib.Repr):
    """Shows only the sizes of bytes and arrays, and shortens everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxdict = 6

    def repr_bytes(self, value: bytes, _: int) -> str:
        return f"<{len(value):,} bytes>"

    def repr_memoryview(self, value: memoryview, _: int) -> str:
        return f"<{value.nbytes:,} bytes>"

    def repr_ndarray(self, value: np.ndarray[Any, Any], _: int) -> str:
        return f"<array of {value.dtype}, shape {value.shape}>"


_SHORT = _ShortRepr()


def _line(value: object, most: int = 100) -> str:
    """Return a repr of any value in one line of at most ``most`` letters."""
    return cut(" ".join(map(str.strip, _SHORT.repr(value).split("\n"))), most)


class EncodedRecord(NamedTuple):
    """A record's BSON elements, and its values for the columns. The record has no index yet.

    Attributes:
        elements: The pieces of the document between ``_id`` and ``crc32``. The image's bytes are one piece, so they are
            copied only once, when ``document`` joins the pieces.
        crc32: CRC-32 of ``elements``.
        nbytes: Bytes of the image; 0 without an image.
        fields: The extra fields, each with its value for a column (``field_columns.column_value``).
    """

    elements: tuple[bytes | memoryview, ...]
    crc32: int
    name: str | None
    label: int | None
    width: int | None
    height: int | None
    nbytes: int
    format: str | None
    fields: dict[str, Any]

    def document(self, index: int, salt: int) -> bytes:
        """Return the BSON document of the record at ``index`` in a store with this salt."""
        length = HEAD.size + sum(map(len, self.elements)) + TAIL.size
        crc = bound_crc32(self.crc32, index, salt)
        return b"".join((HEAD.pack(length, ID, index), *self.elements, TAIL.pack(CRC32, crc, 0)))


def encode(record: Record) -> EncodedRecord:
    """Return the encoding of a record. The record's index is ignored.

    Raises:
        FieldError: The type or size of a value cannot be stored. The message names the field.
    """
    before: dict[str, Any] = {}
    if record.name is not None:
        before["name"] = checked_str("name", record.name)
        if not record.name:
            raise FieldError("field 'name' may not be empty; leave it out (None) instead")
    if record.label is not None:
        # The lowest int64 means "no label" in the label column.
        before["label"] = Int64(checked_int("label", record.label, INT64_MIN + 1))
    image = () if record.image is None else _image_element(record.image)
    after: dict[str, Any] = {}
    for side in ("width", "height"):
        pixels = getattr(record, side)
        if pixels is not None:
            after[side] = Int64(checked_int(side, pixels, 0, UINT32_MAX))
    for text in ("format", "damaged"):
        value = getattr(record, text)
        if value is not None:
            after[text] = checked_str(text, value)
    if record.resized_from is not None:
        after["resized_from"] = checked_size("resized_from", record.resized_from)
    for key, value in record.fields.items():
        after[checked_field_name(key)] = pack(key, value)
    try:
        elements = (bson.encode(before)[4:-1], *image, bson.encode(after)[4:-1])
    except (bson.errors.BSONError, OverflowError, ValueError) as error:  # all fields together have over 2 GiB
        raise FieldError(f"record {record.name!r} cannot be stored: {error}") from error
    if (size := HEAD.size + sum(map(len, elements)) + TAIL.size) > MAX_DOCUMENT:
        raise FieldError(f"record {record.name!r} has {size:,} bytes; a document has at most {MAX_DOCUMENT:,}")
    checksum = 0
    for part in elements:
        checksum = crc32(part, checksum)
    nbytes = len(image[1]) if image else 0
    return EncodedRecord(
        elements, checksum, record.name, record.label, record.width, record.height, nbytes, record.format,
        {key: column_value(after[key]) for key in record.fields},
    )  # fmt: skip


def checked_field_name(name: object) -> str:
    """Return the name of an extra field. Raise FieldError if the name is not allowed."""
    if not isinstance(name, str):
        raise FieldError(f"a field's name must be a str, got {name!r}")
    if name in RESERVED_FIELDS:
        raise FieldError(f"{name!r} is a reserved field; give your field another name")
    if not name or name.startswith("$") or "." in name or "\0" in name:
        # MongoDB gives dots and a leading dollar sign a special meaning.
        raise FieldError(f"a field's name may not be empty, contain '.' or NUL, or begin with '$', got {name!r}")
    return checked_str(name, name)


def checked_file_fields(names: object) -> tuple[str, ...]:
    """Check and return the option ``file_fields``: the names of extra fields that contain image files."""
    if isinstance(names, (tuple, list)) and len({*map(repr, names)}) == len(names):
        try:
            return tuple(map(checked_field_name, names))
        except FieldError as error:
            raise OptionError(f"file_fields (--file-field): {error}") from error
    raise OptionError(
        f"file_fields (--file-field) must be different names, such as ('mask', 'depth'), got {short_repr(names)}"
    )


def _image_element(image: Any) -> tuple[bytes, bytes]:
    """Return the element ``image`` as its head and its bytes. Encoding with bson would copy the bytes three times."""
    if not isinstance(image, (bytes, bytearray, memoryview, np.ndarray)):
        raise FieldError(f"field 'image' must be the bytes of an image file or an array, got {short_repr(image)}")
    data: bytes
    if isinstance(image, np.ndarray):
        data, subtype = array_bytes("image", image), USER_DEFINED_SUBTYPE
    else:
        data, subtype = pack("image", image), BINARY_SUBTYPE
    if len(data) > MAX_DOCUMENT:
        raise FieldError(f"field 'image' has {len(data):,} bytes; a document has at most {MAX_DOCUMENT:,}")
    return IMAGE.pack(IMAGE_TAG, len(data), subtype), data
