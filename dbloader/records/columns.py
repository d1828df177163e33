"""Pack small values of all records, such as labels and names, into columns. A store keeps columns apart from records.

Each column is divided into chunks of 4,096 records. A chunk consists of little-endian numbers, packed names, or values
of an extra field: a field that a user added (field_columns.py). docs/format.md describes every byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from dbloader.records.field_columns import PREFIX, column_names, is_field_chunk, pack_values, unpack_values
from dbloader.records.names import are_names, names_in, pack_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from dbloader.records.record import EncodedRecord

Array = np.ndarray[Any, Any]

# Records per chunk. 4,096 labels take 32 kB, which are read in microseconds; a million records have 245 chunks.
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

# The values of one record in all columns except ``name``, in the order of DTYPES.
_ROW = np.dtype([*DTYPES.items()])
_pack_row = struct.Struct("<qIIQII").pack
_CRC = struct.Struct("<I")


class ColumnChunk:
    """The columns of up to CHUNK records, before they are written."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._rows = bytearray()
        self._fields: dict[str, list[Any]] = {}  # the values of each field, up to the last record that has the field

    def __len__(self) -> int:
        return len(self.names)

    def append(self, record: EncodedRecord) -> None:
        """Add the values of one record. A missing name becomes empty, a missing width or height becomes 0."""
        name = (record.name or "").encode()
        label = NO_LABEL if record.label is None else record.label
        width, height = record.width or 0, record.height or 0
        self._rows += _pack_row(label, width, height, record.nbytes, record.crc32, name_hash(name))
        for field, value in record.fields.items():
            values = self._fields.setdefault(field, [])
            values += [None] * (len(self.names) - len(values))
            values.append(value)
        self.names.append(name)

    def extend(self, other: ColumnChunk) -> None:
        """Add the values of all records of another chunk."""
        for field, values in other._fields.items():
            own = self._fields.setdefault(field, [])
            own += [None] * (len(self.names) - len(own)) + values
        self._rows += other._rows
        self.names += other.names

    def split(self, length: int) -> ColumnChunk:
        """Keep the first ``length`` records, and return a new chunk with the other records."""
        rest, at = ColumnChunk(), length * _ROW.itemsize
        rest.names, self.names = self.names[length:], self.names[:length]
        rest._rows, self._rows = self._rows[at:], self._rows[:at]
        for field, values in self._fields.items():
            if values[length:]:
                rest._fields[field] = values[length:]
                del values[length:]
        return rest

    def pack(self, fields: Iterable[str] = ()) -> dict[str, bytes]:
        """Return the bytes of each column. Each field in ``fields`` gets a column, even if no record has the field."""
        rows = np.frombuffer(bytes(self._rows), _ROW)
        packed = {**{name: rows[name].tobytes() for name in DTYPES}, "name": pack_names(self.names)}
        for field in {**self._fields, **dict.fromkeys(fields)}:
            values = self._fields.get(field, [])
            packed[PREFIX + field] = pack_values(values + [None] * (len(self) - len(values)))
        return packed

    def pack_columns(self, number: int, fields: set[str]) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield (chunk number, packed columns) for this chunk, then for each earlier chunk that gets new columns.

        If a field first appears in this chunk, each earlier chunk gets a column without values for the field.

        Args:
            number: The number of this chunk.
            fields: The extra fields of all earlier chunks. This method adds the fields of this chunk to the set.
        """
        new = self._fields.keys() - fields
        fields |= new
        packed, stored = self.pack(fields), stored_columns(fields)
        yield number, {name: packed[name] for name in stored}
        empty = dict.fromkeys((name for name in column_names(new) if name in stored), pack_values([None] * CHUNK))
        if empty:
            yield from ((earlier, empty) for earlier in range(number))

    @classmethod
    def unpack(cls, packed: Mapping[str, bytes | memoryview]) -> ColumnChunk:
        """Return the chunk that ``pack`` packed. More records can be appended."""
        chunk = cls()
        chunk.names = names_in(packed["name"])
        rows = np.empty(len(chunk), _ROW)
        for name, dtype in DTYPES.items():
            rows[name] = np.frombuffer(packed[name], dtype)
        chunk._rows += rows.tobytes()
        for name in packed.keys() - {*COLUMNS}:
            chunk._fields[name.removeprefix(PREFIX)] = unpack_values(packed[name])
        return chunk


def stored_columns(fields: Collection[str]) -> list[str]:
    """Return the names of all columns of a store whose records have these extra fields."""
    return [*COLUMNS, *column_names(fields)]


def name_hash(name: bytes) -> int:
    """Return the CRC-32 of a name in UTF-8, or 0 for an empty name. A name with the CRC-32 0 gets 1 instead."""
    return (crc32(name) or 1) if name else 0


def seal_chunk(column: str, number: int, chunk: bytes, salt: int = 0) -> bytes:
    """Return a chunk followed by a checksum: the CRC-32 of its column name, number and bytes, XOR the store's salt."""
    return chunk + _CRC.pack(_crc32_of_chunk(column, number, chunk) ^ salt)


def unseal_chunk(column: str, number: int, stored: object, salt: int = 0) -> memoryview | None:
    """Return a view of the chunk that ``seal_chunk`` put into ``stored``; None if the CRC-32 is wrong."""
    if not isinstance(stored, (bytes, memoryview)) or len(stored) < _CRC.size:
        return None
    chunk = memoryview(stored)[: -_CRC.size]
    crc = _crc32_of_chunk(column, number, chunk) ^ salt
    return chunk if _CRC.unpack_from(stored, len(chunk)) == (crc,) else None


def whole_chunk(column: str, number: int, stored: object, length: int, salt: int) -> memoryview | None:
    """Return a view of a chunk like ``unseal_chunk``. If the layout of the chunk is wrong, return None too.

    ``length`` is the number of records in the store.
    """
    chunk = unseal_chunk(column, number, stored, salt)
    count = min(CHUNK, length - number * CHUNK)
    return chunk if chunk is not None and is_whole(column, chunk, count) else None


def is_whole(column: str, chunk: bytes | memoryview, count: int) -> bool:
    """Return whether a chunk has the right layout for ``count`` records."""
    if column.startswith(PREFIX):
        return is_field_chunk(chunk, count)
    return are_names(chunk, count) if column == "name" else len(chunk) == count * DTYPES[column].itemsize


def _crc32_of_chunk(column: str, number: int, chunk: bytes | memoryview) -> int:
    return crc32(chunk, crc32(column.encode() + number.to_bytes(8, "big")))


def join_values(chunks: Iterator[bytes | memoryview], column: str, length: int) -> Array:
    """Return a new array with all numbers of a column, given its chunks."""
    values = np.empty(length, DTYPES[column])
    begin = 0
    for chunk in chunks:
        part = np.frombuffer(chunk, DTYPES[column])
        values[begin : begin + len(part)] = part
        begin += len(part)
    return values
