"""Further fields whose values are of one kind have columns."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader.records.columns import is_whole
from dbloader.records.field_columns import (
    MAX_FIELDS,
    MAX_TEXT,
    OTHER,
    KindFinder,
    column_names,
    column_value,
    join_chunks,
    pack_values,
    unpack_values,
)
from dbloader.records.names import pack_names

SCALARS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats() | st.text() | st.just(OTHER)
OF_ONE_KIND = st.one_of(
    *(st.lists(st.none() | kind) for kind in (st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1), st.floats()))
)


@pytest.mark.parametrize(
    ("values", "chunk"),
    [
        ([None, None], b"-" + struct.pack("<I", 2)),
        ([True, None, False], b"?" + bytes([1, 2, 0])),
        ([-1, None], b"i" + struct.pack("<2q", -1, -(2**63))),
        ([0.5, 2, None], b"f" + struct.pack("<3d", 0.5, 2, math.nan)),
        (["ä", None, None], b"t" + struct.pack("<5I", 3, 0, 2, 2, 2) + "ä".encode()),
        ([1, "a"], b"*" + struct.pack("<I", 2)),
        ([True, 1], b"*" + struct.pack("<I", 2)),
        ([0.5, 2**53 + 1], b"*" + struct.pack("<I", 2)),
        ([OTHER], b"*" + struct.pack("<I", 1)),
    ],
)
def test_chunk_has_the_documented_bytes(values: list[Any], chunk: bytes) -> None:
    assert pack_values(values) == chunk
    assert is_whole("field.x", chunk, len(values))
    assert is_whole("field.x", memoryview(chunk), len(values))
    wrong = [chunk[:length] for length in range(len(chunk))] + [chunk + b"x", b"x" + chunk[1:]]
    assert not any(is_whole("field.x", other, len(values)) for other in wrong)
    assert not is_whole("field.x", chunk, len(values) + 1)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, True),
        (True, True),
        (-(2**63) + 1, True),
        (-(2**63), False),  # this number means no value
        (math.inf, True),
        ("ä" * (MAX_TEXT // 2), True),
        ("ä" * (MAX_TEXT // 2 + 1), False),
        (b"bytes", False),
        ([1], False),
        ({"a": 1}, False),
    ],
)
def test_column_holds_numbers_booleans_and_short_texts(value: object, kept: bool) -> None:
    assert column_value(value) is (value if kept else OTHER)


def test_packing_unpacked_values_gives_the_same_chunk() -> None:
    @given(st.lists(SCALARS, max_size=8) | OF_ONE_KIND)
    def check(values: list[Any]) -> None:
        chunk = pack_values([column_value(value) for value in values])
        assert is_whole("field.x", chunk, len(values))
        assert pack_values(unpack_values(memoryview(chunk))) == chunk
        assert unpack_values(chunk) == [column_value(value) for value in values] or chunk[:1] == b"*"

    check()


@pytest.mark.parametrize(
    ("chunks", "kind", "expected"),
    [
        ([[True], [None, False]], "bool", np.array([1, -1, 0], np.int8)),
        ([[True], [False]], "bool", np.array([True, False])),
        ([[7], [None, -7]], "int", np.array([7, -(2**63), -7])),
        ([[7, None], [None], [0.5]], "float", np.array([7, np.nan, np.nan, 0.5])),
        ([[2**60], [None]], "int", np.array([2**60, -(2**63)])),
        ([["a"], [None, None], ["ä", None]], "text", np.array(["a", "", "", "ä", ""], object)),
    ],
)
def test_joined_column_has_the_documented_dtype_and_values(chunks: list[Any], kind: str, expected: Any) -> None:
    finder = KindFinder()
    for chunk in chunks:
        finder.add({"field.x": pack_values(chunk)})
    assert finder.columns(["x"]) == {"x": kind}
    found = join_chunks(map(pack_values, chunks), kind, len(expected)).array()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.owndata


def test_nan_and_an_empty_text_mean_no_value() -> None:
    assert column_value(math.nan) is column_value("") is column_value(None) is None
    assert column_value(0.0) == 0.0
    assert column_value(False) is False


@pytest.mark.parametrize(
    "chunks",
    [
        [[None], [None]],
        [[1], ["a"]],
        [[True], [1]],
        [[2**53 + 1], [0.5]],  # a float64 would round this number
        [[-(2**53) - 1], [0.5]],
        [["a"], [OTHER]],
    ],
)
def test_field_whose_values_do_not_fit_has_no_column(chunks: list[Any]) -> None:
    finder = KindFinder()
    for chunk in chunks:
        finder.add({"field.x": pack_values(chunk)})
    assert finder.columns(["x"]) == {}


def test_number_and_length_of_field_columns_are_limited() -> None:
    names = [str(number) for number in range(MAX_FIELDS)]
    assert column_names(names) == [f"field.{name}" for name in names]
    assert column_names([*names, "one more"]) == []
    assert column_names(["ä" * 100, "ä" * 101]) == ["field." + "ä" * 100]
    assert is_whole("field.name", b"t" + pack_names([b"a"]), 1)
