"""Untrusted sources: listings, tar and zip files, and LMDB files of other programs."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import lmdb

from dbloader.errors import FieldError, SourceError
from dbloader.ext.sources.listing import read_listing
from dbloader.ext.sources.other_lmdb import LMDBSource
from dbloader.ext.sources.pickles import image_of, label_of, unpickled
from dbloader.ext.sources.tar import TarSource
from dbloader.ext.sources.zip import ZipSource
from dbloader.records.record import Record, encode
from dbloader.sources.base import MAX_BYTES, Entry, Problem, Source

_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")


def listing(data: bytes, folder: Path) -> None:
    """The first byte selects the kind of listing."""
    path = folder / f"listing{_SUFFIXES[(data[:1] or b'0')[0] % len(_SUFFIXES)]}"
    path.write_bytes(data[1:])
    with suppress(SourceError):
        _check_entries(read_listing(path, folder))


def tar(data: bytes, folder: Path) -> None:
    """If the first byte is 128 or more, correct the checksums of the headers."""
    path = folder / "images.tar"
    path.write_bytes(data[1:] if data[:1] < b"\x80" else _with_checksums(data[1:]))
    with suppress(SourceError):
        source = TarSource(path, [path])
        _read(source, _check_entries(source), path.stat().st_size)


def _with_checksums(data: bytes) -> bytes:
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar" and len(block) == 512:
            unsigned = sum(block[:148]) + 8 * 0x20 + sum(block[156:])
            blocks[number] = block[:148] + b"%06o\0 " % unsigned + block[156:]
    return b"".join(blocks)


def zipped(data: bytes, folder: Path) -> None:
    """The first byte selects whether the rest is a zip, or a zip directory that is completed to a zip."""
    path = folder / "images.zip"
    path.write_bytes(data[1:] if data[:1] < b"\x80" else _with_end(data[1:]))
    with suppress(SourceError):
        source = ZipSource(path, [path])
        _read(source, _check_entries(source), MAX_BYTES)


def _with_end(directory: bytes) -> bytes:
    """Return a zip that has the files of the first input in the corpus and the given directory."""
    first = bytes.fromhex(Path(__file__).with_name("corpus").joinpath("zip.hex").read_text().partition("\n")[0])
    files = first[1 : first.index(b"PK\1\2")]
    count = directory.count(b"PK\1\2")
    return files + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(files), 0)


def other_lmdb(data: bytes, folder: Path) -> None:
    """The first byte selects whether the rest is a pickle, or keys and values that each follow their length."""
    kind, data = data[:1], data[1:]
    if kind < b"\x60":
        with suppress(ValueError):
            label_of(unpickled(data))
        with suppress(ValueError):
            image_of(unpickled(data))
    else:
        path = folder / "old.lmdb"
        path.unlink(missing_ok=True)
        with lmdb.open(str(path), subdir=False, lock=False, sync=False) as env, env.begin(write=True) as txn:
            for key, value in _pairs(data):
                txn.put(key[:500] or b"0", value)
        with suppress(SourceError), closing(LMDBSource(path, path)) as source:
            _read(source, _check_entries(source), 2**31)


def _pairs(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    parts, at = [], 0
    while at + 2 <= len(data):
        (size,) = struct.unpack_from("<H", data, at)
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return zip(parts[::2], parts[1::2], strict=False)


def _check_entries(source: Source) -> list[Any]:
    """Return the items of a source, the same each time, with valid text and with fields that a record can hold."""
    items = list(source.entries())
    assert repr(list(source.entries())) == repr(items)
    for item in items:
        assert isinstance(item, Problem | Entry)
        item.name.encode()
        if isinstance(item, Problem):
            item.reason.encode()
        elif item.label is None or abs(item.label) < 2**63:
            with suppress(FieldError):
                encode(Record(item.name, item.label, fields=item.fields))
    for text in (*source.classes, *source.warnings):
        text.encode()
    return items


def _read(source: Source, items: list[Any], most: int) -> None:
    held: list[int] = []
    for data in source.read([item for item in items if isinstance(item, Entry)], held.append):
        assert isinstance(data, Problem) or len(data) <= most
    assert max(held, default=0) <= most
