"""Define the layout of a record's document, and seal small documents; docs/format.md describes every byte."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import bson
from isal.isal_zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping

# A record's document consists of HEAD, elements and TAIL. HEAD: the document's length (int32), the element ``_id``.
HEAD = struct.Struct("<i5sq")
ID = b"\x12_id\x00"
# TAIL: the element ``crc32``, then the closing zero byte of the document.
TAIL = struct.Struct("<7sqB")
CRC32 = b"\x12crc32\x00"
# The element ``image`` begins with its name, the image's number of bytes, and BSON's subtype of these bytes.
IMAGE = struct.Struct("<7siB")
IMAGE_TAG = b"\x05image\x00"
LENGTH = struct.Struct("<i")  # length of a document or a str
MAX_DOCUMENT = 2**31 - 1  # BSON's length is an int32
UNREADABLE = (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError, MemoryError, struct.error)
"""Exceptions that decoding may raise for damaged BSON."""


def crc32_of(document: bytes | memoryview) -> int:
    """Return the CRC-32 of a record's content: all bytes between the elements ``_id`` and ``crc32``."""
    return crc32(memoryview(document)[HEAD.size : -TAIL.size])


def bound_crc32(content: Any, index: Any, salt: int) -> Any:
    """Return the element ``crc32`` of a record: the CRC-32 of its content, XOR the low 32 bits of the index, XOR salt.

    ``content`` is the CRC-32 of the content, as from ``crc32_of``. Index and salt are in the result, so the checksum is
    wrong for a record at another index or from another store. ``content`` and ``index`` may be int64 arrays.
    """
    return content ^ (index & 0xFFFF_FFFF) ^ salt


def seal(values: Mapping[str, Any], number: int = 0, salt: int = 0) -> bytes:
    """Return a BSON document of some values and a final element ``crc32``, which ``open_sealed`` checks.

    ``number`` is the document's position among documents of its kind. The CRC-32 covers this number and the salt, too.
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
    """Return the values that ``seal`` stored in a document. Tuples come back as lists, and 64-bit ints as Int64.

    Raises:
        ValueError: The document is damaged, or was sealed with another number or salt.
    """
    end = len(document) - TAIL.size
    if end < LENGTH.size:
        raise ValueError(f"it has only {len(document)} bytes")
    tag, stored, _ = TAIL.unpack_from(document, end)
    crc = bound_crc32(crc32(memoryview(document)[LENGTH.size : end]), number, salt)
    if tag != CRC32 or stored != crc:
        raise ValueError(f"its CRC-32 is {crc:08x}, but the stored CRC-32 differs")
    try:
        values: dict[str, Any] = bson.decode(document)
    except UNREADABLE as error:
        raise ValueError(f"its BSON cannot be decoded: {error}") from error
    if values.pop("crc32", None) is None:  # bson has read crc32 as part of an earlier, damaged element
        raise ValueError("it has no crc32")
    return values
