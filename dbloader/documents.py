"""Where things are in a record's document: a BSON document of which the image is the largest part by far.

The layout is fixed by docs/format.md, byte by byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import bson
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE, Binary
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A document is HEAD, the elements in between, TAIL. HEAD: int32 length of the document, then the element _id.
HEAD = struct.Struct("<i5sq")
ID = b"\x12_id\x00"
# TAIL: the element crc32 and the document's closing zero.
TAIL = struct.Struct("<7sqB")
CRC32 = b"\x12crc32\x00"
# The element image up to its bytes: its name, their number, their subtype.
IMAGE = struct.Struct("<7siB")
IMAGE_TAG = b"\x05image\x00"
# The elements that may stand before it, up to their values: a str, which follows its length, and an int64.
_NAME, _LABEL = b"\x02name\x00", b"\x12label\x00"
_STR = LENGTH = struct.Struct("<i")
MAX_DOCUMENT = 2**31 - 1  # BSON's length is an int32


def crc32_of(document: bytes | memoryview) -> int:
    """Computes a document's CRC-32 anew: of the bytes between its elements ``_id`` and ``crc32``."""
    return crc32(memoryview(document)[HEAD.size : -TAIL.size])


def crc32_of_values(values: Mapping[str, Any]) -> int:
    """Computes the CRC-32 of a document that is decoded, from its values between ``_id`` and ``crc32``."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    image, part = b"", before
    for key, value in values.items():
        if key == "image" and isinstance(value, bytes):  # a Binary too; copied nowhere
            subtype = value.subtype if isinstance(value, Binary) else BINARY_SUBTYPE
            image, part = IMAGE.pack(IMAGE_TAG, len(value), subtype), after
        elif key not in ("_id", "crc32"):
            part[key] = value
    crc = crc32(bson.encode(before)[4:-1])
    if part is after:
        crc = crc32(bson.encode(after)[4:-1], crc32(values["image"], crc32(image, crc)))
    return crc


def verify(document: bytes | memoryview, index: int) -> None:
    """Compares a document's length, index and CRC-32 with its bytes.

    Raises:
        DamagedRecordError: They are not those that were written.
    """
    if len(document) < HEAD.size + TAIL.size:
        raise DamagedRecordError(f"it has only {len(document)} bytes")
    length, tag, stored_index = HEAD.unpack_from(document)
    if length != len(document) or tag != ID:
        raise DamagedRecordError(f"it does not begin with its length of {len(document)} bytes and its _id")
    if stored_index != index:
        raise DamagedRecordError(f"it is record {stored_index}")
    tag, stored_crc, end = TAIL.unpack_from(document, length - TAIL.size)
    if tag != CRC32 or end:
        raise DamagedRecordError("it does not end with its crc32")
    if crc32_of(document) != stored_crc:
        raise DamagedRecordError(f"its CRC-32 is {crc32_of(document):08x}, not {stored_crc:08x}")


class Image(NamedTuple):
    """An image as it lies in its document, and whether it is the bytes of an array or those of an image file."""

    data: memoryview
    is_array: bool


def find_image(document: bytes | memoryview) -> tuple[int, int, Image | None]:
    """Gives where the element of the image begins and ends, and the image.

    It is None where there is none, or it does not stand where ``records.encode`` puts it.
    """
    at = HEAD.size
    for tag, lengths in ((_NAME, _STR), (_LABEL, None)):
        if document[at : at + len(tag)] == tag:
            at += len(tag)
            at += 8 if lengths is None else lengths.size + lengths.unpack_from(document, at)[0]
    if len(document) - at < IMAGE.size:
        return at, at, None
    tag, length, subtype = IMAGE.unpack_from(document, at)
    end = at + IMAGE.size + length
    if tag != IMAGE_TAG or subtype not in (BINARY_SUBTYPE, USER_DEFINED_SUBTYPE) or end > len(document):
        return at, at, None
    return at, end, Image(memoryview(document)[at + IMAGE.size : end], subtype == USER_DEFINED_SUBTYPE)
