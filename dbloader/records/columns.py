"""Columns: the small values of each record, packed in chunks of 4,096 records and kept next to the records.

A chunk is a little-endian array; for a chunk of names see ``names``. docs/format.md describes every byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
from isal.isal_zlib import crc32

from dbloader.records.names import fits_names, names_in, pack_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dbloader.records.names import Array
    from dbloader.records.record import EncodedRecord

# 4,096 labels are 32 kB: one chunk is read in microseconds, and a million records have only 245 of them.
CHUNK = 4096

NO_LABEL = -(2**63)
"""Value of the label column for a record without a label."""

DTYPES: dict[str, np.dtype[Any]] = {
    "label": np.dtype("<i8"),
    "width": np.dtype("<u4"),
    "height": np.dtype("<u4"),
    "nbytes": np.dtype("<u8"),
    "crc32": np.dtype("<u4"),
    "name_hash": np.dtype("<u4"),
}
COLUMNS = ("name", *DTYPES)

# The numbers of one record, in the order of DTYPES.
_ROW = np.dtype([*DTYPES.items()])
_pack_row = struct.Struct("<qIIQII").pack
_CRC = struct.Struct("<I")


class ColumnChunk:
    """The columns of up to CHUNK records that are being written."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self.names)

    def append(self, record: EncodedRecord) -> None:
        """Add the values of one record: an empty name or 0 for what it lacks."""
        name = (record.name or "").encode()
        label = NO_LABEL if record.label is None else record.label
        width, height = record.width or 0, record.height or 0
        self._rows += _pack_row(label, width, height, record.nbytes, record.crc32, name_hash(name))
        self.names.append(name)

    def cut(self, length: int) -> None:
        """Keep only the first records."""
        del self.names[length:], self._rows[length * _ROW.itemsize :]

    def pack(self) -> dict[str, bytes]:
        """Return the bytes of each column."""
        rows = np.frombuffer(bytes(self._rows), _ROW)
        return {**{name: rows[name].tobytes() for name in DTYPES}, "name": pack_names(self.names)}

    @classmethod
    def unpack(cls, packed: dict[str, bytes]) -> ColumnChunk:
        """Return the chunk that ``pack`` packed, to add more records."""
        chunk = cls()
        chunk.names = names_in(packed["name"])
        rows = np.empty(len(chunk), _ROW)
        for name, dtype in DTYPES.items():
            rows[name] = np.frombuffer(packed[name], dtype)
        chunk._rows += rows.tobytes()
        return chunk


def name_hash(name: bytes) -> int:
    """Return the CRC-32 of a name's UTF-8, from 1 to 2**32 - 1; 0 for no name."""
    return (crc32(name) or 1) if name else 0


def seal_chunk(column: str, number: int, chunk: bytes, salt: int = 0) -> bytes:
    """Return a chunk as it is stored: followed by a CRC-32 of its column, its number and its bytes, XOR the salt."""
    return chunk + _CRC.pack(_crc32_of_chunk(column, number, chunk) ^ salt)


def unseal_chunk(column: str, number: int, stored: object, salt: int = 0) -> memoryview | None:
    """Return the chunk in a result of ``seal_chunk``, as a view into it; None if its CRC-32 is wrong."""
    if not isinstance(stored, (bytes, memoryview)) or len(stored) < _CRC.size:
        return None
    chunk = memoryview(stored)[: -_CRC.size]
    crc = _crc32_of_chunk(column, number, chunk) ^ salt
    return chunk if _CRC.unpack_from(stored, len(chunk)) == (crc,) else None


def whole_chunk(column: str, number: int, stored: object, length: int, salt: int) -> memoryview | None:
    """Return a stored chunk of a store of so many records, as a view into it; None if it is damaged."""
    chunk = unseal_chunk(column, number, stored, salt)
    count = min(CHUNK, length - number * CHUNK)
    return chunk if chunk is not None and is_whole(column, chunk, count) else None


def _crc32_of_chunk(column: str, number: int, chunk: bytes | memoryview) -> int:
    return crc32(chunk, crc32(column.encode() + number.to_bytes(8, "big")))


def is_whole(name: str, chunk: bytes | memoryview, count: int) -> bool:
    """Return whether a chunk of a column has the size for so many records."""
    return fits_names(chunk, count) if name == "name" else len(chunk) == count * DTYPES[name].itemsize


def join_values(chunks: Iterator[bytes | memoryview], name: str, length: int) -> Array:
    """Return a column of numbers from its chunks, in memory of its own."""
    values = np.empty(length, DTYPES[name])
    begin = 0
    for chunk in chunks:
        part = np.frombuffer(chunk, DTYPES[name])
        values[begin : begin + len(part)] = part
        begin += len(part)
    return values
