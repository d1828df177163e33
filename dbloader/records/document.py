"""The layout of a record's BSON document; docs/format.md describes every byte."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import bson
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE, Binary
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A document is HEAD, elements, TAIL. HEAD: int32 length of the document, then the element _id.
HEAD = struct.Struct("<i5sq")
ID = b"\x12_id\x00"
# TAIL: the element crc32, then the document's closing zero byte.
TAIL = struct.Struct("<7sqB")
CRC32 = b"\x12crc32\x00"
# The element image without its bytes: its name, the number of bytes, their subtype.
IMAGE = struct.Struct("<7siB")
IMAGE_TAG = b"\x05image\x00"
# The elements that may come before it: a str, which follows its length, and an int64.
_NAME, _LABEL = b"\x02name\x00", b"\x12label\x00"
_STR = LENGTH = struct.Struct("<i")
MAX_DOCUMENT = 2**31 - 1  # BSON's length is an int32
UNREADABLE = (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError, MemoryError, struct.error)
"""Exceptions that decoding BSON raises for bytes that another program wrote."""


def crc32_of(document: bytes | memoryview) -> int:
    """Return the CRC-32 of a record's content: the bytes between its elements ``_id`` and ``crc32``."""
    return crc32(memoryview(document)[HEAD.size : -TAIL.size])


def bound_crc32(content: Any, index: Any, salt: int) -> Any:
    """Return the element ``crc32`` of a record: the CRC-32 of its content, XOR index (its low 32 bits), XOR salt.

    The content's CRC-32 can be computed before the index is known. Content at another index, or in a store with another
    salt, does not match. Content and index may be int64 arrays.
    """
    return content ^ (index & 0xFFFF_FFFF) ^ salt


def seal(values: Mapping[str, Any], number: int = 0, salt: int = 0) -> bytes:
    """Return a BSON document of values and an element ``crc32`` after them, which ``open_sealed`` checks.

    The check includes ``number``, the document's position among others of its kind, and the salt of its store.
    """
    elements = bson.encode(values)[LENGTH.size : -1]
    return b"".join(
        (
            LENGTH.pack(LENGTH.size + len(elements) + TAIL.size),
            elements,
            TAIL.pack(CRC32, bound_crc32(crc32(elements), number, salt), 0),
        )
    )


def open_sealed(document: bytes | memoryview, number: int = 0, salt: int = 0) -> dict[str, Any]:
    """Return the values of a document from ``seal``; a tuple comes back as a list, an int of 64 bits as an Int64.

    Raises:
        ValueError: The document is not what ``seal`` returned for this number and salt.
    """
    end = len(document) - TAIL.size
    if end < LENGTH.size:
        raise ValueError(f"it has only {len(document)} bytes")
    tag, stored, _ = TAIL.unpack_from(document, end)
    crc = bound_crc32(crc32(memoryview(document)[LENGTH.size : end]), number, salt)
    if tag != CRC32 or stored != crc:
        raise ValueError(f"its CRC-32 is {crc:08x}, which is not what its end says")
    try:
        values: dict[str, Any] = bson.decode(document)
    except UNREADABLE as error:
        raise ValueError(f"its BSON cannot be decoded: {error}") from error
    if values.pop("crc32", None) is None:  # another element ends with the same bytes
        raise ValueError("it has no crc32")
    return values


def crc32_of_values(values: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a decoded record's content: of its values between ``_id`` and ``crc32``, encoded again."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    image, part = b"", before
    for key, value in values.items():
        if key == "image" and isinstance(value, bytes):  # or a Binary; without copying it
            subtype = value.subtype if isinstance(value, Binary) else BINARY_SUBTYPE
            image, part = IMAGE.pack(IMAGE_TAG, len(value), subtype), after
        elif key not in ("_id", "crc32"):
            part[key] = value
    crc = crc32(bson.encode(before)[4:-1])
    if part is after:
        crc = crc32(bson.encode(after)[4:-1], crc32(values["image"], crc32(image, crc)))
    return crc


def verify(document: bytes | memoryview, index: int, salt: int) -> None:
    """Raise DamagedRecordError unless a document has the right length, index and CRC-32 in a store with this salt."""
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
    check_crc32(crc32_of(document), index, salt, stored_crc)


def check_crc32(content: int, index: int, salt: int, stored: object) -> None:
    """Raise DamagedRecordError unless content has the CRC-32 that its document says."""
    crc = bound_crc32(content, index, salt)
    if stored != crc:
        what = f"{stored:08x}" if isinstance(stored, int) else repr(stored)
        raise DamagedRecordError(f"its CRC-32 is {crc:08x}, not {what}")


def move_document(document: bytes | memoryview, index: int, salt: int, *, to: int, to_salt: int) -> bytes:
    """Return a copy of a record's document for another index and store; a document that is not of ``index`` as it is.

    It is not verified: ``verify`` finds in the copy what it would have found in the document.
    """
    if len(document) < HEAD.size + TAIL.size:
        return bytes(document)
    length, tag, stored = HEAD.unpack_from(document)
    if stored != index:
        return bytes(document)
    end = len(document) - TAIL.size
    crc_tag, crc, closing = TAIL.unpack_from(document, end)
    moved = bound_crc32(bound_crc32(crc, index, salt), to, to_salt)
    content = memoryview(document)[HEAD.size : end]
    return b"".join((HEAD.pack(length, tag, to), content, TAIL.pack(crc_tag, moved, closing)))


class Image(NamedTuple):
    """An image in its document: the bytes of an image file or of an array."""

    data: memoryview
    is_array: bool


def find_image(document: bytes | memoryview) -> tuple[int, int, Image | None]:
    """Return begin and end of the element ``image``, and the image; None unless it is where ``encode`` puts it."""
    at = HEAD.size
    for tag, lengths in ((_NAME, _STR), (_LABEL, None)):
        if document[at : at + len(tag)] == tag:
            at += len(tag)
            at += 8 if lengths is None else lengths.size + lengths.unpack_from(document, at)[0]
    if len(document) - at < IMAGE.size:
        return at, at, None
    tag, length, subtype = IMAGE.unpack_from(document, at)
    end = at + IMAGE.size + length
    whole = length >= 0 and end <= len(document)
    if tag != IMAGE_TAG or subtype not in (BINARY_SUBTYPE, USER_DEFINED_SUBTYPE) or not whole:
        return at, at, None
    return at, end, Image(memoryview(document)[at + IMAGE.size : end], subtype == USER_DEFINED_SUBTYPE)


def find_name(document: bytes | memoryview) -> str | None:
    """Return the name in an undamaged document; None unless it is where ``encode`` puts it."""
    at = HEAD.size + len(_NAME)
    if document[HEAD.size : at] != _NAME:
        return None
    (length,) = _STR.unpack_from(document, at)
    return str(document[at + _STR.size : at + _STR.size + length - 1], "utf-8", "replace")
