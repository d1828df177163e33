"""verify_store finds all damage, decodes images, and compares a store with its source."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, verify_store
from dbloader.conversion.transcode import ImageFormat
from dbloader.records.columns import CHUNK
from tests.contracts.records import make_records, small_records, write
from tests.support.children import in_child
from tests.support.images import photo, picture, plant, plant_photos
from tests.support.lmdb_files import change_manifest, tamper, tamper_with_records
from tests.support.mongo import Server
from tests.support.mongo_stores import database_of, records_in


def named(report: Any) -> list[tuple[int | None, str | None, str]]:
    return [(row["index"], row["name"], row["difference"]) for row in report.first]


def test_verify_names_all_damaged_records(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, small_records(CHUNK + 200))
    tamper_with_records(place, {3: b"x", 64: None, 65: None, CHUNK + 7: b""})
    steps: list[int] = []
    report = verify_store(
        place, output=tmp_path / "bad.jsonl", progress=lambda _, done, total: steps.append(done * (total > 0))
    )
    assert [(index, name) for index, name, _ in named(report)] == [
        (index, f"{index}.jpg") for index in (3, 64, 65, CHUNK + 7)
    ]
    assert report.problems == {"damaged": 4}
    assert steps[-1] == report.records == CHUNK + 200
    rows = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert rows == report.first
    assert "it is missing" in rows[1]["reason"]
    assert not list(tmp_path.glob("*.partial"))


def test_verify_leaves_no_output_file_on_a_full_disk(tmp_path: Path) -> None:
    write(tmp_path / "store.lmdb", small_records(9))
    tamper_with_records(tmp_path / "store.lmdb", {3: b"x"})

    def verify() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))
        with pytest.raises(OSError, match="File too large"):
            verify_store(tmp_path / "store.lmdb", output=tmp_path / "bad.jsonl")

    assert in_child(verify) == 0
    assert not list(tmp_path.glob("bad*"))


def test_verify_finds_damaged_records_and_columns_of_one_chunk(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, make_records(20))
    tamper_with_records(place, {3: b"x", 5: None})
    tamper(place, b"meta", {b"column/width/" + bytes(8): b"?"})
    report = verify_store(place)
    assert [index for index, _, _ in named(report)] == [3, 5, None]
    assert "column width is missing or damaged" in report.first[2]["reason"]


def test_failed_comparison_keeps_problems_found_earlier(tmp_path: Path) -> None:
    root, place = plant_photos(tmp_path / "images", 10), tmp_path / "store.lmdb"
    plant(root, {"cat/bad.jpg": b"no image"})
    convert(root, place)
    tamper_with_records(place, {2: b"x"})
    tamper(place, b"meta", {b"event/" + bytes(8): b"?"})
    found: list[dict[str, Any]] = []
    report = verify_store(place, against=root, found=found.append)
    assert found == report.first
    assert [row["index"] for row in found] == [2, None, None]
    assert f"could not be compared with {root}: " in found[2]["reason"]


def test_verify_reports_a_huge_length_in_the_manifest_once(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, make_records(20))
    change_manifest(place, length=10**12)
    report = verify_store(place, decode=True, against=plant_photos(tmp_path / "images", 1))
    assert [row["reason"].split(": ")[1][:12] for row in report.first] == ["its manifest"]


def test_damaged_records_in_mongodb_are_all_named(mongo_uri: str, mongo_server: Server) -> None:
    write(mongo_uri, make_records(100))
    with database_of(mongo_server, mongo_uri) as database:
        records_in(database).delete_many({"_id": {"$in": [7, 70]}})
    assert [index for index, _, _ in named(verify_store(mongo_uri))] == [7, 70]


def test_images_that_do_not_decode_are_named(tmp_path: Path) -> None:
    whole = photo(1)
    files = {
        "cat/whole.jpg": whole,
        "cat/no end.jpg": whole[:-2],
        "cat/half.jpg": whole[: len(whole) // 2],
        "cat/half.png": picture("PNG")[:-40],
        "cat/text.jpg": b"a text",
    }
    convert(plant(tmp_path / "images", files), tmp_path / "store.lmdb", check="none")
    report = verify_store(tmp_path / "store.lmdb", decode=True)
    assert sorted(row["name"] for row in report.first) == sorted({*files} - {"cat/whole.jpg"})
    assert report.problems == {"undecodable": 4}
    assert all(row["name"] in row["reason"] and str(row["index"]) in row["reason"] for row in report.first)
    assert verify_store(tmp_path / "store.lmdb").problems == {}


def test_verify_decodes_repaired_tiled_and_raw_images(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"cat/a.jpg": photo(1)[:-2], "cat/b.png": picture("PNG")})
    for number, images in enumerate((ImageFormat(), ImageFormat(tile=True, quality=80), ImageFormat(raw=True))):
        convert(tmp_path / "images", tmp_path / f"{number}.lmdb", images=images)
        assert verify_store(tmp_path / f"{number}.lmdb", decode=True).problems == {}


def test_store_is_compared_with_its_folder(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 40)
    plant(root, {"cat/no end.jpg": photo(77)[:-2], "cat/bad.jpg": b"no image"})
    convert(root, tmp_path / "store.lmdb", shuffle_seed=1)
    report = verify_store(tmp_path / "store.lmdb", against=root)
    assert report.problems == {}
    assert report.compared == {"rejected": 1, "same": 40, "repaired": 1}
    (root / "cat" / "0000.jpg").unlink()
    plant(root, {"cat/0002.jpg": photo(78), "cat/new.jpg": photo(79)})
    (root / "cat" / "0004.jpg").rename(root / "dog" / "0004.jpg")
    (root / "ant").mkdir()  # the new class shifts the label of cat to 1 and of dog to 2
    report = verify_store(tmp_path / "store.lmdb", against=root)
    found = {(name, kind) for _, name, kind in named(report)}
    assert {("cat/0000.jpg", "extra"), ("cat/0004.jpg", "extra"), ("dog/0004.jpg", "missing")} <= found
    assert {("cat/new.jpg", "missing"), ("cat/0006.jpg", "label"), ("dog/0001.jpg", "label")} <= found
    (root / "ant").rmdir()
    found = {(name, kind) for _, name, kind in named(verify_store(tmp_path / "store.lmdb", against=root))}
    assert ("cat/0002.jpg", "bytes") in found
    assert len(found) == 5


def test_verify_compares_only_names_of_resized_images(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 4)
    plant(root, {"cat/small.png": picture("PNG")})
    convert(root, tmp_path / "store.lmdb", images=ImageFormat(short_side=20))
    report = verify_store(tmp_path / "store.lmdb", against=root)
    assert (report.problems, report.compared) == ({}, {"changed": 4, "same": 1})
