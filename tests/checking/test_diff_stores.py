"""Comparing two stores."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dbloader import Record, convert, copy_store, create_store, diff_stores
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import DamagedRecordError, StoreNotFoundError
from tests.contracts.records import make_records, small_records, write
from tests.support.conversion import records
from tests.support.images import encoded, photo, picture, plant_photos
from tests.support.jpegs import draw
from tests.support.lmdb_files import chunk_at, put_chunk, tamper_with_records

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.checking.diff_stores import DiffReport


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.lmdb", tmp_path / "b.lmdb"


def compared(places: tuple[Path, Path], a: list[Record], b: list[Record], pixels: bool = False) -> DiffReport:
    for place, rows in zip(places, (a, b), strict=True):
        write(place, rows, overwrite=True)
    return diff_stores(*places, pixels=pixels)


def test_copies_are_identical_also_in_mongodb(places: tuple[Path, Path], mongo_uri: str) -> None:
    records = make_records(200)
    report = compared(places, records, records)
    assert report.identical
    assert (report.records, report.same, report.moved, report.differences) == ((200, 200), 200, 0, {})
    write(f"{mongo_uri}.store", records)
    assert diff_stores(places[0], f"{mongo_uri}.store").identical


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
        (5, "class 2/ä 5.jpg", "only in A"),
        (None, "another name", "only in B"),
        (0, "class 0/ä 0.jpg", "bytes"),
        (2, "class 2/ä 2.jpg", "label"),
        (3, "class 0/ä 3.jpg", "fields"),
        (4, "class 1/ä 4.jpg", "bytes, label, fields"),
    ]
    assert report.same == 35
    assert report.differences == {"only in A": 1, "only in B": 1, "bytes": 2, "label": 2, "fields": 2}
    diff_stores(*places, output=tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [5, 0, 2, 3, 4]
    assert not report.identical


def test_records_that_moved_are_the_same_though_those_without_a_name_are_only_matched_by_content(
    places: tuple[Path, Path],
) -> None:
    a = [*make_records(30), Record(label=1), Record(label=1), Record(label=2)]
    report = compared(places, a, [*a[1:], a[0]])
    assert (report.same, report.moved, report.differences) == (1, 32, {})  # two records are alike
    b = [*a[5:], Record(label=3)]
    report = compared(places, a, b)
    assert (report.moved, report.differences) == (28, {"only in A": 5, "only in B": 1})


def test_records_of_one_name_are_matched_one_to_one(places: tuple[Path, Path]) -> None:
    a = [Record(name="same", label=label) for label in (0, 1, 2, 3)]
    b = [Record(name="same", label=label) for label in (3, 8, 9)]
    report = compared(places, a, b)
    assert (report.same, report.moved) == (0, 1)
    assert report.differences == {"only in A": 1, "label": 2}


def test_many_records_of_one_name_take_no_quadratic_time(places: tuple[Path, Path]) -> None:
    a, b = ([Record(name="same", label=n + shift) for n in range(20_000)] for shift in (0, 50_000))
    report = compared(places, a, b)  # 200,000,000 comparisons would outlast the time that a test has
    assert report.differences == {"label": 20_000}


def test_pixels_are_compared_where_bytes_differ(places: tuple[Path, Path]) -> None:
    image = draw(24, 18)
    pixels = np.asarray(image)
    a = [
        Record(name="same pixels", image=encoded(image, "PNG")),
        Record(name="other pixels", image=encoded(image, "PNG")),
        Record(name="array", image=encoded(image, "PNG")),
        Record(name="does not decode", image=photo()[:200]),
    ]
    b = [
        Record(name="same pixels", image=encoded(image, "BMP")),
        Record(name="other pixels", image=picture("PNG", 5)),
        Record(name="array", image=pixels),
        Record(name="does not decode", image=photo()[:200] + b"?"),
    ]
    report = compared(places, a, b, pixels=True)
    found = {row["name"]: row["difference"] for row in report.first}
    assert found == {
        "same pixels": "bytes",
        "other pixels": "bytes, pixels",
        "array": "bytes",
        "does not decode": "bytes, pixels",
    }


def test_tiling_without_loss_keeps_all_pixels(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 3)
    for name, images in (("files", ImageFormat()), ("raw", ImageFormat(raw=True))):
        convert(root, tmp_path / f"{name}.lmdb", images=images)
    report = diff_stores(tmp_path / "files.lmdb", tmp_path / "raw.lmdb", pixels=True)
    assert report.differences == {"bytes": 3, "fields": 3}  # the format of the image is one


def test_records_whose_checksums_differ_are_never_called_the_same(places: tuple[Path, Path]) -> None:
    compared(places, make_records(20), make_records(20))
    chunk = bytearray(chunk_at(places[1], "crc32", 0))
    chunk[4 * 3] ^= 1
    put_chunk(places[1], "crc32", 0, bytes(chunk))  # the record itself is as it was
    report = diff_stores(*places)
    assert (report.same, report.differences, report.identical) == (19, {"fields": 1}, False)


def test_other_classes_are_a_difference(places: tuple[Path, Path]) -> None:
    for place, classes in zip(places, (["a", "b"], ["b", "a"]), strict=True):
        with create_store(place) as writer:
            writer.finish(classes=classes)
    report = diff_stores(*places)
    assert not report.classes
    assert not report.identical


def test_what_cannot_be_read_is_an_error_and_leaves_no_listing(places: tuple[Path, Path], tmp_path: Path) -> None:
    b = make_records(20)
    b[4].label = 9
    compared(places, make_records(20), b)
    tamper_with_records(places[1], {4: b"x"})
    with pytest.raises(DamagedRecordError, match=r"record 4 .*b\.lmdb is damaged"):
        diff_stores(*places, output=tmp_path / "rows.jsonl")
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        diff_stores(places[0], tmp_path / "none.lmdb")
    assert not list(tmp_path.glob("rows*"))


def test_a_listing_of_differences_is_what_copy_drops(places: tuple[Path, Path], tmp_path: Path) -> None:
    a = [*make_records(20), Record(label=1), Record(name="twice", label=1), Record(name="twice", label=2)]
    b = [replace(record) for record in a[:18]]
    b[4].label = 9
    b += [a[22], Record(name="new")]  # one of the two records of a name is in B
    report = compared(places, a, b)
    assert (report.same, report.moved) == (17, 1)
    diff_stores(*places, output=tmp_path / "d.jsonl")
    copy_store(places[0], tmp_path / "c.lmdb", drop=tmp_path / "d.jsonl")
    assert [record.name for record in records(tmp_path / "c.lmdb")] == [
        *(record.name for at, record in enumerate(a[:18]) if at != 4), "twice",
    ]  # fmt: skip
    report = diff_stores(tmp_path / "c.lmdb", places[1])
    assert report.differences == {"only in B": 2}


@pytest.mark.slow
def test_memory_is_about_a_hundred_bytes_for_each_record_that_moved(places: tuple[Path, Path]) -> None:
    def peak(count: int) -> int:
        """Return the peak of what Python and numpy allocate; the pages of the files are not theirs."""
        for place, step in zip(places, (1, -1), strict=True):
            write(place, small_records(count)[::step], overwrite=True)
        tracemalloc.start()
        try:
            assert diff_stores(*places).moved == count - count % 2
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(101)  # imports
    assert peak(30_001) - peak(10_001) < 120 * 20_000
