"""The format of a store, byte by byte. This version writes these bytes, and still reads stores of older versions.

golden.json holds every key and value of a store. ``DBLOADER_WRITE_GOLDEN=1 pytest tests/stores/test_golden.py``
writes it again; do that only with a new version of the format, and keep the old file for the test that reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import lmdb
import numpy as np
import pytest

from dbloader import Record, open_store
from dbloader.records.manifest import Manifest
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.contracts.records import facts
from tests.support.lmdb_files import content_of

GOLDEN = Path(__file__).with_name("golden.json")
PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010800000000")
RECORDS = [
    Record("cat/0.png", 0, PNG, 1, 1, "PNG"),
    Record("dog/ü 日本.jpg", 1, b"\xff\xd8\xff\xd9", 640, 480, "JPEG", fields={"caption": "größer", "score": 0.5}),
    Record("dog/array", 1, np.array([[1, 2], [3, 4]], "<u2"), fields={"boxes": [[1, -2], []], "meta": {"a.b": None}}),
    Record("cat/no label.jpg", None, b"\xff\xd8", 2, 3, "JPEG", "cut short", (20, 30)),
    Record(None, -(2**40), fields={"mask": np.array([True, False]), "big": 2**40, "raw": b"\0\1", "yes": True}),
    Record("cat/0.png", 0, b""),
]
EVENTS = [
    {"name": "cat/bad.jpg", "event": "rejected", "reason": "no image"},
    {"name": "cat/no label.jpg", "event": "damaged", "reason": "cut short"},
]
SETTINGS = {"check": "decode", "max_side": None, "source": "00ff"}
SOURCE = {"path": "/data/ü", "shuffle": 3}
CREATED = "2024-02-29T12:34:56+00:00"
SALT = 0x9E3779B9


def write_golden_store(place: Path) -> Manifest:
    with create_store(place, resumable=True) as writer:
        writer.check_settings(SETTINGS)
        writer.write([encode(record) for record in RECORDS[:3]], events=EVENTS[:1], outcome={"rejected": 1}, position=4)
        writer.commit()
        writer.write([encode(record) for record in RECORDS[3:]], events=EVENTS[1:], outcome={"damaged": 1}, position=7)
        return writer.finish(source=SOURCE, created=CREATED)


def content(place: Path) -> dict[str, dict[str, str]]:
    """Return the keys and values of every sub-database, in hexadecimal."""
    return {
        name.decode(): {key.hex(): value.hex() for key, value in values.items()}
        for name, values in content_of(place).items()
    }


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.setattr("dbloader.records.manifest.__version__", "golden")
    monkeypatch.setattr("secrets.randbits", lambda bits: SALT)
    if os.environ.get("DBLOADER_WRITE_GOLDEN"):
        write_golden_store(tmp_path / "golden.lmdb")
        GOLDEN.write_text(json.dumps(content(tmp_path / "golden.lmdb"), indent=1) + "\n")
    return json.loads(GOLDEN.read_text())  # type: ignore[no-any-return]


def test_store_is_written_byte_for_byte_as_documented(golden: dict[str, dict[str, str]], tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write_golden_store(place)
    written = content(place)
    assert list(written) == list(golden) == ["meta", "records"]
    for database, values in golden.items():
        assert list(written[database]) == list(values)
        for key, value in values.items():
            assert written[database][key] == value, f"{database}: {bytes.fromhex(key)!r}"


def test_older_store_can_be_read(golden: dict[str, dict[str, str]], tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2) as env:
        for name, values in golden.items():
            database = env.open_db(name.encode())
            with env.begin(write=True) as txn:
                for key, value in values.items():
                    txn.put(bytes.fromhex(key), bytes.fromhex(value), db=database)
    bound = [int.from_bytes(bytes.fromhex(document)[-9:-5], "little") for document in golden["records"].values()]
    checksums = [(crc ^ index ^ SALT).to_bytes(4, "little") for index, crc in enumerate(bound)]
    with open_store(place) as store:
        assert [facts(record) for record in store] == [facts(record) for record in RECORDS]
        assert [record.index for record in store] == list(range(6))
        assert store.manifest == Manifest(
            length=6,
            digest=hashlib.sha256(b"".join(checksums)).hexdigest(),
            label_counts={-(2**40): 1, 0: 2, 1: 2},
            labelled=5,
            named=5,
            image_bytes=29 + 4 + 136 + 2,
            width=(1, 640),
            height=(1, 480),
            formats={"JPEG": 2, "PNG": 1},
            columns={"big": "int", "caption": "text", "score": "float", "yes": "bool"},
            fields={"big": 1, "boxes": 1, "caption": 1, "mask": 1, "meta": 1, "raw": 1, "score": 1, "yes": 1},
            outcome={"rejected": 1, "damaged": 1},
            events=2,
            source=SOURCE,
            created=CREATED,
            created_by="dbloader golden",
        )
        assert store.manifest.salt == SALT
        assert list(store.names()) == [record.name or "" for record in RECORDS]
        assert [store.find(str(record.name)) for record in RECORDS if record.name] == [0, 1, 2, 3, 0]
        assert store.column("label").tolist() == [0, 1, 1, -(2**63), -(2**40), 0]
        assert store.column("width").tolist() == [1, 640, 0, 2, 0, 0]
        assert store.column("height").tolist() == [1, 480, 0, 3, 0, 0]
        assert store.column("nbytes").tolist() == [29, 4, 136, 2, 0, 0]
        assert store.column("score").tolist()[1] == 0.5
        assert store.column("caption").tolist() == ["", "größer", "", "", "", ""]
        assert list(store.events()) == EVENTS
        assert store.verify() == store.manifest.digest
