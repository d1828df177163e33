"""Untrusted stores: records, manifests, columns and lines of the report.

Wrong checksums would reject most inputs at once, so some inputs get correct checksums.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import bson
from isal.isal_zlib import crc32

from dbloader.errors import DamagedRecordError, DamagedStoreError, FieldError, NotAStoreError, StoreVersionError
from dbloader.records.columns import COLUMNS, DTYPES, is_whole, join_values, seal_chunk, whole_chunk
from dbloader.records.decode import decode, decode_values
from dbloader.records.document import CRC32, HEAD, ID, LENGTH, TAIL, bound_crc32, open_sealed
from dbloader.records.manifest import Manifest
from dbloader.records.names import join_names, name_at, names_in, pack_names
from dbloader.records.record import encode

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
