"""Columns: the small facts of each record, packed in chunks of 4,096 records beside the records.

A chunk is a little-endian array; a chunk of names is the offsets of the names followed by their UTF-8 bytes.
docs/format.md gives every byte.
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

# 4,096 labels are 32 kB: one chunk is read in microseconds, and a million records have only 245 of them.
CHUNK = 4096

NO_LABEL = -(2**63)
"""What the label column holds for a record without a label."""

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

_OFFSET = np.dtype("<u4")
_CRC = struct.Struct("<I")
Array = np.ndarray[Any, Any]


class Names(Sequence[str]):
    """The names of all records, packed: no Python object exists for a name until it is asked for.

    Attributes:
        data: uint8, shape (bytes,), the names' UTF-8 one after the other.
        offsets: int64, shape (records + 1,), where each name begins in ``data`` and the last one ends.
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
        return decode_name(bytes(self.data[self.offsets[position] : self.offsets[position + 1]]))

    def take(self, indices: Array) -> Names:
        """Return the names at some indices, in their order, packed again."""
        begins = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - begins
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        for start in range(0, len(lengths), CHUNK):
            part = slice(start, start + CHUNK)
            first, last = offsets[start], offsets[min(start + CHUNK, len(lengths))]
            # Where each byte comes from: its place in the result, moved by as much as its name is.
            data[first:last] = self.data[
                np.arange(first, last) + np.repeat(begins[part] - offsets[:-1][part], lengths[part])
            ]
        return Names(data, offsets)

    @override
    def __len__(self) -> int:
        return len(self.offsets) - 1

    @override
    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            stop = min(start + CHUNK, len(self))
            block = bytes(self.data[self.offsets[start] : self.offsets[stop]])
            bounds = (self.offsets[start : stop + 1] - self.offsets[start]).tolist()
            for begin, end in pairwise(bounds):
                yield decode_name(block[begin:end])

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} names, packed>"


class ColumnChunk:
    """The columns of up to CHUNK records that are being written."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self.names)

    def append(self, record: EncodedRecord) -> None:
        """Add the facts of one record; a missing name is empty, a missing side or image 0."""
        name = (record.name or "").encode()
        label = NO_LABEL if record.label is None else record.label
        width, height = record.width or 0, record.height or 0
        self._rows += _pack_row(label, width, height, record.nbytes, record.crc32, name_hash(name))
        self.names.append(name)

    def cut(self, length: int) -> None:
        """Forget the records after the first so many."""
        del self.names[length:], self._rows[length * _ROW.itemsize :]

    def pack(self) -> dict[str, bytes]:
        """Return each column's bytes."""
        rows = np.frombuffer(bytes(self._rows), _ROW)
        return {**{name: rows[name].tobytes() for name in DTYPES}, "name": pack_names(self.names)}

    @classmethod
    def unpack(cls, packed: dict[str, bytes]) -> ColumnChunk:
        """Return the chunk that ``pack`` packed, to be continued."""
        chunk = cls()
        chunk.names = names_in(packed["name"])
        rows = np.empty(len(chunk), _ROW)
        for name, dtype in DTYPES.items():
            rows[name] = np.frombuffer(packed[name], dtype)
        chunk._rows += rows.tobytes()
        return chunk


def name_hash(name: bytes) -> int:
    """Return the CRC-32 of a name's UTF-8, from 1 to 2**32 - 1; 0 stands for no name."""
    return (crc32(name) or 1) if name else 0


def pack_names(names: Sequence[bytes]) -> bytes:
    """Return a chunk of names: uint32 count, uint32 offsets (count + 1), then their bytes."""
    offsets = np.zeros(len(names) + 2, _OFFSET)
    offsets[0] = len(names)
    np.cumsum([len(name) for name in names], out=offsets[2:])
    return offsets.tobytes() + b"".join(names)


def unpack_names(chunk: bytes | memoryview) -> tuple[Array, Array]:
    """Return the parts of a chunk of names, as views into it: UTF-8 bytes (uint8), offsets (uint32, count + 1)."""
    count = int(np.frombuffer(chunk, _OFFSET, 1)[0])
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    return np.frombuffer(chunk, np.uint8, int(offsets[-1]), _OFFSET.itemsize * (count + 2)), offsets


def seal_chunk(column: str, number: int, chunk: bytes) -> bytes:
    """Return a chunk as it is stored: with a CRC-32 after it that binds it to its column and its number."""
    return chunk + _CRC.pack(_crc32_of_chunk(column, number, chunk))


def unseal_chunk(column: str, number: int, stored: object) -> memoryview | None:
    """Return the chunk of which ``seal_chunk`` made what is stored, as a view into it; None if it did not."""
    if not isinstance(stored, (bytes, memoryview)) or len(stored) < _CRC.size:
        return None
    chunk = memoryview(stored)[: -_CRC.size]
    crc = _crc32_of_chunk(column, number, chunk)
    return chunk if _CRC.unpack_from(stored, len(chunk)) == (crc,) else None


def whole_chunk(column: str, number: int, stored: object, length: int) -> memoryview | None:
    """Return a chunk of a store of so many records, as a view into what is stored; None if it is damaged."""
    chunk = unseal_chunk(column, number, stored)
    count = min(CHUNK, length - number * CHUNK)
    return chunk if chunk is not None and is_whole(column, chunk, count) else None


def _crc32_of_chunk(column: str, number: int, chunk: bytes | memoryview) -> int:
    return crc32(chunk, crc32(column.encode() + number.to_bytes(8, "big")))


def is_whole(name: str, chunk: bytes | memoryview, count: int) -> bool:
    """Tell whether a chunk of a column has the size that a number of records gives it."""
    if name != "name":
        return len(chunk) == count * DTYPES[name].itemsize
    head = _OFFSET.itemsize * (count + 2)
    if len(chunk) < head or np.frombuffer(chunk, _OFFSET, 1)[0] != count:
        return False
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    return len(chunk) == head + int(offsets[-1]) and bool(np.all(offsets[1:] >= offsets[:-1]))


def names_in(chunk: bytes | memoryview) -> list[bytes]:
    """Return the UTF-8 names in a chunk."""
    data, offsets = unpack_names(chunk)
    text, bounds = data.tobytes(), offsets.tolist()
    return [text[begin:end] for begin, end in pairwise(bounds)]


def name_at(chunk: bytes | memoryview, position: int) -> str:
    """Return one name of a chunk.

    Raises:
        DamagedRecordError: It is not UTF-8.
    """
    data, offsets = unpack_names(chunk)
    return decode_name(data[offsets[position] : offsets[position + 1]].tobytes())


def decode_name(name: bytes) -> str:
    """Return a name as a str.

    Raises:
        DamagedRecordError: It is not UTF-8.
    """
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordError(f"the name {name!r} is not UTF-8, which no conversion writes") from error


def join_names(chunks: Iterator[bytes | memoryview], length: int) -> Names:
    """Put the chunks of all names together; the result owns its memory."""
    offsets = np.zeros(length + 1, np.int64)
    data, begin = bytearray(), 0
    for chunk in chunks:
        text, bounds = unpack_names(chunk)
        offsets[begin + 1 : begin + len(bounds)] = bounds[1:].astype(np.int64) + len(data)
        data += text.data
        begin += len(bounds) - 1
    return Names(np.frombuffer(data, np.uint8), offsets)


def join_values(chunks: Iterator[bytes | memoryview], name: str, length: int) -> Array:
    """Put the chunks of a column of numbers together; the result owns its memory."""
    values = np.empty(length, DTYPES[name])
    begin = 0
    for chunk in chunks:
        part = np.frombuffer(chunk, DTYPES[name])
        values[begin : begin + len(part)] = part
        begin += len(part)
    return values
