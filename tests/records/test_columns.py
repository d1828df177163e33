"""Columns and packed names have the documented bytes, and damaged chunks are refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader import Record
from dbloader.errors import DamagedRecordError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, NO_LABEL, ColumnChunk, is_whole, seal_chunk, unseal_chunk
from dbloader.records.names import Names, join_names, name_at, names_in, pack_names
from dbloader.records.record import EncodedRecord, encode

SALT = 0x9E3779B9
NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=40)


def chunk_of(records: list[EncodedRecord]) -> ColumnChunk:
    chunk = ColumnChunk()
    for record in records:
        chunk.append(record)
    return chunk


def names_of(names: list[str]) -> Names:
    encoded = [name.encode() for name in names]
    chunks = (pack_names(encoded[start : start + CHUNK]) for start in range(0, len(names), CHUNK))
    return join_names(chunks, len(names))


def test_chunk_has_the_documented_bytes() -> None:
    records = [
        Record(name="ä", label=-2, image=b"abc", width=2**32 - 1, height=1),
        Record(name="116.XYit", label=2**63 - 1, height=7),  # a name whose CRC-32 is 0
        Record(),
    ]
    encoded = [encode(record) for record in records]
    assert chunk_of(encoded).pack() == {
        "label": struct.pack("<3q", -2, 2**63 - 1, -(2**63)),
        "width": struct.pack("<3I", 2**32 - 1, 0, 0),
        "height": struct.pack("<3I", 1, 7, 0),
        "nbytes": struct.pack("<3Q", 3, 0, 0),
        "crc32": struct.pack("<3I", *(record.crc32 for record in encoded)),
        "name_hash": struct.pack("<3I", zlib.crc32("ä".encode()), 1, 0),
        "name": struct.pack("<5I", 3, 0, 2, 10, 10) + "ä116.XYit".encode(),
    }
    assert (set(COLUMNS), NO_LABEL, CHUNK) == ({"name", *DTYPES}, -(2**63), 4096)


@pytest.mark.parametrize("name", DTYPES)
def test_chunk_of_numbers_needs_one_value_per_record(name: str) -> None:
    size = DTYPES[name].itemsize
    assert is_whole(name, bytes(3 * size), 3)
    assert is_whole(name, b"", 0)
    assert not any(is_whole(name, bytes(length), 3) for length in (0, size, 3 * size - 1, 3 * size + 1, 4 * size))


def test_chunk_of_names_needs_valid_offsets() -> None:
    chunk = pack_names([b"ab", b"", b"cde"])
    assert is_whole("name", chunk, 3)
    assert not any(is_whole("name", chunk[:length], 3) for length in range(len(chunk)))
    assert not is_whole("name", chunk + b"x", 3)
    assert not is_whole("name", chunk, 2)
    assert not is_whole("name", chunk, 4)
    wrong = ([3, 0, 3, 2, 5], [3, 0, 2, 2, 4], [3, 0, 2, 9, 5], [2, 0, 2, 2, 5], [3, 6, 2, 2, 5], [3, 1, 2, 2, 5])
    for offsets in wrong:
        assert not is_whole("name", struct.pack("<5I", *offsets) + b"abcde", 3)


# Chunks as they are stored


def test_changed_or_moved_chunk_is_refused() -> None:
    sealed = seal_chunk("name", 3, pack_names([b"a", b"", "ö".encode()]), SALT)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unseal_chunk("name", 3, bytes(flipped), SALT) is None
    for wrong in (*(sealed[:length] for length in range(len(sealed))), None, b"", "text", 7):
        assert unseal_chunk("name", 3, wrong, SALT) is None
    for column, number, salt in (("width", 3, SALT), ("name", 4, SALT), ("name", 3, SALT ^ 1)):
        assert unseal_chunk(column, number, sealed, salt) is None


# Names


@pytest.mark.slow
@given(NAMES, st.lists(st.integers(0, 39), max_size=60))
def test_packed_names_are_unpacked_in_any_order(names: list[str], indices: list[int]) -> None:
    chunk = pack_names([name.encode() for name in names])
    for kind in (chunk, memoryview(chunk)):
        assert names_in(kind) == [name.encode() for name in names]
        assert [name_at(kind, position) for position in range(len(names))] == names
    assert is_whole("name", chunk, len(names))
    indices = [index for index in indices if index < len(names)]
    taken = names_of(names).take(np.array(indices, np.uint32))
    assert list(taken) == [names[index] for index in indices]
    assert len(taken.data) == sum(len(names[index].encode()) for index in indices)
    assert (taken.data.dtype, taken.offsets.dtype) == (np.uint8, np.int64)


def test_taking_many_names_needs_little_memory() -> None:
    count = 50_000
    expected = [f"a folder/{index:050}.jpg" * (index % 3 > 0) for index in range(count)]
    names, indices = names_of(expected), np.random.default_rng(0).permutation(count)[: count // 2]
    tracemalloc.start()
    try:
        taken = names.take(indices)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(taken) == [expected[index] for index in indices]
    assert peak < 4 * (taken.data.nbytes + taken.offsets.nbytes)


@pytest.mark.parametrize("count", [0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_packed_names_behave_like_a_sequence_of_str(count: int) -> None:
    expected = [f"{number}/ü" * (number % 3) for number in range(count)]
    names = names_of(expected)
    assert len(names) == count
    assert list(names) == names[:] == expected
    assert names[1:-1:2] == expected[1:-1:2]
    assert names[::-1] == expected[::-1]
    for position in range(-count, count, 1 + count // 50):
        assert names[position] == expected[position]
    for position in (count, -count - 1):
        with pytest.raises(IndexError, match="range object index out of range"):
            names[position]
    assert repr(names) == f"<{count} names, packed>"
    assert "absent" not in names


def test_name_that_is_not_utf8_raises() -> None:
    chunk = pack_names([b"fine", b"\xff"])
    names = join_names(iter([chunk]), 2)
    assert name_at(chunk, 0) == names[0] == "fine"
    for read in (lambda: name_at(chunk, 1), lambda: names[1], lambda: list(names)):
        with pytest.raises(DamagedRecordError, match="is not UTF-8"):
            read()
