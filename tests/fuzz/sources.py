"""Untrusted sources: listings, tar and zip files, and LMDB files of other programs."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import Record, encode
from dbloader.sources.base import MAX_BYTES, Entry, Problem, Source
from dbloader.sources.listing import read_listing
from dbloader.sources.other_lmdb import LMDBSource
from dbloader.sources.pickles import image_of, label_of, unpickled
from dbloader.sources.tar import TarSource
from dbloader.sources.zip import ZipSource

_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")


def listing(data: bytes, folder: Path) -> None:
    """The first byte selects the kind of listing."""
    path = folder / f"listing{_SUFFIXES[(data[:1] or b'0')[0] % len(_SUFFIXES)]}"
    path.write_bytes(data[1:])
    with suppress(SourceError):
        _check_entries(read_listing(path, folder))


def listing_seeds() -> list[bytes]:
    table = 'path,label,caption\na.jpg,cat,"x, ""y"""\r\nb/ü.jpg,dog,\n'
    rows: list[dict[str, Any]] = [{"path": "a.jpg", "label": 3, "box": [1, 2.5, None]}, {"path": "ü", "label": None}]
    columns = {"path_list": ["a", "b"], "label_list": ["cat", "dog"]}
    texts = [
        "0" + table, "1" + table.replace(",", "\t"), "0path,label\na,001\nb,120\n", "1image\tclass\na\t1\nb\t-7\n",
        "2" + json.dumps(columns), "2" + json.dumps(rows), "3" + "\n".join(map(json.dumps, rows)),
    ]  # fmt: skip
    return [text.encode() for text in texts]


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


def _tarred(files: dict[str, bytes], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tar_format) as out:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return made.getvalue()[: -(-out.offset // 512) * 512 + 1024]


def tar_seeds() -> list[bytes]:
    shard = {"0.jpg": b"image", "0.cls": b"3", "0.json": b'{"a": [1]}', "0.txt": "ü".encode(), "1.png": b"x"}
    inner = _tarred({"cat/0.jpg": b"image", "cat/._0.jpg": b"", "dog/1.jpg": b"x"})
    long = {f"{'d' * 120}/0.jpg": b"image"}
    tars = [
        _tarred(shard), _tarred({"cat.tar": inner}), inner, _tarred(long), _tarred(long, tarfile.PAX_FORMAT),
    ]  # fmt: skip
    return [kind + made for made in tars for kind in (b"\0", b"\xff")]


def zipped(data: bytes, folder: Path) -> None:
    """The first byte selects whether the rest is a zip, or a zip directory that is completed to a zip."""
    path = folder / "images.zip"
    path.write_bytes(data[1:] if data[:1] < b"\x80" else _with_end(data[1:]))
    with suppress(SourceError):
        source = ZipSource(path, [path])
        _read(source, _check_entries(source), MAX_BYTES)


def _with_end(directory: bytes) -> bytes:
    """Return a zip that has the files of the first seed and the given directory."""
    files, _ = _zip_parts(_zips()[0])
    count = directory.count(b"PK\1\2")
    return files + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(files), 0)


def _zip_parts(made: bytes) -> tuple[bytes, bytes]:
    at = made.index(b"PK\1\2")
    return made[:at], made[at : made.rindex(b"PK\5\6")]


def _zips() -> list[bytes]:
    made = []
    for method, force_zip64 in ((zipfile.ZIP_DEFLATED, False), (zipfile.ZIP_STORED, True)):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as out:
            for name, data in (("cat/0.jpg", b"image" * 50), ("dog/ü.png", b"x"), ("dog/", b""), ("dog/.a.jpg", b"")):
                with out.open(zipfile.ZipInfo(name), "w", force_zip64=force_zip64) as member:
                    member.write(data)
        made.append(file.getvalue())
    return made


def zip_seeds() -> list[bytes]:
    long = struct.pack("<2H3Q", 1, 24, 250, 2**33, 2**64 - 1)  # numbers of 64 bits in the directory
    member = struct.pack("<4s2B5H3L5H2L", b"PK\1\2", *[0] * 8, *[2**32 - 1] * 2, 5, 28, 0, 0, 0, 0, 2**32 - 1)
    directory = _zip_parts(_zips()[0])[1]
    return [*(b"\0" + made for made in _zips()), b"\xff" + directory, b"\xff" + member + b"b.jpg" + long]


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


def _packed(values: dict[bytes, bytes]) -> bytes:
    return b"\xff" + b"".join(struct.pack("<H", len(part)) + part for pair in values.items() for part in pair)


def other_lmdb_seeds() -> list[bytes]:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    values: list[Any] = [(b"image", 3), (pixels, "text"), [pixels[0], None], np.asfortranarray(pixels), np.int64(3)]
    pickles = [pickle.dumps(value, protocol) for value in values for protocol in (2, 4, 5)]
    files = [
        {b"num-samples": b"1", b"image-000000001": b"\xff\xd8\xff", b"label-000000001": b"text"},
        {b"0": pickles[0], b"1": pickles[1], b"__len__": pickle.dumps(2), b"__keys__": pickle.dumps([b"0", b"1"])},
        {b"a": b"\x89PNG", b"\xff": b"x"}, {b"__len__": b"\0\0\0\0"}, {b"__keys__": b"\x93"},
    ]  # fmt: skip
    return [*(b"\0" + data for data in pickles), *map(_packed, files)]


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
