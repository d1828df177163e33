"""Decode records from their BSON documents, and refuse damaged documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import bson
import numpy as np
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE, Binary
from bson.int64 import Int64
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError
from dbloader.records.document import CRC32, HEAD, ID, IMAGE, IMAGE_TAG, LENGTH, TAIL, UNREADABLE, bound_crc32, crc32_of
from dbloader.records.field_columns import column_value
from dbloader.records.record import STANDARD_FIELDS, EncodedRecord, Record
from dbloader.records.values import UINT32_MAX, unpack, unpack_array

if TYPE_CHECKING:
    from collections.abc import Mapping

# The beginnings of BSON elements that may precede the image: a str and an int64.
_NAME, _LABEL = b"\x02name\x00", b"\x12label\x00"
# Allowed types of decoded STANDARD_FIELDS, in their order.
_TYPES = ((str,), (int,), (bytes, np.ndarray), (int,), (int,), (str,), (str,), (list,))


def decode(document: bytes | memoryview, index: int, salt: int, *, view: bool = False) -> Record:
    """Return the record in a document.

    Args:
        document: The whole BSON document.
        index: Position of the record in its store.
        salt: Salt of the store, which is part of the store's checksums (see Manifest).
        view: Do not copy the image: an image file is a memoryview of ``document``, an array is a read-only view.

    Raises:
        DamagedRecordError: Length, index or CRC-32 is wrong, or ``encode`` cannot have written the document.
        MemoryError: There is not enough memory; the record may be intact.
    """
    verify(document, index, salt)
    try:
        image = _find_image(document)
        if image is not None:
            # Decode without the image, which bson would copy several times.
            length = len(document) - (image.end - image.begin)
            document = b"".join((LENGTH.pack(length), document[LENGTH.size : image.begin], document[image.end :]))
        record = _record(bson.decode(document), index)
    except DamagedRecordError:
        raise
    except UNREADABLE as error:
        raise _decode_error(error, "its BSON cannot be decoded", index) from error
    if image is not None and image.is_array:
        record.image = unpack_array(image.data) if view else unpack_array(image.data).copy(order="K")
    elif image is not None:
        record.image = image.data if view else bytes(image.data)
    return record


def decode_values(values: Mapping[str, Any], index: int, salt: int) -> Record:
    """Return the record in a document that a database driver has decoded. Raise the same errors as ``decode``.

    MongoStore uses this function, because the driver decodes faster than ``decode``. To check the CRC-32, this function
    encodes the values again. BSON has only one encoding for each value that ``encode`` writes, so the bytes are equal.
    """
    keys = list(values)
    if len(keys) < 2 or keys[0] != "_id" or keys[-1] != "crc32":
        raise DamagedRecordError("it does not begin with its _id and end with its crc32")
    if not isinstance(values["_id"], Int64) or values["_id"] != index:
        found = f"{values['_id']!r} ({type(values['_id']).__name__})"
        raise DamagedRecordError(f"its _id is {found}, not {index} (Int64)")
    try:
        content = _crc32_of_values(values)
    except UNREADABLE as error:
        raise _decode_error(error, "its values have changed since they were written", index) from error
    _check_crc32(content, index, salt, values["crc32"] if isinstance(values["crc32"], Int64) else None)
    return _record(dict(values), index)


def decode_encoded(document: bytes | memoryview, index: int, salt: int) -> EncodedRecord:
    """Return the EncodedRecord that a document was made from. Raise the same errors as ``decode``.

    If the document is a memoryview, ``elements`` contains a view of the document.
    """
    record = decode(document, index, salt, view=True)
    image = record.image
    if isinstance(image, np.ndarray):
        image = bson.decode(document)["image"]  # the bytes of the .npy file
    _, stored, _ = TAIL.unpack_from(document, len(document) - TAIL.size)
    return EncodedRecord(
        (document[HEAD.size : -TAIL.size],), bound_crc32(stored, index, salt), record.name, record.label, record.width,
        record.height, len(image or b""), record.format,
        {key: column_value(value) for key, value in record.fields.items()},
    )  # fmt: skip


def verify(document: bytes | memoryview, index: int, salt: int) -> None:
    """Raise DamagedRecordError unless the length, the index and the CRC-32 of a document are right."""
    if len(document) < HEAD.size + TAIL.size:
        raise DamagedRecordError(f"it has only {len(document)} bytes")
    length, tag, stored_index = HEAD.unpack_from(document)
    if length != len(document) or tag != ID:
        raise DamagedRecordError(f"it does not begin with its length of {len(document)} bytes and its _id")
    if stored_index != index:
        raise DamagedRecordError(f"its _id is {stored_index}, not {index}")
    tag, stored_crc, end = TAIL.unpack_from(document, length - TAIL.size)
    if tag != CRC32 or end:
        raise DamagedRecordError("it does not end with its crc32")
    _check_crc32(crc32_of(document), index, salt, stored_crc)


def _check_crc32(content: int, index: int, salt: int, stored: object) -> None:
    """Raise DamagedRecordError unless the CRC-32 of the content matches the stored CRC-32."""
    crc = bound_crc32(content, index, salt)
    if stored != crc:
        what = f"{stored:08x}" if isinstance(stored, int) else repr(stored)
        raise DamagedRecordError(f"its CRC-32 is {crc:08x}, but {what} was stored with it")


def _crc32_of_values(values: Mapping[str, Any]) -> int:
    """Encode the values between ``_id`` and ``crc32`` again, and return their CRC-32."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    image, part = b"", before
    for key, value in values.items():
        if key == "image" and isinstance(value, bytes):  # Binary is a subclass of bytes
            subtype = value.subtype if isinstance(value, Binary) else BINARY_SUBTYPE
            image, part = IMAGE.pack(IMAGE_TAG, len(value), subtype), after
        elif key not in ("_id", "crc32"):
            part[key] = value
    crc = crc32(bson.encode(before)[4:-1])
    if part is after:  # the image is hashed without copying it
        crc = crc32(bson.encode(after)[4:-1], crc32(values["image"], crc32(image, crc)))
    return crc


class _Image(NamedTuple):
    """The element ``image`` of a document: an image file, or an array in a .npy file."""

    begin: int  # offset of the element in the document
    end: int
    data: memoryview  # the bytes of the file
    is_array: bool


def _find_image(document: bytes | memoryview) -> _Image | None:
    """Return the image in a document; None if no image is where ``encode`` puts it."""
    begin = HEAD.size
    if document[begin : begin + len(_NAME)] == _NAME:
        begin += len(_NAME)
        begin += LENGTH.size + LENGTH.unpack_from(document, begin)[0]
    if document[begin : begin + len(_LABEL)] == _LABEL:
        begin += len(_LABEL) + 8
    if len(document) - begin < IMAGE.size:
        return None
    tag, length, subtype = IMAGE.unpack_from(document, begin)
    data = begin + IMAGE.size
    end = data + length
    if tag != IMAGE_TAG or subtype not in (BINARY_SUBTYPE, USER_DEFINED_SUBTYPE) or not data <= end <= len(document):
        return None
    return _Image(begin, end, memoryview(document)[data:end], subtype == USER_DEFINED_SUBTYPE)


def _decode_error(error: Exception, what: str, index: int) -> Exception:
    """Return the error to raise: MemoryError if there was not enough memory, otherwise DamagedRecordError."""
    # bson wraps a MemoryError in an error without message, cause or context.
    if isinstance(error, MemoryError) or not str(error):
        return MemoryError(f"there is not enough memory to decode record {index}")
    return DamagedRecordError(f"{what}: {error}")


def _record(values: dict[str, Any], index: int) -> Record:
    """Check the types of the standard fields, and return the record. ``values`` becomes the record's ``fields``."""
    if values.pop("_id", None) is None or values.pop("crc32", None) is None:
        # The document contains _id and crc32, but bson has read one of them as part of an earlier, damaged element.
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
            raise DamagedRecordError(f"it has a width or height of {side!r} pixels")
    if resized_from is not None:
        resized_from = tuple(resized_from)
        if len(resized_from) != 2:
            raise DamagedRecordError(f"its resized_from has {len(resized_from)} numbers, not 2")
    return Record(name, label, image, width, height, image_format, damaged, resized_from, values, int(index))
