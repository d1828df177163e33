"""Decoding records from their BSON documents, after verifying them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from bson.int64 import Int64

from dbloader.errors import DamagedRecordError
from dbloader.records.document import (
    HEAD,
    LENGTH,
    TAIL,
    UNREADABLE,
    check_crc32,
    crc32_of,
    crc32_of_values,
    find_image,
    find_name,
    verify,
)
from dbloader.records.record import STANDARD_FIELDS, EncodedRecord, Record
from dbloader.records.values import UINT32_MAX, unpack, unpack_array

if TYPE_CHECKING:
    from collections.abc import Mapping

# Types that the values of STANDARD_FIELDS may have once they are decoded.
_TYPES = ((str,), (int,), (bytes, np.ndarray), (int,), (int,), (str,), (str,), (list,))


def decode(document: bytes | memoryview, index: int, salt: int, *, view: bool = False) -> Record:
    """Return the record in a document, after checking its length, index and CRC-32; else raise DamagedRecordError.

    ``salt`` is in the manifest of the record's store. A lack of memory is a MemoryError, and says nothing of the
    record. With ``view``, its image may point into the document: a memoryview instead of bytes, or a read-only array.
    """
    verify(document, index, salt)
    try:
        begin, end, image = find_image(document)
        if image is not None:
            # The image is left out: bson would copy it several times.
            document = b"".join((LENGTH.pack(len(document) - (end - begin)), document[4:begin], document[end:]))
        record = _record(bson.decode(document), index)
    except DamagedRecordError:
        raise
    except UNREADABLE as error:
        raise _explained(error, "its BSON cannot be decoded", index, find_name(document)) from error
    if image is not None and image.is_array:
        record.image = unpack_array(image.data) if view else unpack_array(image.data).copy(order="K")
    elif image is not None:
        record.image = image.data if view else bytes(image.data)
    return record


def decode_values(values: Mapping[str, Any], index: int, salt: int) -> Record:
    """Return the record in a document that a database driver has decoded, after the same checks.

    The driver decodes faster than this module can. The CRC-32 is computed from the values encoded again, which gives
    the bytes that were written: BSON has one encoding for each value that ``encode`` writes.
    """
    keys = list(values)
    if len(keys) < 2 or keys[0] != "_id" or keys[-1] != "crc32":
        raise DamagedRecordError("it does not begin with its _id and end with its crc32")
    if not isinstance(values["_id"], Int64) or values["_id"] != index:
        raise DamagedRecordError(f"it is record {values['_id']!r}")
    try:
        content = crc32_of_values(values)
    except UNREADABLE as error:
        raise _explained(error, "its values cannot be those that were written", index, values.get("name")) from error
    check_crc32(content, index, salt, values["crc32"] if isinstance(values["crc32"], Int64) else None)
    return _record(dict(values), index)


def decode_encoded(document: bytes | memoryview, index: int, salt: int) -> EncodedRecord:
    """Return the record in a document as ``encode`` returned it, after the same checks; a view of a memoryview."""
    record = decode(document, index, salt, view=True)
    image = record.image
    if isinstance(image, np.ndarray):
        image = bson.decode(document)["image"]  # the bytes of an array
    return EncodedRecord(
        (document[HEAD.size : -TAIL.size],), crc32_of(document), record.name, record.label, record.width,
        record.height, len(image or b""), record.format, tuple(record.fields),
    )  # fmt: skip


def _explained(error: Exception, what: str, index: int, name: object) -> Exception:
    """Return the error to raise: that a record is damaged, or that there is not enough memory."""
    # bson wraps a MemoryError in an error without message, cause or context.
    if isinstance(error, MemoryError) or not str(error):
        return MemoryError(f"there is not enough memory to decode record {index} ({name or 'without a name'})")
    return DamagedRecordError(f"{what}: {error}")


def _record(values: dict[str, Any], index: int) -> Record:
    """Return the record of a document's values, if ``encode`` can have written them; modifies ``values``."""
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
