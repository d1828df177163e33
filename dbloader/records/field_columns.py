"""Pack extra fields into columns: the numbers, booleans and short texts that users add to records.

A chunk has the values of 4,096 records. A chunk's first byte is the kind of the values, such as int or text;
docs/format.md describes every byte. The column of the field ``score`` is called ``field.score``.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.records.names import are_names, join_names, names_in, pack_names
from dbloader.records.values import INT64_MIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    Array = np.ndarray[Any, Any]

PREFIX = "field."
MAX_FIELDS = 256
"""If a store has more extra fields, none of them gets a column, because each column adds a chunk per 4,096 records."""

MAX_TEXT = 2000
"""Longest text in a column, in bytes of UTF-8. So a chunk of 4,096 texts fits into a MongoDB document (16 MiB)."""

OTHER = ...
"""Replaces a value that cannot be stored in a column."""

NO_BOOL = 2
"""In a column of booleans, the number for a record without a value."""

_MAX_NAME = 200  # most bytes in the name of a field with a column: LMDB keys contain the name, and have at most 511
_EXACT = 2**53  # a float64 represents each integer up to this number exactly
_NOTHING, _BOOL, _INT, _FLOAT, _TEXT, _OTHER = b"-", b"?", b"i", b"f", b"t", b"*"
_COUNT = struct.Struct("<I")
_WIDE = b"wide"  # KindFinder adds this kind to a field with an integer beyond _EXACT
_DTYPES: dict[bytes, np.dtype[Any]] = {_BOOL: np.dtype("u1"), _INT: np.dtype("<i8"), _FLOAT: np.dtype("<f8")}
_ABSENT: dict[bytes, float] = {_BOOL: NO_BOOL, _INT: INT64_MIN, _FLOAT: np.nan}
_OF_TYPE: dict[type, bytes] = {bool: _BOOL, int: _INT, float: _FLOAT}
_KINDS = {_BOOL: "bool", _INT: "int", _FLOAT: "float", _TEXT: "text"}
KINDS = tuple(_KINDS.values())


def column_names(fields: Collection[str]) -> list[str]:
    """Return the names of the columns that contain the values of these extra fields."""
    some = fields if len(fields) <= MAX_FIELDS else ()
    return [PREFIX + field for field in some if len(field.encode()) <= _MAX_NAME]


def column_value(value: Any) -> Any:
    """Return what a column stores for the value of an extra field: the value, None or ``OTHER``.

    None means no value. NaN and an empty text become None. A value that cannot be in a column becomes ``OTHER``.
    """
    kind = value.__class__
    if kind is str:
        short = len(value) <= MAX_TEXT and len(value.encode()) <= MAX_TEXT
        return (value or None) if short else OTHER
    if kind is float:
        return None if math.isnan(value) else value
    is_number = kind is bool or (isinstance(value, int) and value != INT64_MIN)
    return value if value is None or is_number else OTHER


def pack_values(values: Sequence[Any]) -> bytes:
    """Return the chunk for one field. ``values`` has a result of ``column_value`` for each record."""
    types = {value.__class__ for value in values} - {type(None)}
    if types == {str}:
        return _TEXT + pack_names([(value or "").encode() for value in values])
    if types == {int, float} and all(abs(value) <= _EXACT for value in values if value.__class__ is int):
        types = {float}
    kind = _OTHER if types else _NOTHING
    if len(types) == 1:
        kind = _OF_TYPE.get(types.pop(), _OTHER)
    if kind not in _DTYPES:
        return kind + _COUNT.pack(len(values))
    absent = _ABSENT[kind]
    return kind + np.array([absent if value is None else value for value in values], _DTYPES[kind]).tobytes()


def unpack_values(chunk: bytes | memoryview) -> list[Any]:
    """Return the values that ``pack_values`` packed. Integers that were packed together with floats are floats now."""
    kind = bytes(chunk[:1])
    if kind == _TEXT:
        return [name.decode() or None for name in names_in(chunk[1:])]
    if kind not in _DTYPES:
        return [None if kind == _NOTHING else OTHER] * _COUNT.unpack_from(chunk, 1)[0]
    values = np.frombuffer(chunk, _DTYPES[kind], offset=1)
    read = values.astype(bool).tolist() if kind == _BOOL else values.tolist()
    return [value if known else None for value, known in zip(read, known_values(values).tolist(), strict=True)]


def is_field_chunk(chunk: bytes | memoryview, count: int) -> bool:
    """Return whether a chunk has the right layout for ``count`` records."""
    kind = bytes(chunk[:1])
    if kind == _TEXT:
        return are_names(chunk[1:], count)
    if kind in _DTYPES:
        return len(chunk) == 1 + count * _DTYPES[kind].itemsize
    return kind in (_NOTHING, _OTHER) and chunk[1:] == _COUNT.pack(count)


class KindFinder:
    """Finds the kind of each column (bool, int, float or text) from all its chunks."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[bytes]] = {}

    def add(self, packed: dict[str, bytes]) -> None:
        """Add one chunk of each column. ``packed`` maps the columns' names to their chunks."""
        for column, chunk in packed.items():
            kinds = self._kinds.setdefault(column.removeprefix(PREFIX), set())
            kinds.add(chunk[:1])
            if chunk[:1] == _INT:
                values = np.frombuffer(chunk, _DTYPES[_INT], offset=1)
                if np.any((np.abs(values) > _EXACT) & known_values(values)):
                    kinds.add(_WIDE)

    def columns(self, fields: Collection[str]) -> dict[str, str]:
        """Return the kind of each field in ``fields`` whose values fit into one column.

        A shard with more than MAX_FIELDS fields has no columns for its fields. So a field may have no chunks at all.
        """
        stored = {*column_names(fields)}
        kinds = {field: _joint_kind(kinds) for field, kinds in sorted(self._kinds.items()) if PREFIX + field in stored}
        return {field: kind for field, kind in kinds.items() if kind}


def _joint_kind(kinds: set[bytes]) -> str | None:
    kinds = kinds - {_NOTHING}
    if kinds == {_INT, _FLOAT}:
        return "float"
    if _FLOAT not in kinds:
        kinds.discard(_WIDE)
    return _KINDS.get(kinds.pop()) if len(kinds) == 1 else None


class FieldColumn(NamedTuple):
    """The values that all records have in one extra field.

    Attributes:
        kind: ``"bool"``, ``"int"``, ``"float"`` or ``"text"``.
        values: For "bool", uint8; 2 means no value. For "int", int64; INT64_MIN means no value. For "float", float64;
            NaN means no value. The shape is (records,). For "text", packed texts (Names); an empty text means no value.
    """

    kind: str
    values: Any

    def array(self) -> Array:
        """Return the values as a new array, shape (records,).

        The dtype is int64, float64, object (strs) or bool. A missing value is the lowest int64, NaN or "". If any bool
        is missing, the dtype is int8: 0, 1, or -1 for a missing value.
        """
        if self.kind == "text":
            texts = np.empty(len(self.values), object)
            texts[:] = [*self.values]
            return texts
        if self.kind == "bool":
            known = self.values != NO_BOOL
            values: Array = self.values.astype(bool if known.all() else np.int8)
            values[~known] = -1
            return values
        return np.array(self.values)


def join_chunks(chunks: Iterable[bytes | memoryview], kind: str, length: int) -> FieldColumn:
    """Return a column with the values of all its chunks, in new memory."""
    if kind == "text":
        return FieldColumn(kind, join_names(map(_texts, chunks), length))
    wanted = next(code for code, name in _KINDS.items() if name == kind)
    values = np.full(length, _ABSENT[wanted], _DTYPES[wanted])
    begin = 0
    for chunk in chunks:
        if (own := bytes(chunk[:1])) in _DTYPES:
            part = np.frombuffer(chunk, _DTYPES[own], offset=1)  # a column of floats may have a chunk of integers
            np.copyto(values[begin : begin + len(part)], part, where=known_values(part))
            begin += len(part)
        else:
            begin += _COUNT.unpack_from(chunk, 1)[0]
    return FieldColumn(kind, values)


def _texts(chunk: bytes | memoryview) -> bytes | memoryview:
    """Return the texts of a chunk as packed names."""
    return chunk[1:] if bytes(chunk[:1]) == _TEXT else pack_names([b""] * _COUNT.unpack_from(chunk, 1)[0])


def known_values(values: Array) -> Array:
    """Return whether each value of a column of booleans or numbers is present: bool, same shape.

    A missing value is NaN among floats, the lowest value among signed integers, and NO_BOOL among booleans.
    """
    kind = values.dtype.kind
    missing = np.iinfo(values.dtype).min if kind == "i" else NO_BOOL
    known: Array = ~np.isnan(values) if kind == "f" else values != missing
    return known
