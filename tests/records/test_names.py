"""Names of records, packed."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader.errors import DamagedRecordError
from dbloader.records.columns import CHUNK, is_whole, join_names, name_at, names_in, pack_names

if TYPE_CHECKING:
    from dbloader.records.columns import Names


NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=40)


def packed(names: list[str]) -> list[bytes]:
    """Return chunks of the names, as stores keep them."""
    encoded = [name.encode() for name in names]
    return [pack_names(encoded[start : start + CHUNK]) for start in range(0, len(names), CHUNK)]


def names_of(names: list[str]) -> Names:
    return join_names(iter(packed(names)), len(names))


@pytest.mark.slow
@given(NAMES, st.lists(st.integers(0, 39), max_size=60))
def test_names_are_taken_in_the_order_asked_repeats_included(names: list[str], indices: list[int]) -> None:
    indices = [index for index in indices if index < len(names)]
    taken = names_of(names).take(np.array(indices, np.uint32))
    assert list(taken) == [names[index] for index in indices]
    assert len(taken) == len(indices)
    assert len(taken.data) == sum(len(names[index].encode()) for index in indices)
    assert (taken.data.dtype, taken.offsets.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_any_number_of_names_is_taken(count: int) -> None:
    names = [f"{index}" * (index % 4) for index in range(count + 7)]
    indices = np.random.default_rng(0).permutation(count + 7)[:count]
    assert list(names_of(names).take(indices)) == [names[index] for index in indices]


def test_taking_names_needs_little_memory_beside_them() -> None:
    count = 50_000
    names = names_of([f"a folder/{index:050}.jpg" for index in range(count)])
    indices = np.arange(0, count, 2)
    tracemalloc.start()
    try:
        taken = names.take(indices)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * (taken.data.nbytes + taken.offsets.nbytes)


@pytest.mark.slow
@settings(deadline=None)
@given(NAMES)
def test_names_come_out_of_a_chunk_as_they_went_in(names: list[str]) -> None:
    chunk = pack_names([name.encode() for name in names])
    for kind in (chunk, memoryview(chunk)):
        assert names_in(kind) == [name.encode() for name in names]
        assert [name_at(kind, position) for position in range(len(names))] == names
    assert is_whole("name", chunk, len(names))


@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 2, 1], [0, 1, 4]])
def test_a_chunk_whose_offsets_leave_out_bytes_is_not_whole(offsets: list[int]) -> None:
    assert is_whole("name", np.array([2, 0, 1, 3], "<u4").tobytes() + b"abc", 2)
    assert not is_whole("name", np.array([2, *offsets], "<u4").tobytes() + b"abc", 2)


@pytest.mark.parametrize("count", [0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_names_are_a_sequence_of_str(count: int) -> None:
    expected = [f"{number}/ü" * (number % 3) for number in range(count)]
    names = names_of(expected)
    assert len(names) == count
    assert list(names) == expected
    assert names[:] == expected
    assert names[1:-1:2] == expected[1:-1:2]
    assert names[::-1] == expected[::-1]
    for position in range(-count, count, 1 + count // 50):
        assert names[position] == expected[position]
    for position in (count, -count - 1):
        with pytest.raises(IndexError, match="range object index out of range"):
            names[position]
    assert repr(names) == f"<{count} names, packed>"
    if count > 1:
        assert expected[1] in names
        assert names.index(expected[1]) == 1
    assert "absent" not in names


def test_a_name_that_is_not_utf8_is_a_damaged_record() -> None:
    chunk = pack_names([b"fine", b"\xff"])
    assert name_at(chunk, 0) == "fine"
    with pytest.raises(DamagedRecordError, match="is not UTF-8"):
        name_at(chunk, 1)
    names = join_names(iter([chunk]), 2)
    assert names[0] == "fine"
    with pytest.raises(DamagedRecordError, match="is not UTF-8"):
        names[1]
    with pytest.raises(DamagedRecordError, match="is not UTF-8"):
        list(names)
