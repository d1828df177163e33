"""``skip_damaged`` copies the intact records of a damaged store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dbloader import Record, convert, copy_store, open_store, verify_store, write_store
from dbloader.errors import ConversionError, OptionError
from dbloader.records.record import encode
from dbloader.stores.lmdb.keys import record_key
from tests.contracts.records import salt_of
from tests.support.conversion import documents, events, records
from tests.support.images import photo, picture, plant, run
from tests.support.lmdb_files import tamper, tamper_with_records, value_at


def exchanged(source: Path) -> bytes:
    return encode(Record("dog/4.jpg", 1, photo(9))).document(4, salt_of(source))


def flipped(source: Path) -> bytes:
    document = bytearray(value_at(source, b"records", record_key(4)))
    document[-200] ^= 1
    return bytes(document)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {f"{'cat' if n < 3 else 'dog'}/{n}.jpg": photo(n) for n in range(7)} | {"dog/x.jpg": b"<html>"}
    convert(plant(tmp_path / "images", files), tmp_path / "source.lmdb")
    return tmp_path / "source.lmdb"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(flipped, "its CRC-32 is"), (lambda source: None, "is missing"), (exchanged, "has been replaced by another")],
)
def test_skip_damaged_leaves_out_and_names_a_damaged_record(
    tmp_path: Path, source: Path, damage: Callable[[Path], bytes | None], reason: str
) -> None:
    before, old = [record.image for record in records(source)], events(source)
    tamper_with_records(source, {4: damage(source)})
    reasons: list[str] = []
    manifest = copy_store(source, tmp_path / "new.lmdb", skip_damaged=reasons.append)
    (message,) = reasons
    assert "record 4 (dog/4.jpg)" in message
    assert reason in message
    assert manifest.length == 6
    assert [record.image for record in records(tmp_path / "new.lmdb")] == before[:4] + before[5:]
    assert events(tmp_path / "new.lmdb") == [*old, {"name": "dog/4.jpg", "event": "rejected", "reason": message}]
    assert verify_store(tmp_path / "new.lmdb", decode=True).problems == {}


def test_skip_damaged_copies_an_intact_store_byte_for_byte(tmp_path: Path) -> None:
    rows = [
        Record(name="a", label=3, image=photo(1), width=40, height=30, format="JPEG", resized_from=(80, 60)),
        Record(name="b", image=np.zeros((2, 3, 3), np.uint8), fields={"caption": "ü", "mask": picture("PNG")}),
        Record(label=0),
    ]
    write_store(rows, tmp_path / "source.lmdb", classes=["w", "x", "y", "z"])
    manifest = copy_store(tmp_path / "source.lmdb", tmp_path / "new.lmdb", skip_damaged=pytest.fail)
    with open_store(tmp_path / "source.lmdb") as store:
        assert manifest == store.manifest
    assert documents(tmp_path / "new.lmdb") == documents(tmp_path / "source.lmdb")


@pytest.mark.parametrize("column", ["label", "name", "crc32"])
def test_skip_damaged_rebuilds_columns(tmp_path: Path, source: Path, column: str) -> None:
    before = documents(source)
    tamper(source, b"meta", {b"column/%s/" % column.encode() + bytes(8): None})
    copy_store(source, tmp_path / "new.lmdb", skip_damaged=pytest.fail)
    assert documents(tmp_path / "new.lmdb") == before
    assert verify_store(tmp_path / "new.lmdb").problems == {}


def test_records_of_a_missing_shard_are_left_out(tmp_path: Path, source: Path) -> None:
    convert(tmp_path / "images", tmp_path / "shards", shards=3, workers=1)
    before = [record.name for record in records(tmp_path / "shards")]
    lost = sorted((tmp_path / "shards").rglob("*.lmdb"))[1]
    with open_store(lost) as shard:
        names = [record.name for record in shard]
    lost.unlink()
    reasons: list[str] = []
    copy_store(tmp_path / "shards", tmp_path / "new.lmdb", skip_damaged=reasons.append)
    assert len(reasons) == len(names) > 0
    assert [record.name for record in records(tmp_path / "new.lmdb")] == [name for name in before if name not in names]


def test_skip_damaged_keeps_all_records_of_a_store_with_a_damaged_report(tmp_path: Path, source: Path) -> None:
    tamper(source, b"meta", {b"event/" + bytes(8): b"?"})
    reasons: list[str] = []
    manifest = copy_store(source, tmp_path / "new.lmdb", skip_damaged=reasons.append)
    assert manifest.length == 7
    (reason,) = reasons
    assert "event 0 of its report" in reason
    assert verify_store(tmp_path / "new.lmdb").problems == {}


def test_skip_damaged_without_an_intact_record_leaves_nothing(tmp_path: Path, source: Path) -> None:
    tamper_with_records(source, dict.fromkeys(range(7)))
    before = {*tmp_path.iterdir()}
    with pytest.raises(ConversionError, match=r"source\.lmdb: no record of 7 is intact; the first: record 0"):
        copy_store(source, tmp_path / "new.lmdb", skip_damaged=lambda reason: None)
    assert {*tmp_path.iterdir()} == before


def test_skip_damaged_cannot_be_combined_with_a_selection(tmp_path: Path, source: Path) -> None:
    with pytest.raises(OptionError, match=r"skip_damaged \(--skip-damaged\) cannot be combined with where, resume: "):
        copy_store(source, tmp_path / "new.lmdb", skip_damaged=print, where="label==1", resume=True)


def test_skip_damaged_command_names_left_out_records(tmp_path: Path, source: Path) -> None:
    whole = run("copy", str(source), str(tmp_path / "whole.lmdb"), "--skip-damaged")
    assert (whole.status, whole.stderr) == (0, "")
    tamper_with_records(source, {4: None})
    rest = run("copy", str(source), str(tmp_path / "rest.lmdb"), "--skip-damaged")
    assert rest.status == 1
    assert rest.stdout.startswith(f"{tmp_path / 'rest.lmdb'}: 6 records")
    assert rest.stderr.startswith("Error: record 4 (dog/4.jpg) of ")


def test_interrupted_skip_damaged_leaves_nothing(tmp_path: Path, source: Path) -> None:
    def interrupt(_: str) -> None:
        assert (tmp_path / "new.lmdb.partial").exists()
        raise KeyboardInterrupt

    tamper_with_records(source, {4: None})
    before = {*tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        copy_store(source, tmp_path / "new.lmdb", skip_damaged=interrupt)
    assert {*tmp_path.iterdir()} == before
