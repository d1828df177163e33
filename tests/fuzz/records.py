"""Untrusted stores: records, manifests, columns and lines of the report.

Wrong checksums would reject most inputs at once, so some inputs get correct checksums.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import bson
import numpy as np
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError, DamagedStoreError, FieldError, NotAStoreError, StoreVersionError
from dbloader.records.columns import COLUMNS, DTYPES, is_whole, join_values, seal_chunk, whole_chunk
from dbloader.records.decode import decode, decode_values
from dbloader.records.document import CRC32, HEAD, ID, LENGTH, TAIL, bound_crc32, open_sealed, seal
from dbloader.records.manifest import Manifest
from dbloader.records.names import join_names, name_at, names_in, pack_names
from dbloader.records.record import Record, encode

_INDEX, _SALT = 7, 0


def record(data: bytes, _: Path) -> None:
    """The first byte selects whether the rest is a document, or elements for a document with a correct CRC-32."""
    document = data[1:] if data[:1] < b"\x80" else _record_of(data[1:])
    try:
        found = encode(decode(document, _INDEX, _SALT)).document(_INDEX, _SALT)
    except DamagedRecordError:
        return
    except FieldError:  # another program wrote a reserved field
        found = b""
    view = decode(memoryview(document), _INDEX, _SALT, view=True)
    with suppress(FieldError):
        assert encode(view).document(_INDEX, _SALT) == found
    with suppress(DamagedRecordError):
        given = decode_values(bson.decode(document), _INDEX, _SALT)
        with suppress(FieldError):
            assert encode(given).document(_INDEX, _SALT) == found
    if found:
        assert encode(decode(found, _INDEX, _SALT)).document(_INDEX, _SALT) == found


def _record_of(elements: bytes) -> bytes:
    crc = bound_crc32(crc32(elements), _INDEX, _SALT)
    length = HEAD.size + len(elements) + TAIL.size
    return HEAD.pack(length, ID, _INDEX) + elements + TAIL.pack(CRC32, crc, 0)


def record_seeds() -> list[bytes]:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    fields: dict[str, Any] = {"caption": "ü", "boxes": [[1, 2.5], [None, True]], "more": {"a": b"x", "b": "c"}}
    records = [
        Record("a/b.jpg", 3, b"\xff\xd8image", 40, 30, "JPEG", "cut short", (80, 60), fields),
        Record(image=pixels, fields={"mask": pixels[0], "f": pixels.astype("<f4"), "o": np.asfortranarray(pixels)}),
        Record(fields={"d": np.zeros(2, [("a", "<i4"), ("ü", "U2")]), "t": np.array(["2020"], "M8[D]")}),
        Record(),
    ]
    documents = [encode(record).document(_INDEX, _SALT) for record in records]
    found = b"\xff\x05image\0\xfe\xff\xff\xff\0\x02\0\x01\0\0\0\0"  # found by fuzzing: an image of -2 bytes
    return [found, *(part for whole in documents for part in (b"\0" + whole, b"\xff" + whole[HEAD.size : -TAIL.size]))]


# ---- Manifest, columns, lines of the report

_PLACE = "store.lmdb"


def manifest(data: bytes, _: Path) -> None:
    """The first byte selects what the rest is."""
    kind, data = data[:1], data[1:]
    if kind < b"\x80":
        with suppress(DamagedStoreError, NotAStoreError, StoreVersionError):
            again = Manifest.decode(data if kind < b"\x40" else _sealed(data), _PLACE).encode()
            assert Manifest.decode(again, _PLACE).encode() == again
    elif kind < b"\xa0":
        with suppress(ValueError):
            open_sealed(_sealed(data))
    elif kind < b"\xd0":
        length = int.from_bytes(data[:2], "little")
        if is_whole("name", data[2:], length):
            names = names_in(data[2:])
            assert pack_names(names) == data[2:]
            joined = join_names(iter([data[2:]]), length)
            assert len(joined) == len(names) == length
            for position, name in enumerate(names):
                with suppress(DamagedRecordError):
                    assert name_at(data[2:], position) == joined[position] == name.decode()
    else:
        column, length = COLUMNS[kind[0] % len(COLUMNS)], int.from_bytes(data[:2], "little")
        chunk = whole_chunk(column, 0, seal_chunk(column, 0, data[2:]), length, _SALT)
        if chunk is not None and column in DTYPES:
            assert join_values(iter([chunk]), column, length).tobytes() == data[2:]


def _sealed(elements: bytes) -> bytes:
    tail = TAIL.pack(CRC32, crc32(elements), 0)
    return LENGTH.pack(LENGTH.size + len(elements) + len(tail)) + elements + tail


def manifest_seeds() -> list[bytes]:
    whole = Manifest(
        length=3, digest="0" * 64, classes=("cat", "dög"), label_counts={0: 2, 1: 1}, labelled=3, named=3,
        image_bytes=99, width=(1, 2), height=(3, 4), formats={"JPEG": 3}, depths={"8-bit": 3}, fields={"caption": 3},
        outcome={"rejected": 1}, events=1, source={"path": "/x", "options": [1, None, {"a": 0.5}]}, created="now",
    ).encode()  # fmt: skip
    line = seal({"name": "a.jpg", "event": "rejected", "reason": "is empty"})
    names = (3).to_bytes(2, "little") + pack_names([b"a.jpg", b"", "ü".encode()])
    column = (2).to_bytes(2, "little") + bytes(16)
    ends = slice(LENGTH.size, -TAIL.size)
    return [
        b"\0" + whole,
        b"\x40" + whole[ends],
        b"\x80" + line[ends],
        b"\xa0" + names,
        b"\xd0" + column,
        b"\xd2" + names,
        bytes.fromhex("a003000300000003000000050000000500000007000000612e6a7067c3bc"),  # found by fuzzing
    ]
