"""Random values for records."""

from __future__ import annotations

import math
from typing import Any

import bson
import numpy as np
from bson.binary import Binary
from bson.int64 import Int64
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dbloader.records.record import RESERVED_FIELDS

DTYPES: st.SearchStrategy[np.dtype[Any]] = st.deferred(
    lambda: (
        arrays.boolean_dtypes()
        | arrays.integer_dtypes(endianness="?")
        | arrays.unsigned_integer_dtypes(endianness="?")
        | arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64))
        | arrays.complex_number_dtypes(endianness="?", sizes=(64, 128))
        | arrays.datetime64_dtypes(endianness="?")
        | arrays.timedelta64_dtypes(endianness="?")
        | arrays.unicode_string_dtypes(endianness="?", max_len=5)
        | arrays.byte_string_dtypes(max_len=5)
        | arrays.array_dtypes(DTYPES, max_size=3)
    )
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8).filter(
    lambda key: not key.startswith("$")
)
INT64 = st.integers(-(2**63), 2**63 - 1)
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
# Reading a NaN that was written as text gives this NaN.
FLOATS = st.floats().map(lambda number: math.nan if math.isnan(number) else number)
PLAIN = st.none() | st.booleans() | INT64 | FLOATS | TEXT | st.binary(max_size=50)
VALUES = st.recursive(
    PLAIN | ARRAYS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
FIELD_NAMES = KEYS.filter(lambda key: key and "." not in key and key not in RESERVED_FIELDS)
UINT32 = st.integers(0, 2**32 - 1)

# Wrong values, to put into a stored document.
LIES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**40, Int64(10**12), Int64(2**63 - 1), Int64(-(2**63)), 0.5, float("nan"), 1e300,
    "", "x", "x" * 100_000, "\x1b[31m\u202e\u009b", b"", b"\xff" * 16, b"x", [], [1], [1, 2], [3, 2], ["a"], ["a"] * 3,
    [None], {}, {"a": 1}, {"a": "b"}, {"a": -1}, {"cat": Int64(2**62)}, [[[[]]]], bson.ObjectId(b"0" * 12),
    bson.Regex("("), bson.Timestamp(1, 1), bson.MinKey(), bson.Code("x"), bson.Decimal128("1"), Binary(b"xx", 4),
    Binary(b"\x93NUMPY\x01\x00", 0x80), bson.DatetimeMS(2**62),
)  # fmt: skip
