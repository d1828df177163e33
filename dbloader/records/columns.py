"""Columns: small values of each record, packed in chunks of 4,096 records and stored beside the records.

A chunk holds little-endian numbers, or packed names. docs/format.md describes every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from isal.isal_zlib import crc32
from typing_extensions import override

from dbloader.errors import DamagedRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.record import EncodedRecord

Array = np.ndarray[Any, Any]

# 4,096 labels are 32 kB. One chunk is read in microseconds, and a million records have 245 of them.
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
_OFFSET = np.dtype("<u4")
_AT_ONCE = 4096  # names that are copied or decoded at a time


class ColumnChunk:
    """Columns of up to CHUNK records that are being written."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self.names)

    def append(self, record: EncodedRecord) -> None:
        """Add the values of one record. A missing name is stored as empty, a missing side as 0."""
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
        """Return a chunk with the values in a result of ``pack``; more records can be appended."""
        chunk = cls()
        chunk.names = names_in(packed["name"])
        rows = np.empty(len(chunk), _ROW)
        for name, dtype in DTYPES.items():
            rows[name] = np.frombuffer(packed[name], dtype)
        chunk._rows += rows.tobytes()
        return chunk


def name_hash(name: bytes) -> int:
    """Return the CRC-32 of a name in UTF-8, at least 1; 0 for an empty name."""
    return (crc32(name) or 1) if name else 0


def seal_chunk(column: str, number: int, chunk: bytes, salt: int = 0) -> bytes:
    """Return a chunk followed by the CRC-32 of column, chunk number and bytes, XOR the store's salt."""
    return chunk + _CRC.pack(_crc32_of_chunk(column, number, chunk) ^ salt)


def unseal_chunk(column: str, number: int, stored: object, salt: int = 0) -> memoryview | None:
    """Return a view of the chunk in a result of ``seal_chunk``; None if its CRC-32 is wrong."""
    if not isinstance(stored, (bytes, memoryview)) or len(stored) < _CRC.size:
        return None
    chunk = memoryview(stored)[: -_CRC.size]
    crc = _crc32_of_chunk(column, number, chunk) ^ salt
    return chunk if _CRC.unpack_from(stored, len(chunk)) == (crc,) else None


def whole_chunk(column: str, number: int, stored: object, length: int, salt: int) -> memoryview | None:
    """Return a view of a stored chunk of a store of ``length`` records; None if the chunk is damaged."""
    chunk = unseal_chunk(column, number, stored, salt)
    count = min(CHUNK, length - number * CHUNK)
    return chunk if chunk is not None and is_whole(column, chunk, count) else None


def is_whole(column: str, chunk: bytes | memoryview, count: int) -> bool:
    """Return whether a chunk has the layout of ``count`` records."""
    if column != "name":
        return len(chunk) == count * DTYPES[column].itemsize
    head = _OFFSET.itemsize * (count + 2)
    if len(chunk) < head or np.frombuffer(chunk, _OFFSET, 1)[0] != count:
        return False
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    ascending = offsets[0] == 0 and bool(np.all(offsets[1:] >= offsets[:-1]))
    return ascending and len(chunk) == head + int(offsets[-1])


def _crc32_of_chunk(column: str, number: int, chunk: bytes | memoryview) -> int:
    return crc32(chunk, crc32(column.encode() + number.to_bytes(8, "big")))


def join_values(chunks: Iterator[bytes | memoryview], column: str, length: int) -> Array:
    """Return a new array with the numbers of all chunks of a column."""
    values = np.empty(length, DTYPES[column])
    begin = 0
    for chunk in chunks:
        part = np.frombuffer(chunk, DTYPES[column])
        values[begin : begin + len(part)] = part
        begin += len(part)
    return values


class Names(Sequence[str]):
    """Names of all records, packed. Reading one name creates one str.

    Attributes:
        data: uint8, shape (bytes,), UTF-8 of the names one after the other.
        offsets: int64, shape (records + 1,), where each name begins in ``data``, then where the last name ends.
    """

    def __init__(self, data: Array, offsets: Array) -> None:
        self.data = data
        self.offsets = offsets

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    @override
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return _decode_name(bytes(self.data[self.offsets[position] : self.offsets[position + 1]]))

    def take(self, indices: Array) -> Names:
        """Return the names at some indices, in the order of the indices."""
        begins = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - begins
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        for start in range(0, len(lengths), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            first, last = offsets[start], offsets[min(start + _AT_ONCE, len(lengths))]
            # Where each byte of the result comes from: its own position, shifted as far as its name.
            data[first:last] = self.data[
                np.arange(first, last) + np.repeat(begins[part] - offsets[:-1][part], lengths[part])
            ]
        return Names(data, offsets)

    @override
    def __len__(self) -> int:
        return len(self.offsets) - 1

    @override
    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(self))
            block = bytes(self.data[self.offsets[start] : self.offsets[stop]])
            bounds = (self.offsets[start : stop + 1] - self.offsets[start]).tolist()
            for begin, end in pairwise(bounds):
                yield _decode_name(block[begin:end])

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} names, packed>"


def pack_names(names: Sequence[bytes]) -> bytes:
    """Return a chunk of names: uint32 count, uint32 offsets (count + 1), then the UTF-8 of all names."""
    offsets = np.zeros(len(names) + 2, _OFFSET)
    offsets[0] = len(names)
    np.cumsum([len(name) for name in names], out=offsets[2:])
    return offsets.tobytes() + b"".join(names)


def _unpack(chunk: bytes | memoryview) -> tuple[Array, Array]:
    """Return views of the UTF-8 bytes (uint8) and the offsets (uint32, count + 1) of a chunk of names."""
    count = int(np.frombuffer(chunk, _OFFSET, 1)[0])
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    return np.frombuffer(chunk, np.uint8, int(offsets[-1]), _OFFSET.itemsize * (count + 2)), offsets


def names_in(chunk: bytes | memoryview) -> list[bytes]:
    """Return the names in a chunk, as UTF-8."""
    data, offsets = _unpack(chunk)
    text = data.tobytes()
    return [text[begin:end] for begin, end in pairwise(offsets.tolist())]


def name_at(chunk: bytes | memoryview, position: int) -> str:
    """Return one name of a chunk."""
    data, offsets = _unpack(chunk)
    return _decode_name(data[offsets[position] : offsets[position + 1]].tobytes())


def names_with(chunk: bytes | memoryview, part: bytes) -> Array:
    """Return which names of a chunk contain some bytes: bool, shape (names,)."""
    data, offsets = _unpack(chunk)
    found = np.zeros(len(offsets) - 1, bool)
    if not part or len(data) < len(part):
        return found | (not part)
    # The names are searched as one text. A match that reaches into the next name does not count.
    last = len(data) - len(part) + 1
    places = data[:last] == part[0]
    for at, byte in enumerate(part[1:], 1):
        places &= data[at : last + at] == byte
    begins = np.flatnonzero(places)
    names = offsets.searchsorted(begins, "right") - 1
    found[names[begins + len(part) <= offsets[names + 1]]] = True
    return found


def join_names(chunks: Iterator[bytes | memoryview], length: int) -> Names:
    """Return a copy of the names of all chunks."""
    offsets = np.zeros(length + 1, np.int64)
    data, begin = bytearray(), 0
    for chunk in chunks:
        text, bounds = _unpack(chunk)
        offsets[begin + 1 : begin + len(bounds)] = bounds[1:].astype(np.int64) + len(data)
        data += text.data
        begin += len(bounds) - 1
    return Names(np.frombuffer(data, np.uint8), offsets)


def _decode_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordError(f"the name {name!r} is not UTF-8, which no conversion writes") from error
