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
from tests.support.images import photo, picture, plant
from tests.support.lmdb_files import tamper, tamper_with_records
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
