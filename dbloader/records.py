"""A record and its bytes: one BSON document, the same in every store.

The layout is fixed by docs/format.md, field by field and byte by byte. ``encode`` needs no index, so it can
run in parallel before the order of the records is settled; ``EncodedRecord.document`` adds it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import bson
import numpy as np
from bson.binary import BINARY_SUBTYPE, Binary
from bson.int64 import Int64
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError, FieldError
from dbloader.values import INT64_MIN, UINT32_MAX, checked_int, checked_size, checked_str, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD_FIELDS = ("name", "label", "image", "width", "height", "format", "damaged", "resized_from")
RESERVED_FIELDS = frozenset(STANDARD_FIELDS) | {"_id", "index", "crc32", "gridfs"}

# A document is HEAD, the elements in between, TAIL. HEAD: int32 length of the document, then the element _id.
_HEAD = struct.Struct("<i5sq")
_ID = b"\x12_id\x00"
# TAIL: the element crc32 and the document's closing zero.
_TAIL = struct.Struct("<7sqB")
_CRC32 = b"\x12crc32\x00"
# The element image up to its bytes: its name, their number, their subtype.
_IMAGE = struct.Struct("<7siB")
_MAX_DOCUMENT = 2**31 - 1  # BSON's length is an int32


@dataclass(slots=True)
class Record:
    """What is stored: an image with its label and name, and any further named values.

    All but the index may be absent (None), so that captions, masks or measurements can be stored alone.

    Attributes:
        name: Path of the source file below the root, POSIX.
        label: Class index or any other int64.
        image: The encoded file; or an array of any dtype and shape, kept as it is.
        width: Pixels, as encoded (before any EXIF rotation).
        height: Pixels, as encoded.
        format: Pillow's name of the image format, such as ``"JPEG"``.
        damaged: What is missing of an image that was stored nevertheless.
        resized_from: Width and height in pixels that the image had before it was made smaller and encoded again.
        fields: Further values: bytes, str, int (64 bit), float, bool, None, numpy arrays and scalars, and lists
            and str-keyed dicts of these.
        index: Position in the store; None before the record is stored.
    """

    name: str | None = None
    label: int | None = None
    image: bytes | np.ndarray[Any, Any] | None = None
    width: int | None = None
    height: int | None = None
    format: str | None = None
    damaged: str | None = None
    resized_from: tuple[int, int] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    index: int | None = None


class EncodedRecord(NamedTuple):
    """A record's BSON elements, without its index, and the facts that its store keeps as columns.

    Attributes:
        elements: The document between the elements ``_id`` and ``crc32``, in parts, so that an image is copied once
            only, into the document.
        crc32: CRC-32 of ``elements``.
        nbytes: Bytes of the image, 0 without one.
    """

    elements: tuple[bytes, ...]
    crc32: int
    name: str | None
    label: int | None
    width: int | None
    height: int | None
    nbytes: int
    format: str | None
    fields: tuple[str, ...]

    def document(self, index: int) -> bytes:
        """Gives the whole BSON document of the record at an index."""
        length = _HEAD.size + sum(map(len, self.elements)) + _TAIL.size
        return b"".join((_HEAD.pack(length, _ID, index), *self.elements, _TAIL.pack(_CRC32, self.crc32, 0)))


def encode(record: Record) -> EncodedRecord:
    """Gives the stored form of a record; its index is ignored.

    Raises:
        FieldError: A value has a type or size that a record cannot hold; the message names the field.
    """
    before: dict[str, Any] = {}
    if record.name is not None:
        before["name"] = _checked_name(record.name)
    if record.label is not None:
        # The least int64 stands for "no label" in the label column.
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
    except (bson.errors.BSONError, OverflowError, ValueError) as error:  # fields of 2 GiB together
        raise FieldError(f"record {record.name!r} cannot be stored: {error}") from error
    if (size := _HEAD.size + sum(map(len, elements)) + _TAIL.size) > _MAX_DOCUMENT:
        raise FieldError(f"record {record.name!r} has {size:,} bytes; a document has at most {_MAX_DOCUMENT:,}")
    checksum = 0
    for part in elements:
        checksum = crc32(part, checksum)
    return EncodedRecord(
        elements,
        checksum,
        record.name,
        record.label,
        record.width,
        record.height,
        len(image[1]) if image else 0,
        record.format,
        tuple(record.fields),
    )


def decode(document: bytes | memoryview, index: int) -> Record:
    """Gives the record in a document, after checking its length, index and CRC-32.

    Args:
        document: The BSON document; nothing of the result points into it.
        index: The index it was stored under.

    Raises:
        DamagedRecordError: The bytes are not those that were written.
    """
    _verify(document, index)
    try:
        values = bson.decode(document)
    except (bson.errors.BSONError, ValueError) as error:
        raise DamagedRecordError(f"its BSON cannot be decoded: {error}") from error
    return _record(values, index)


def decode_values(values: Mapping[str, Any], index: int) -> Record:
    """Gives the record in a document that a database driver has decoded, after the same checks.

    Decoding is what drivers do fastest. The CRC-32 is that of the values encoded again, which gives the bytes that
    were written: BSON has one encoding for each value that ``encode`` writes.

    Args:
        values: The document as bson decodes it, in the order of its elements.
        index: The index it was stored under.

    Raises:
        DamagedRecordError: The values are not those that were written.
    """
    keys = list(values)
    if len(keys) < 2 or keys[0] != "_id" or keys[-1] != "crc32":
        raise DamagedRecordError("it does not begin with its _id and end with its crc32")
    if not isinstance(values["_id"], Int64) or values["_id"] != index:
        raise DamagedRecordError(f"it is record {values['_id']!r}")
    crc = crc32_of_values(values)
    if not isinstance(values["crc32"], Int64) or values["crc32"] != crc:
        raise DamagedRecordError(f"its CRC-32 is {crc:08x}, not {values['crc32']!r}")
    return _record(dict(values), index)


def _record(values: dict[str, Any], index: int) -> Record:
    """Makes a record of a document's values, which it uses up."""
    del values["_id"], values["crc32"]
    for key, value in values.items():
        if value.__class__ is not bytes and value.__class__ is not str:
            values[key] = unpack(value)
    pop = values.pop
    name, label, image, width, height, image_format = [pop(key, None) for key in STANDARD_FIELDS[:6]]
    record = Record(name, label, image, width, height, image_format, fields=values, index=int(index))
    if "damaged" in values:
        record.damaged = pop("damaged")
    if "resized_from" in values:
        record.resized_from = tuple(pop("resized_from"))
    return record


def encoded(document: bytes, index: int) -> EncodedRecord:
    """Gives the record in a document as ``encode`` gave it, after checking it: to be stored once more as it is.

    Raises:
        DamagedRecordError: The bytes are not those that were written.
    """
    record = decode(document, index)
    image = record.image
    if image is not None and not isinstance(image, bytes):
        image = bson.decode(document)["image"]  # the bytes of an array
    return EncodedRecord(
        (document[_HEAD.size : -_TAIL.size],),
        crc32_of(document),
        record.name,
        record.label,
        record.width,
        record.height,
        len(image or b""),
        record.format,
        tuple(record.fields),
    )


def crc32_of(document: bytes | memoryview) -> int:
    """Computes a document's CRC-32 anew: of the bytes between its elements ``_id`` and ``crc32``."""
    return crc32(memoryview(document)[_HEAD.size : -_TAIL.size])


def crc32_of_values(values: Mapping[str, Any]) -> int:
    """Computes the CRC-32 of a document that is decoded, from its values between ``_id`` and ``crc32``."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    image, part = b"", before
    for key, value in values.items():
        if key == "image" and isinstance(value, bytes):  # a Binary too; copied nowhere
            subtype = value.subtype if isinstance(value, Binary) else BINARY_SUBTYPE
            image, part = _IMAGE.pack(b"\x05image\x00", len(value), subtype), after
        elif key not in ("_id", "crc32"):
            part[key] = value
    crc = crc32(bson.encode(before)[4:-1])
    if part is after:
        crc = crc32(bson.encode(after)[4:-1], crc32(values["image"], crc32(image, crc)))
    return crc


def checked_field_name(name: object) -> str:
    """Gives the name back if a further field of a record may have it.

    Raises:
        FieldError: It may not.
    """
    if not isinstance(name, str):
        raise FieldError(f"a field's name must be a str, got {name!r}")
    if name in RESERVED_FIELDS:
        raise FieldError(f"{name!r} is a field of every record's own; give yours another name")
    if not name or name.startswith("$") or "." in name or "\0" in name:
        # MongoDB gives dots and a leading dollar sign a meaning of their own.
        raise FieldError(f"a field's name may not be empty, hold '.' or NUL or begin with '$', got {name!r}")
    return checked_str(name, name)


def _verify(document: bytes | memoryview, index: int) -> None:
    if len(document) < _HEAD.size + _TAIL.size:
        raise DamagedRecordError(f"it has only {len(document)} bytes")
    length, tag, stored_index = _HEAD.unpack_from(document)
    if length != len(document) or tag != _ID:
        raise DamagedRecordError(f"it does not begin with its length of {len(document)} bytes and its _id")
    if stored_index != index:
        raise DamagedRecordError(f"it is record {stored_index}")
    tag, stored_crc, end = _TAIL.unpack_from(document, length - _TAIL.size)
    if tag != _CRC32 or end:
        raise DamagedRecordError("it does not end with its crc32")
    if crc32_of(document) != stored_crc:
        raise DamagedRecordError(f"its CRC-32 is {crc32_of(document):08x}, not {stored_crc:08x}")


def _image_element(image: Any) -> tuple[bytes, bytes]:
    """Gives the element ``image`` as its head and the image, which bson would copy three times."""
    if not isinstance(image, (bytes, bytearray, memoryview, np.ndarray)):
        raise FieldError(f"field 'image' must be the bytes of an image file or an array, got {image!r:.100}")
    data = pack("image", image)
    if len(data) > _MAX_DOCUMENT:
        raise FieldError(f"field 'image' has {len(data):,} bytes; a document has at most {_MAX_DOCUMENT:,}")
    subtype = data.subtype if isinstance(data, Binary) else BINARY_SUBTYPE
    return _IMAGE.pack(b"\x05image\x00", len(data), subtype), data


def _checked_name(name: object) -> str:
    text = checked_str("name", name)
    if not text:
        raise FieldError("field 'name' may not be empty; leave it out (None) instead")
    return text
