"""Verifying one store against another store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dbloader import Record, convert, copy_store, verify_store
from dbloader.checking.verify_store import VerifyReport
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import SourceNotFoundError
from tests.contracts.records import make_records, small_records, write
from tests.support.children import traced_peak
from tests.support.conversion import records
from tests.support.images import plant_photos
from tests.support.lmdb_files import chunk_at, put_chunk, tamper_with_records
from tests.support.stores import store_records


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.lmdb", tmp_path / "b.lmdb"


def verified(places: tuple[Path, Path]) -> VerifyReport:
    return verify_store(places[0], against=places[1])


def compared(places: tuple[Path, Path], a: list[Record], b: list[Record]) -> VerifyReport:
    for place, rows in zip(places, (a, b), strict=True):
        write(place, rows, overwrite=True)
    return verified(places)


def test_copies_in_lmdb_and_mongodb_are_identical(places: tuple[Path, Path], mongo_uri: str) -> None:
    records = make_records(200)
    report = compared(places, records, records)
    assert (report.compared, report.problems) == ({"same": 200}, {})
    write(f"{mongo_uri}.store", records)
    assert verify_store(places[0], against=f"{mongo_uri}.store").problems == {}


def test_each_kind_of_difference_is_found(places: tuple[Path, Path], tmp_path: Path) -> None:
    a = make_records(40)
    b = make_records(40)
    b[0].image = b"other"
    b[2].label = 7
    b[3].fields = {**b[3].fields, "caption": "other"}
    b[4] = replace(b[4], image=np.zeros((3, 4), "<u2"), label=9, width=7)
    b[5].name = "another name"
    report = compared(places, a, b)
    found = [(row["index"], row["name"], row["difference"]) for row in report.first]
    assert found == [
        (5, "class 2/ä 5.jpg", "extra"),
        (None, "another name", "missing"),
        (0, "class 0/ä 0.jpg", "bytes"),
        (2, "class 2/ä 2.jpg", "label"),
        (3, "class 0/ä 3.jpg", "fields"),
        (4, "class 1/ä 4.jpg", "bytes, label, fields"),
    ]
    assert report.compared == {"same": 35}
    assert report.problems == {"extra": 1, "missing": 1, "bytes": 2, "label": 2, "fields": 2}
    verify_store(places[0], against=places[1], output=tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [5, 0, 2, 3, 4]


def test_moved_records_are_matched_by_content(places: tuple[Path, Path]) -> None:
    a = [*make_records(30), Record(label=1), Record(label=1), Record(label=2)]
    report = compared(places, a, [*a[1:], a[0]])
    # two records are equal, so one is still in its place
    assert (report.compared, report.problems) == ({"same": 1, "moved": 32}, {})
    b = [*a[5:], Record(label=3)]
    report = compared(places, a, b)
    assert (report.compared["moved"], report.problems) == (28, {"extra": 5, "missing": 1})


def test_records_with_the_same_name_are_matched_one_to_one(places: tuple[Path, Path]) -> None:
    a = [Record(name="same", label=label) for label in (0, 1, 2, 3)]
    b = [Record(name="same", label=label) for label in (3, 8, 9)]
    report = compared(places, a, b)
    assert report.compared == {"moved": 1}
    assert report.problems == {"extra": 1, "label": 2}


def test_raw_pixels_count_as_changed_when_compared_with_image_files(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 3)
    for name, images in (("files", ImageFormat()), ("raw", ImageFormat(raw=True))):
        convert(root, tmp_path / f"{name}.lmdb", images=images)
    report = verify_store(tmp_path / "raw.lmdb", against=tmp_path / "files.lmdb")
    assert (report.problems, report.compared) == ({}, {"changed": 3})
    report = verify_store(tmp_path / "files.lmdb", against=tmp_path / "raw.lmdb")
    assert report.problems == {"bytes": 3, "fields": 3}  # the format of the image is a field, so it differs too


def test_records_with_different_checksums_are_never_equal(places: tuple[Path, Path]) -> None:
    compared(places, make_records(20), make_records(20))
    chunk = bytearray(chunk_at(places[1], "crc32", 0))
    chunk[4 * 3] ^= 1
    put_chunk(places[1], "crc32", 0, bytes(chunk))  # only the checksum changes
    report = verified(places)
    assert (report.compared, report.problems) == ({"same": 19}, {"fields": 1})


def test_different_order_of_classes_is_a_difference(places: tuple[Path, Path]) -> None:
    for place, classes in zip(places, (["a", "b"], ["b", "a"]), strict=True):
        store_records(place, (), classes=classes)
    assert verified(places).problems == {"classes": 1}


def test_damage_in_the_store_compared_with_is_a_problem(places: tuple[Path, Path]) -> None:
    b = make_records(20)
    b[4].label = 9
    compared(places, make_records(20), b)
    tamper_with_records(places[1], {4: b"x"})
    report = verified(places)
    assert report.problems == {"damaged": 1}
    assert "could not be compared" in report.first[0]["reason"]
    with pytest.raises(SourceNotFoundError, match="there is no such folder or file"):
        verify_store(places[0], against=places[0].with_name("none.lmdb"))


def test_copy_drops_the_differences_that_verify_listed(places: tuple[Path, Path], tmp_path: Path) -> None:
    a = [*make_records(20), Record(label=1), Record(name="twice", label=1), Record(name="twice", label=2)]
    b = [replace(record) for record in a[:18]]
    b[4].label = 9
    b += [a[22], Record(name="new")]  # B has only one of A's two records with this name
    report = compared(places, a, b)
    assert report.compared == {"same": 17, "moved": 1}
    verify_store(places[0], against=places[1], output=tmp_path / "d.jsonl")
    copy_store(places[0], tmp_path / "c.lmdb", drop=tmp_path / "d.jsonl")
    assert [record.name for record in records(tmp_path / "c.lmdb")] == [
        *(record.name for at, record in enumerate(a[:18]) if at != 4), "twice",
    ]  # fmt: skip
    assert verify_store(tmp_path / "c.lmdb", against=places[1]).problems == {"missing": 2}


@pytest.mark.slow
def test_comparison_needs_at_most_120_bytes_per_moved_record(places: tuple[Path, Path]) -> None:
    def peak(count: int) -> int:
        for place, step in zip(places, (1, -1), strict=True):
            write(place, small_records(count)[::step], overwrite=True)
        return traced_peak(lambda: verified(places))

    assert compared(places, small_records(101), small_records(101)[::-1]).compared == {"same": 1, "moved": 100}
    assert peak(20_001) - peak(10_001) < 120 * 10_000
