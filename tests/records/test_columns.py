"""Columns: the facts about records that lie beside them."""

from __future__ import annotations

import struct
import zlib

import pytest

from dbloader import Record
from dbloader.records.columns import (
    CHUNK,
    COLUMNS,
    DTYPES,
    NO_LABEL,
    ColumnChunk,
    is_whole,
    name_hash,
    pack_names,
    seal_chunk,
    unseal_chunk,
    whole_chunk,
)
from dbloader.records.record import encode

SALT = 0x9E3779B9


def test_a_chunk_is_laid_out_byte_by_byte_as_documented() -> None:
    chunk = ColumnChunk()
    records = [
        Record(name="ä", label=-2, image=b"abc", width=2**32 - 1, height=1),
        Record(name="b/c.png", label=2**63 - 1, height=7),
        Record(),
    ]
    encoded = [encode(record) for record in records]
    for record in encoded:
        chunk.append(record)
    assert len(chunk) == 3
    assert chunk.pack() == {
        "label": struct.pack("<3q", -2, 2**63 - 1, -(2**63)),
        "width": struct.pack("<3I", 2**32 - 1, 0, 0),
        "height": struct.pack("<3I", 1, 7, 0),
        "nbytes": struct.pack("<3Q", 3, 0, 0),
        "crc32": struct.pack("<3I", *(record.crc32 for record in encoded)),
        "name_hash": struct.pack("<3I", zlib.crc32("ä".encode()), zlib.crc32(b"b/c.png"), 0),
        "name": struct.pack("<5I", 3, 0, 2, 9, 9) + "äb/c.png".encode(),
    }
    assert set(chunk.pack()) == set(COLUMNS) == {"name", *DTYPES}
    assert NO_LABEL == -(2**63)
    assert CHUNK == 4096


def test_an_unpacked_chunk_is_continued_as_if_it_had_never_been_packed() -> None:
    records = [encode(Record(name=f"{number}" * (number % 4) or None, label=number)) for number in range(30)]
    whole, first = ColumnChunk(), ColumnChunk()
    for record in records:
        whole.append(record)
    for record in records[:17]:
        first.append(record)
    second = ColumnChunk.unpack(first.pack())
    assert len(second) == 17
    for record in records[17:]:
        second.append(record)
    assert second.pack() == whole.pack()


def test_a_record_that_does_not_fit_leaves_a_chunk_as_it_was() -> None:
    chunk, fits = ColumnChunk(), encode(Record(name="a", label=1, image=b"abc", width=3, height=4))
    chunk.append(fits)
    before = chunk.pack()
    wrong = [fits._replace(label=2**63), fits._replace(width=-1), fits._replace(nbytes=-1), fits._replace(crc32=2**32)]
    for record in wrong:
        with pytest.raises(struct.error):
            chunk.append(record)
        assert chunk.pack() == before


def test_a_chunk_that_is_cut_is_that_of_its_first_records() -> None:
    records = [encode(Record(name=f"{number}", label=number, width=number + 1, height=1)) for number in range(20)]
    chunk, first = ColumnChunk(), ColumnChunk()
    for record in records:
        chunk.append(record)
    for record in records[:7]:
        first.append(record)
    chunk.cut(7)
    assert len(chunk) == 7
    assert chunk.pack() == first.pack()


def test_a_name_whose_checksum_is_0_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_hash(b"") == 0
    assert name_hash(b"a") == zlib.crc32(b"a")
    monkeypatch.setattr("dbloader.records.columns.crc32", lambda name: 0)
    assert name_hash(b"a") == 1
    assert name_hash(b"") == 0


@pytest.mark.parametrize("name", DTYPES)
def test_a_column_of_numbers_is_whole_if_it_has_the_bytes_of_its_records(name: str) -> None:
    size = DTYPES[name].itemsize
    assert is_whole(name, bytes(3 * size), 3)
    assert is_whole(name, b"", 0)
    for length in (0, size, 3 * size - 1, 3 * size + 1, 4 * size):
        assert not is_whole(name, bytes(length), 3)


def test_a_column_of_names_is_whole_if_its_offsets_lead_through_it_to_its_end() -> None:
    chunk = pack_names([b"ab", b"", b"cde"])
    assert is_whole("name", chunk, 3)
    for length in range(len(chunk)):
        assert not is_whole("name", chunk[:length], 3)
    assert not is_whole("name", chunk + b"x", 3)
    assert not is_whole("name", chunk, 2)
    assert not is_whole("name", chunk, 4)
    for offsets in ([3, 0, 3, 2, 5], [3, 0, 2, 2, 4], [3, 0, 2, 9, 5], [2, 0, 2, 2, 5], [3, 6, 2, 2, 5]):
        assert not is_whole("name", struct.pack("<5I", *offsets) + b"abcde", 3)


# ---- Chunks as they are stored


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_sealed_chunk_opens_as_what_it_was(kind: type) -> None:
    chunk = unseal_chunk("label", 7, kind(seal_chunk("label", 7, b"0123")))
    assert chunk is not None
    assert bytes(chunk) == b"0123"


def test_the_seal_of_a_chunk_is_laid_out_byte_by_byte_as_documented() -> None:
    crc = zlib.crc32(b"width" + struct.pack(">Q", 258) + b"0123") ^ SALT
    assert seal_chunk("width", 258, b"0123", SALT) == b"0123" + struct.pack("<I", crc)


def test_each_flipped_bit_of_a_sealed_chunk_is_found() -> None:
    sealed = seal_chunk("name", 3, pack_names([b"a", b"", "ö".encode()]))
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unseal_chunk("name", 3, bytes(flipped)) is None
    for length in range(len(sealed)):
        assert unseal_chunk("name", 3, sealed[:length]) is None


def test_a_chunk_is_not_taken_for_one_of_another_column_number_or_store() -> None:
    sealed = seal_chunk("width", 3, bytes(8), SALT)
    assert unseal_chunk("width", 3, sealed, SALT) is not None
    assert unseal_chunk("height", 3, sealed, SALT) is None
    assert unseal_chunk("width", 4, sealed, SALT) is None
    assert unseal_chunk("width", 3, sealed, SALT ^ 1) is None


@pytest.mark.parametrize("stored", [None, b"", b"abc", "text", 7])
def test_what_is_no_chunk_at_all_is_not_one(stored: object) -> None:
    assert unseal_chunk("width", 0, stored) is None


def test_a_whole_chunk_has_as_many_records_as_its_store_gives_it() -> None:
    sealed = seal_chunk("width", 1, bytes(3 * 4))
    assert whole_chunk("width", 1, sealed, CHUNK + 3, 0) is not None
    assert whole_chunk("width", 1, sealed, CHUNK + 2, 0) is None
    assert whole_chunk("width", 1, sealed, CHUNK + 4, 0) is None
