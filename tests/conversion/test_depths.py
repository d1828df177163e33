"""Images of more than 8 bits, of values without a range and of several frames in a conversion and its report."""

from __future__ import annotations

import io
import struct
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import dbloader
import dbloader.stores.writer
from dbloader import ImageFormat, LMDBDataset, convert, write_store
from dbloader.errors import PixelRangeError
from dbloader.images.pillow import open_pillow
from dbloader.stores.open import open_store
from tests.support.conversion import interrupt, records, report_lines, verified
from tests.support.deep import (
    BYTES,
    COLORED,
    DEEP,
    FLOATS,
    GRAY,
    PLANES,
    UNKNOWN,
    UPPER,
    moving,
    planar_tiff,
    save,
    tiff,
)
from tests.support.images import photo, plant, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.deep import Array


@pytest.fixture
def root(tmp_path: Path) -> Path:
    deep = {"gray.png": GRAY["PNG"][0], "colors.png": COLORED["PNG, RGB"][0], "float.tif": UNKNOWN["TIFF, float"][0]}
    return plant(tmp_path / "images", {f"cat/{name}": data for name, data in {**deep, "0.jpg": photo()}.items()})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def test_deep_images_are_stored_as_they_are_counted_named_and_warned_of(root: Path, place: Path) -> None:
    report = convert(root, place)
    assert (report.records, report.rejected, report.deep) == (4, 0, 3)
    for record in records(place):
        assert record.image == (root / str(record.name)).read_bytes()
    (warning,) = report.warnings
    assert warning.startswith(
        "3 images have values of more than 8 bits, or of no known range (the store has 2 of 16-bit, 1 of 32-bit float"
    )
    assert [(line["name"], line["event"], line["reason"][:23]) for line in report_lines(report)] == [
        ("cat/colors.png", "deep", "has 16-bit values, and "),
        ("cat/float.tif", "deep", "has 32-bit float values"),
        ("cat/gray.png", "deep", "has 16-bit values, and "),
    ]
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 1, "16-bit": 2, "32-bit float": 1}
        assert store.manifest.outcome["deep"] == 3
    assert "\n  depths      2 16-bit, 1 32-bit float, 1 8-bit\n" in run("info", place).stdout


def test_the_report_promises_no_decoding_of_values_without_a_range(tmp_path: Path, place: Path) -> None:
    signed = UNKNOWN["TIFF, 8 bits signed"][0]
    folder = plant(tmp_path / "images", {"cat/0.tif": UNKNOWN["TIFF, float"][0], "cat/1.tif": signed})
    told = "values of no known range: it is stored with them, and needs a decode= of your own"
    report = convert(folder, place)
    assert report.warnings[-1].startswith(
        "2 images have values of more than 8 bits, or of no known range (the store has"
    )
    assert [line["reason"] for line in report_lines(report)] == [
        f"has 32-bit float {told}", f"has 8-bit signed {told}",
    ]  # fmt: skip


def test_the_command_says_it_in_one_line(root: Path, place: Path) -> None:
    outcome = run("convert", root, place)
    assert outcome.status == 0
    assert outcome.stderr.startswith("Warning: 3 images have values of more than 8 bits")
    assert outcome.stderr.count("\n") == 1
    assert "    deep      cat/gray.png: has 16-bit values, and is stored with all of their bits" in outcome.stdout


@pytest.mark.parametrize("check", ["decode", "structure", "none"])
def test_raw_scales_what_has_a_range_says_so_and_rejects_the_others(root: Path, place: Path, check: str) -> None:
    report = convert(root, place, images=ImageFormat(raw=True), check=check)
    assert (report.records, report.rejected, report.deep) == (3, 1, 2)
    stored = {record.name: record.image for record in records(place)}
    np.testing.assert_array_equal(stored["cat/gray.png"], np.repeat(UPPER[..., None], 3, axis=2))
    assert report.warnings[-1].startswith("2 images have more than 8 bits a value, of which the stored pixels are the")
    reasons = {line["name"]: line["reason"] for line in report_lines(report)}
    assert reasons["cat/gray.png"] == "has 16-bit values, and is stored with 8-bit ones"
    assert reasons["cat/float.tif"] == (
        "its values are 32-bit float: their range is not known, so they cannot be stored as pixels of 8 bits; "
        "leave raw (--raw) out to store the file"
    )
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 3}


def test_made_smaller_gray_keeps_its_bits_and_colors_say_that_they_do_not(root: Path, place: Path) -> None:
    report = convert(root, place, images=ImageFormat(max_side=25))
    assert (report.records, report.resized) == (4, 4)
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 2, "16-bit": 1, "32-bit float": 1}
    reasons = {line["name"]: line["reason"] for line in report_lines(report)}
    assert reasons["cat/colors.png"] == "has 16-bit values, and is stored with 8-bit ones"
    assert "all of their bits" in reasons["cat/gray.png"]
    smaller = {record.name: record.image for record in records(place)}["cat/float.tif"]
    assert isinstance(smaller, bytes)
    values = np.asarray(open_pillow(smaller))
    assert values.dtype == np.float32
    assert values.shape == (25, 25)
    assert np.abs(values[:, 12] - np.linspace(0.02, 0.98, 25)).max() < 0.01


def test_counts_survive_resuming(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_BYTES", 1)
    small = save(DEEP[:9, :9], "PNG")
    plant(root, {f"dog/{number:02}.png": small for number in range(60)})
    whole = convert(root, place.with_name("whole.lmdb"))
    interrupt(root, place, 30)
    report = convert(root, place, resume=True)
    assert 0 < report.resumed_at < 64
    assert (report.digest, report.deep) == (whole.digest, 63)
    with open_store(place) as store, open_store(whole.place) as other:
        assert store.manifest.depths == other.manifest.depths == {"8-bit": 1, "16-bit": 62, "32-bit float": 1}
        assert store.manifest.outcome == other.manifest.outcome


def test_counts_survive_copying(root: Path, place: Path) -> None:
    whole = convert(root, place)
    copy = dbloader.copy_store(place, place.with_name("copy.lmdb"))
    with open_store(place) as store:
        assert (copy.depths, copy.outcome) == (store.manifest.depths, store.manifest.outcome)
    assert verified(place.with_name("copy.lmdb")) == whole.digest


def test_tiling_leaves_deep_images_as_they_are(root: Path, place: Path) -> None:
    convert(root, place, images=ImageFormat(tile=True, quality=90))
    for record in records(place):
        if record.format != "JPEG":
            assert record.image == (root / str(record.name)).read_bytes()


def test_a_sample_names_the_record_whose_values_have_no_range(root: Path, place: Path) -> None:
    convert(root, place)
    with LMDBDataset(place) as dataset:
        at = dataset.find("cat/float.tif")
        with pytest.raises(PixelRangeError, match=r"32-bit float: .* decode= of your own") as caught:
            dataset[at]
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [f"in record {at} (cat/float.tif) of {place}"]
        assert np.asarray(dataset[dataset.find("cat/gray.png")][0]).max() == 255
        assert len(np.unique(np.asarray(dataset[dataset.find("cat/gray.png")][0]))) == 256


def test_a_decode_of_the_users_gets_all_bits(root: Path, place: Path) -> None:
    convert(root, place)

    def values(data: bytes) -> Array:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image).copy()

    with LMDBDataset(place, decode=values) as dataset:
        np.testing.assert_array_equal(dataset[dataset.find("cat/gray.png")][0], DEEP)
        np.testing.assert_array_equal(dataset[dataset.find("cat/float.tif")][0], FLOATS)


@pytest.mark.parametrize(
    ("dtype", "depth"), [("u1", "8-bit"), ("<u2", "16-bit"), ("i1", "8-bit signed"), ("<f4", "32-bit float")]
)
def test_the_depth_of_pixels_is_counted_when_they_are_written(dtype: str, depth: str, tmp_path: Path) -> None:
    manifest = write_store([(np.zeros((4, 5, 3), dtype), 0)] * 2, tmp_path / "s.lmdb")
    assert manifest.depths == {depth: 2}


def test_a_raw_store_that_is_written_again_has_the_same_depths(root: Path, place: Path) -> None:
    convert(root, place, images=ImageFormat(raw=True))
    with open_store(place) as store:
        again = write_store(store, place.with_name("again.lmdb"))
        assert again.depths == store.manifest.depths == {"8-bit": 3}


UNREAD = [
    tiff(bytes(5 * 4 * 16), 4, 4, 32, white=2, kind=3, samples=5),  # five channels of floats
    tiff(bytes(8 * 16), 4, 4, 64, kind=3),
    tiff(bytes(16), 4, 4, 8).replace(struct.pack("<HHII", 259, 4, 1, 1), struct.pack("<HHII", 259, 4, 1, 34_999)),
]


def test_what_pillow_does_not_read_is_not_said_to_be_damaged(tmp_path: Path, place: Path) -> None:
    sound = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(24)
    planes = [planar_tiff(PLANES, white=2), planar_tiff(BYTES[:1], white=0), planar_tiff(BYTES, white=2, fill=2)]
    files = {f"unread{n}.tif": data for n, data in enumerate(UNREAD)} | {"sound.webp": sound}
    files |= {f"planes{n}.tif": data for n, data in enumerate(planes)}
    folder = plant(tmp_path / "images" / "cat", {**files, "1.jpg": photo()}).parent
    reasons = {line["name"]: line["reason"] for line in report_lines(convert(folder, place))}
    assert reasons.keys() == {f"cat/{name}" for name in files}
    for name, reason in reasons.items():
        expected = {"u": "is damaged, or a TIFF of a kind that Pillow does not read", "p": "has its values in planes",
                    "s": "is in no known image format (it begins with b'RIFF')"}[name[4]]  # fmt: skip
        assert reason.startswith(expected)
    report = convert(folder, place, check="none", overwrite=True)
    assert (report.records, report.rejected) == (len(files) + 1, 0)


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_decoded_and_that_is_said(
    image_format: str, tmp_path: Path, place: Path
) -> None:
    data = moving(image_format)
    name = {"GIF": "0.png"}.get(image_format, f"0.{image_format.lower()}")
    folder = plant(tmp_path / "moving", {f"cat/{name}": data, "cat/1.jpg": photo()})
    report = convert(folder, place)
    assert report.frames == 1
    assert report.warnings[0].startswith(
        "1 file has several frames or pages, of which the first is decoded; pixels, and"
    )
    (line,) = report_lines(report)
    assert (line["name"], line["event"]) == (f"cat/{name}", "frames")
    assert line["reason"] == "has several frames or pages: decoded is the first"
    assert records(place)[0].image == data
    for images in (ImageFormat(raw=True), ImageFormat(max_side=5)):
        (line,) = report_lines(convert(folder, place, overwrite=True, images=images))
        assert line["reason"] == "has several frames or pages: stored is the first"
