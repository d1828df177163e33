"""Decoding a record finds every kind of damage."""

from __future__ import annotations

import io
import resource
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from dbloader import Record
from dbloader.errors import DamagedRecordError
from dbloader.records.decode import decode, decode_encoded, decode_values
from dbloader.records.document import open_sealed
from dbloader.records.record import EncodedRecord, encode
from tests.support.children import in_child

SALT = 0x9E3779B9


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["|V0", "<f8"])
@pytest.mark.parametrize("shape", [(10**12,), (-1,), (2, 2), (10**12, 0)])
@pytest.mark.parametrize("as_image", [False, True])
def test_array_that_claims_more_elements_than_bytes_is_damage(
    version: tuple[int, int], dtype: str, shape: tuple[int, ...], as_image: bool
) -> None:
    if dtype == "<f8" and 0 in shape:
        return  # an array without elements is valid
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    npy = b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(header)) + header
    element = bson.encode({"image" if as_image else "mask": Binary(npy, 0x80)})[4:-1]
    with pytest.raises(DamagedRecordError, match="one of its arrays"):
        decode(with_elements(element), 0, SALT)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": b"x"}, "its name has the type bytes"),
        ({"label": True}, "its label has the type bool"),
        ({"image": "text"}, "its image has the type str"),
        ({"width": Int64(-1)}, "it has a width or height of -1 pixels"),
        ({"height": Int64(2**32)}, "it has a width or height of 4294967296 pixels"),
        ({"damaged": []}, "its damaged has the type list"),
        ({"resized_from": [5]}, "its resized_from has 1 numbers, not 2"),
        ({"resized_from": [5, "x"]}, "it has a width or height of 'x' pixels"),
    ],
)
def test_value_of_wrong_type_with_correct_checksum_is_damage(values: dict[str, Any], message: str) -> None:
    document = with_elements(bson.encode(values)[4:-1])
    with pytest.raises(DamagedRecordError, match=f"^{message}$"):
        decode(document, 0, SALT)
    with pytest.raises(DamagedRecordError, match=f"^{message}$"):
        decode_values(bson.decode(document), 0, SALT)


def test_element_that_ends_like_a_checksum_is_not_a_checksum() -> None:
    def ends_like_a_checksum(number: int, before: bytes) -> bytes:
        """Return a document whose last element is a binary value that ends with the bytes of a crc32 element."""
        size = struct.pack("<iB", 15, 0)
        head = before + b"\x05x\0" + size
        tail = b"\x12crc32\0"
        crc = zlib.crc32(head) ^ number ^ SALT
        return head + tail + struct.pack("<q", crc) + b"\0"

    inner = ends_like_a_checksum(0, b"")
    sealed = struct.pack("<i", 4 + len(inner)) + inner
    with pytest.raises(ValueError, match=r"^it has no crc32$|BSON"):
        open_sealed(sealed, 0, SALT)
    content = ends_like_a_checksum(5, b"")
    document = struct.pack("<i5sq", 17 + len(content), b"\x12_id\0", 5) + content
    with pytest.raises(DamagedRecordError, match=r"^it has no _id or no crc32$|BSON"):
        decode(document, 5, SALT)


def test_deeply_nested_document_is_reported_as_damaged() -> None:
    deep = b"\x05\0\0\0\0"
    for _ in range(3000):
        deep = struct.pack("<i", len(deep) + 8) + b"\x03a\0" + deep + b"\0"
    with pytest.raises(DamagedRecordError, match="its BSON cannot be decoded"):
        decode(with_elements(deep[4:-1]), 0, SALT)


RECORD = Record("a/b.png", 3, b"image", 4, 5, "PNG", fields={"x": [1.5, "ü"], "mask": np.arange(3)})
DOCUMENT = encode(RECORD).document(6, SALT)


def test_every_changed_byte_is_found() -> None:
    for position in range(len(DOCUMENT)):
        document = bytearray(DOCUMENT)
        document[position] ^= 1 << position % 8
        for way in (decode, decode_encoded):
            with pytest.raises(DamagedRecordError, match=r"^its CRC-32 is|^its _id is|^it does not (begin|end) with"):
                way(bytes(document), 6, SALT)


def test_document_with_another_length_index_or_salt_is_refused() -> None:
    for document, index, salt, message in (
        (DOCUMENT + b"\0", 6, SALT, r"it does not begin with its length of .* bytes and its _id"),
        (DOCUMENT, 5, SALT, "its _id is 6, not 5"),
        (DOCUMENT, 6, SALT ^ 1, r"its CRC-32 is \w+, but \w+ was stored with it"),
        *((DOCUMENT[:n], 6, SALT, rf"it (has only {n} bytes|does not begin with .*)") for n in range(len(DOCUMENT))),
    ):
        for way in (decode, decode_encoded):
            with pytest.raises(DamagedRecordError, match=f"^{message}$"):
                way(document, index, salt)
    with pytest.raises(DamagedRecordError, match=r"^its CRC-32 is \w+, but \w+ was stored with it$"):
        decode_values(bson.decode(DOCUMENT), 6, SALT ^ 1)


def with_elements(elements: bytes) -> bytes:
    """Return a document with the given elements and a correct checksum."""
    return EncodedRecord((elements,), zlib.crc32(elements), None, None, None, None, 0, None, {}).document(0, SALT)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def npy_of_objects() -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array([Bomb()]), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (b"\x02name\0\xff\xff\xff\x7fabc", "^its BSON cannot be decoded: "),
        (b"\x05image\0\xfe\xff\xff\xff\0\x02\0\x01\0\0\0\0", "^its BSON cannot be decoded: "),  # an image of -2 bytes
        (bson.encode({"mask": [Binary(b"no npy file", 0x80)]})[4:-1], "^one of its arrays cannot be read: "),
        (
            bson.encode({"mask": Binary(npy_of_objects(), 0x80)})[4:-1],
            "^one of .* read: Object arrays cannot",
        ),
    ],
)
def test_invalid_bson_is_damage_even_with_a_correct_checksum(elements: bytes, message: str) -> None:
    with pytest.raises(DamagedRecordError, match=message):
        decode(with_elements(elements), 0, SALT)


def whole_values() -> dict[str, Any]:
    record = Record("a", 1, b"abc", 2, 3, "PNG", fields={"caption": "x", "n": 7})
    return dict(bson.decode(encode(record).document(4, SALT)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 1}, "its CRC-32 is [0-9a-f]{8}, but "),  # an int32, whose bytes differ from an int64
        ({"image": b"abd"}, "its CRC-32 is "),
        ({"image": Binary(b"abc", 5)}, "its CRC-32 is "),
        ({"caption": "y"}, "its CRC-32 is "),
        ({"_id": Int64(5)}, r"its _id is 5 \(Int64\), not 4 \(Int64\)"),
        ({"_id": 4}, r"its _id is 4 \(int\), not 4 \(Int64\)"),  # an int32
        ({"crc32": Int64(3)}, "its CRC-32 is .*, but "),
        ({"another": 1}, "it does not begin with its _id and end with its crc32"),
    ],
)
def test_changed_decoded_document_is_damage(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DamagedRecordError, match=rf"^{message}"):
        decode_values({**whole_values(), **change}, 4, SALT)


@pytest.mark.parametrize("way", [decode, decode_encoded, decode_values])
def test_lack_of_memory_is_not_damage(way: Callable[..., Any]) -> None:
    document = encode(Record(fields={"mask": bytes(100 * 2**20)})).document(5, SALT)
    given = bson.decode(document) if way is decode_values else document
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def decode_limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
        held = []
        with suppress(MemoryError):  # use up the memory that earlier tests left free
            while True:
                held.append(bytearray(2**23))
        with pytest.raises(MemoryError, match=r"^there is not enough memory to decode record 5$"):
            way(given, 5, SALT)

    assert in_child(decode_limited) == 0
