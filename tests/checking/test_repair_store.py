"""Repairing a store: a new store of what is whole, and a folder of the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dbloader import Record, convert, copy_store, create_store, open_store, repair_store, verify_store, write_store
from dbloader.errors import ConversionError, DamagedStoreError, StoreExistsError
from dbloader.records.record import encode
from tests.support.conversion import documents, events, records
from tests.support.images import END, photo, picture, plant
from tests.support.lmdb_files import change_manifest, tamper, tamper_with_records, value_at

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files() -> dict[str, bytes]:
    whole = [photo(n) for n in range(4)]
    return {
        "cat/a.jpg": whole[0],
        "cat/b.jpg": whole[1][:-2],
        "cat/c.JPG": whole[2][: len(whole[2]) // 2],
        "dog/d.png": picture("PNG"),
        "dog/e.png": picture("PNG", 3)[:-40],
        "dog/f.jpg": b"<html>",
    }


@pytest.fixture
def source(tmp_path: Path, files: dict[str, bytes]) -> Path:
    place = tmp_path / "source.lmdb"
    convert(plant(tmp_path / "images", files), place, check="none")
    return place


def test_what_is_whole_or_can_be_made_whole_is_in_the_new_store(
    tmp_path: Path, source: Path, files: dict[str, bytes]
) -> None:
    before = source.read_bytes()
    report = repair_store(source, tmp_path / "new.lmdb")
    assert (report.records, report.repaired, report.rejected, report.damaged) == (3, 1, 3, 0)
    assert {record.name: record.image for record in records(tmp_path / "new.lmdb")} == {
        "cat/a.jpg": files["cat/a.jpg"],
        "cat/b.jpg": files["cat/b.jpg"] + END,
        "dog/d.png": files["dog/d.png"],
    }
    with open_store(tmp_path / "new.lmdb") as store, open_store(source) as old:
        assert store.verify() == report.digest
        assert store.manifest.classes == old.manifest.classes == ("cat", "dog")
        assert store.column("label").tolist() == [0, 0, 1]
        assert store.manifest.source["check"] == "decode"
        assert store.manifest.depths == {"8-bit": 3}
        assert store.manifest.outcome["rejected"] == 3
    assert {event["name"] for event in events(tmp_path / "new.lmdb")} == {*files} - {"cat/a.jpg", "dog/d.png"}
    assert verify_store(tmp_path / "new.lmdb", decode=True, against=tmp_path / "images").problems == {}
    assert source.read_bytes() == before


def test_the_rest_is_in_the_quarantine_under_safe_names_with_the_reasons(
    tmp_path: Path, source: Path, files: dict[str, bytes]
) -> None:
    report = repair_store(source, tmp_path / "new.lmdb")
    folder = tmp_path / "new.lmdb.quarantine"
    assert report.quarantine == str(folder)
    rows = [json.loads(line) for line in (folder / "listing.jsonl").read_text().splitlines()]
    assert [(row["file"], row["name"], row["index"]) for row in rows] == [
        ("000000002.jpg", "cat/c.JPG", 2),
        ("000000004.png", "dog/e.png", 4),
        ("000000005.jpg", "dog/f.jpg", 5),
    ]
    assert "is damaged: " in rows[0]["reason"]
    assert "in no known image format" in rows[2]["reason"]
    assert {path.name for path in folder.iterdir()} == {"listing.jsonl", *(row["file"] for row in rows)}
    assert [(folder / row["file"]).read_bytes() for row in rows] == [files[row["name"]] for row in rows]
    assert not list(tmp_path.glob("*.partial"))


def test_records_that_are_whole_keep_every_byte(tmp_path: Path) -> None:
    rows = [
        Record(name="a", label=3, image=photo(1), width=40, height=30, format="JPEG", resized_from=(80, 60)),
        Record(name="b", image=np.zeros((2, 3, 3), np.uint8), fields={"caption": "ü", "mask": picture("PNG")}),
        Record(label=0),
    ]
    write_store(rows, tmp_path / "source.lmdb", classes=["w", "x", "y", "z"])
    report = repair_store(tmp_path / "source.lmdb", tmp_path / "new.lmdb")
    assert report.quarantine == ""
    assert documents(tmp_path / "new.lmdb") == documents(tmp_path / "source.lmdb")
    assert {path.name for path in tmp_path.iterdir()} == {"source.lmdb", "new.lmdb"}


def test_a_name_never_leads_out_of_the_quarantine(tmp_path: Path) -> None:
    names = ["../../out.jpg", "/etc/passwd.png", "a/..\\b.jpg\n", "x.sh", "ü" * 300 + ".jpg", ".."]
    with create_store(tmp_path / "source.lmdb") as writer:
        writer.write(encode(Record(name=name, image=b"bad")) for name in [*names, None])
        writer.write([encode(Record(name="good", image=photo()))])
        writer.finish()
    before = {*tmp_path.iterdir()}
    repair_store(tmp_path / "source.lmdb", tmp_path / "new.lmdb")
    folder = tmp_path / "new.lmdb.quarantine"
    assert {*tmp_path.iterdir()} - before == {tmp_path / "new.lmdb", folder}
    assert sorted(path.name for path in folder.iterdir()) == [
        "000000000.jpg", "000000001.png", "000000002.bin", "000000003.bin", "000000004.jpg", "000000005.bin",
        "000000006.bin", "listing.jsonl",
    ]  # fmt: skip


def test_damaged_records_are_put_into_the_quarantine_as_they_are(tmp_path: Path, source: Path) -> None:
    bad = bytearray(value_at(source, b"records", bytes(8)))
    bad[-200] ^= 1
    tamper_with_records(source, {0: bytes(bad), 3: None})
    tamper(source, b"meta", {b"column/label/" + bytes(8): None})
    report = repair_store(source, tmp_path / "new.lmdb")
    assert (report.records, report.repaired, report.rejected, report.damaged) == (1, 1, 3, 2)
    folder = tmp_path / "new.lmdb.quarantine"
    rows = {row["index"]: row for row in map(json.loads, (folder / "listing.jsonl").read_text().splitlines())}
    assert (rows[0]["file"], rows[0]["name"]) == ("000000000.bson", "cat/a.jpg")
    assert (folder / "000000000.bson").read_bytes() == bad
    assert "CRC-32" in rows[0]["reason"]
    assert rows[3]["file"] == ""
    assert "is missing" in rows[3]["reason"]
    assert verify_store(tmp_path / "new.lmdb", decode=True).problems == {}


def test_a_damaged_report_is_noted_and_the_rest_repaired(tmp_path: Path, files: dict[str, bytes]) -> None:
    plant(tmp_path / "images", files)
    source = tmp_path / "source.lmdb"
    convert(tmp_path / "images", source)
    tamper(source, b"meta", {b"event/" + bytes(7) + b"\x01": b"?"})
    report = repair_store(source, tmp_path / "new.lmdb")
    assert (report.records, report.damaged) == (3, 1)
    assert "event 1 of its report" in (tmp_path / "new.lmdb.quarantine" / "listing.jsonl").read_text()
    assert verify_store(tmp_path / "new.lmdb").problems == {}


def test_records_that_were_kept_damaged_are_left_out(tmp_path: Path, files: dict[str, bytes]) -> None:
    plant(tmp_path / "images", files)
    convert(tmp_path / "images", tmp_path / "source.lmdb", on_damaged="keep")
    report = repair_store(tmp_path / "source.lmdb", tmp_path / "new.lmdb")
    assert (report.records, report.repaired, report.rejected) == (3, 0, 2)
    with open_store(tmp_path / "new.lmdb") as store:
        assert "damaged" not in store.manifest.outcome
    assert verify_store(tmp_path / "new.lmdb").problems == {}


def test_a_store_in_mongodb_is_repaired_into_another(
    tmp_path: Path, source: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_store(source, f"{mongo_uri}.source")
    report = repair_store(f"{mongo_uri}.source", f"{mongo_uri}.new")
    assert report.quarantine.endswith(".new.quarantine")
    assert len([*(tmp_path / report.quarantine).iterdir()]) == 4
    repair_store(source, tmp_path / "new.lmdb")
    assert documents(f"{mongo_uri}.new") == documents(tmp_path / "new.lmdb")


def test_nothing_is_left_where_nothing_is_whole_or_something_is_in_the_way(tmp_path: Path, source: Path) -> None:
    with create_store(tmp_path / "bad.lmdb") as writer:
        writer.write([encode(Record(name="a", image=b"bad"))])
        writer.finish()
    before = {*tmp_path.iterdir()}
    with pytest.raises(ConversionError, match=r"bad\.lmdb: not one of its 1 records is whole; the first: is in no"):
        repair_store(tmp_path / "bad.lmdb", tmp_path / "new.lmdb")
    assert {*tmp_path.iterdir()} == before
    (tmp_path / "new.lmdb.quarantine").mkdir()
    with pytest.raises(StoreExistsError, match=r"new\.lmdb\.quarantine exists already: move it away"):
        repair_store(source, tmp_path / "new.lmdb")
    with pytest.raises(StoreExistsError, match=r"source\.lmdb exists already"):
        repair_store(source, source)
    assert {*tmp_path.iterdir()} == {*before, tmp_path / "new.lmdb.quarantine"}


def test_a_repair_begins_again_with_overwrite_where_a_killed_one_left_its_files(tmp_path: Path, source: Path) -> None:
    (tmp_path / "new.lmdb.quarantine.partial").mkdir()
    (tmp_path / "new.lmdb.quarantine.partial" / "000000099.jpg").touch()
    writer = create_store(tmp_path / "new.lmdb", resumable=True)  # what it commits stays, as after a kill
    with writer:
        writer.write([encode(Record(name="old"))])
        writer.commit()
    with pytest.raises(StoreExistsError, match=r"overwrite \(--overwrite\) begins again"):
        repair_store(source, tmp_path / "new.lmdb")
    report = repair_store(source, tmp_path / "new.lmdb", overwrite=True)
    assert (report.records, report.rejected) == (3, 3)
    assert len([*(tmp_path / "new.lmdb.quarantine").iterdir()]) == 4
    assert not list(tmp_path.glob("*.partial"))


def test_a_store_that_promises_records_without_end_is_refused(tmp_path: Path, source: Path) -> None:
    change_manifest(source, length=10**12)
    with pytest.raises(DamagedStoreError, match="its manifest"):
        repair_store(source, tmp_path / "new.lmdb")
    assert not list(tmp_path.glob("new*"))
