"""A record and its bytes: one BSON document, the same in every store.

The layout is fixed by docs/format.md, field by field and byte by byte. ``encode`` needs no index, so it can
run in parallel before the order of the records is settled; ``EncodedRecord.document`` adds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import bson
import numpy as np
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE
from bson.int64 import Int64
from isal.isal_zlib import crc32

from dbloader._describe import short_repr
from dbloader.errors import DamagedRecordError, FieldError
from dbloader.records.document import (
    CRC32,
    HEAD,
    ID,
    IMAGE,
    IMAGE_TAG,
    LENGTH,
    MAX_DOCUMENT,
    TAIL,
    UNREADABLE,
    bound_crc32,
    check_crc32,
    crc32_of,
    crc32_of_values,
    find_image,
    verify,
)
from dbloader.records.values import (
    INT64_MIN,
    UINT32_MAX,
    array_bytes,
    checked_int,
    checked_size,
    checked_str,
    pack,
    unpack,
    unpack_array,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD_FIELDS = ("name", "label", "image", "width", "height", "format", "damaged", "resized_from")
RESERVED_FIELDS = frozenset(STANDARD_FIELDS) | {"_id", "index", "crc32", "gridfs"}
# What a record may have in each of STANDARD_FIELDS once it is decoded.
_TYPES = ((str,), (int,), (bytes, np.ndarray), (int,), (int,), (str,), (str,), (list,))


@dataclass(slots=True)
class Record:
    """What is stored: an image with its label and name, and any further named values.

    All but the index may be absent (None), so that captions, masks or measurements can be stored alone.

    Attributes:
        name: Path of the source file below the root, POSIX.
        label: Class index or any other int64.
        image: The encoded file; or an array of any dtype and shape, kept as it is. While a store lends its records, a
            file may be a memoryview, and an array one that cannot be written to.
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
    image: bytes | memoryview | np.ndarray[Any, Any] | None = None
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
        crc32: CRC-32 of ``elements``, the record's content.
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
        """Return the whole BSON document of the record at an index."""
        length = HEAD.size + sum(map(len, self.elements)) + TAIL.size
        crc = bound_crc32(self.crc32, index)
        return b"".join((HEAD.pack(length, ID, index), *self.elements, TAIL.pack(CRC32, crc, 0)))


def encode(record: Record) -> EncodedRecord:
    """Return the stored form of a record; its index is ignored.

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
    if (size := HEAD.size + sum(map(len, elements)) + TAIL.size) > MAX_DOCUMENT:
        raise FieldError(f"record {record.name!r} has {size:,} bytes; a document has at most {MAX_DOCUMENT:,}")
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


def decode(document: bytes | memoryview, index: int, *, view: bool = False) -> Record:
    """Return the record in a document, after checking its length, index and CRC-32.

    Args:
        document: The BSON document.
        index: The index it was stored under.
        view: Whether the record's image may point into the document: a memoryview in place of bytes, an array that
            cannot be written to. Nothing else does.

    Raises:
        DamagedRecordError: The bytes are not those that were written.
    """
    verify(document, index)
    try:
        begin, end, image = find_image(document)
        if image is not None:
            # All else: bson would copy the image several times.
            document = b"".join((LENGTH.pack(len(document) - (end - begin)), document[4:begin], document[end:]))
        record = _record(bson.decode(document), index)
    except DamagedRecordError:
        raise
    except UNREADABLE as error:
        raise DamagedRecordError(f"its BSON cannot be decoded: {error}") from error
    if image is not None and image.is_array:
        record.image = unpack_array(image.data) if view else unpack_array(image.data).copy(order="K")
    elif image is not None:
        record.image = image.data if view else bytes(image.data)
    return record


def decode_values(values: Mapping[str, Any], index: int) -> Record:
    """Return the record in a document that a database driver has decoded, after the same checks.

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
    try:
        content = crc32_of_values(values)
    except UNREADABLE as error:
        raise DamagedRecordError(f"its values cannot be those that were written: {error}") from error
    check_crc32(content, index, values["crc32"] if isinstance(values["crc32"], Int64) else None)
    return _record(dict(values), index)


def _record(values: dict[str, Any], index: int) -> Record:
    """Make a record of a document's values, which it uses up.

    Raises:
        DamagedRecordError: The document has its CRC-32, but a value that no record has: another program wrote it.
    """
    if values.pop("_id", None) is None or values.pop("crc32", None) is None:  # another element has the same bytes
        raise DamagedRecordError("it has no _id or no crc32")
    for key, value in values.items():
        if value.__class__ is not bytes and value.__class__ is not str:
            values[key] = unpack(value)
    standard = [values.pop(key, None) for key in STANDARD_FIELDS]
    for key, value, types in zip(STANDARD_FIELDS, standard, _TYPES, strict=True):
        if value is not None and value.__class__ not in types:
            raise DamagedRecordError(f"its {key} has the type {type(value).__name__}")
    name, label, image, width, height, image_format, damaged, resized_from = standard
    for side in (width or 0, height or 0, *(resized_from or ())):
        if side.__class__ is not int or not 0 <= side <= UINT32_MAX:
            raise DamagedRecordError(f"it has a side of {side!r} pixels")
    if resized_from is not None:
        resized_from = tuple(resized_from)
        if len(resized_from) != 2:
            raise DamagedRecordError(f"its resized_from has {len(resized_from)} numbers, not 2")
    return Record(name, label, image, width, height, image_format, damaged, resized_from, values, int(index))


def encoded(document: bytes, index: int) -> EncodedRecord:
    """Return the record in a document as ``encode`` gave it, after checking it: to be stored once more as it is.

    Raises:
        DamagedRecordError: The bytes are not those that were written.
    """
    record = decode(document, index)
    image = record.image
    if image is not None and not isinstance(image, bytes):
        image = bson.decode(document)["image"]  # the bytes of an array
    return EncodedRecord(
        (document[HEAD.size : -TAIL.size],),
        crc32_of(document),
        record.name,
        record.label,
        record.width,
        record.height,
        len(image or b""),
        record.format,
        tuple(record.fields),
    )


def checked_field_name(name: object) -> str:
    """Return the name back if a further field of a record may have it.

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


def _image_element(image: Any) -> tuple[bytes, bytes]:
    """Return the element ``image`` as its head and the image, which bson would copy three times."""
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


def _checked_name(name: object) -> str:
    text = checked_str("name", name)
    if not text:
        raise FieldError("field 'name' may not be empty; leave it out (None) instead")
    return text
