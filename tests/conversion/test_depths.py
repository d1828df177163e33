"""Converting images that have more than 8 bits, values of unknown range, or several frames."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dbloader import ImageFormat, convert
from dbloader.stores.open import open_store
from tests.support.conversion import records, report_lines
from tests.support.deep import BYTES, COLORED, GRAY, PLANES, UNKNOWN, UPPER, moving, planar_tiff, tiff
from tests.support.images import photo, plant


@pytest.fixture
def root(tmp_path: Path) -> Path:
    deep = {"gray.png": GRAY["PNG"][0], "colors.png": COLORED["PNG, RGB"][0], "float.tif": UNKNOWN["TIFF, float"][0]}
    return plant(tmp_path / "images", {f"cat/{name}": data for name, data in {**deep, "0.jpg": photo()}.items()})


def test_deep_images_are_stored_unchanged_with_a_warning(root: Path, place: Path) -> None:
    report = convert(root, place)
    assert (report.records, report.rejected, report.deep) == (4, 0, 3)
    for record in records(place):
        assert record.image == (root / str(record.name)).read_bytes()
    (warning,) = report.warnings
    assert warning.startswith(
        "3 images have values of more than 8 bits, or of unknown range (the store has 2 of 16-bit, 1 of 32-bit float"
    )
    colors, floats, gray = report_lines(report)
    assert [(line["name"], line["event"]) for line in (colors, floats, gray)] == [
        ("cat/colors.png", "deep"), ("cat/float.tif", "deep"), ("cat/gray.png", "deep"),
    ]  # fmt: skip
    assert "all bits are stored" in colors["reason"]
    assert floats["reason"] == (
        "has 32-bit float values of unknown range: they are stored, but only your own decode= can decode them"
    )
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 1, "16-bit": 2, "32-bit float": 1}
        assert store.manifest.outcome["deep"] == 3


def test_image_of_unknown_format_is_not_counted_by_depth(root: Path, place: Path) -> None:
    (root / "cat" / "other.jpg").write_text("in a format that needs a decode of your own")
    convert(root, place, check="none")
    with open_store(place) as store:
        assert len(store) == 5
        assert store.manifest.depths == {"8-bit": 1, "16-bit": 2, "32-bit float": 1}


@pytest.mark.parametrize("check", ["decode", "structure", "none"])
def test_raw_scales_deep_values_of_known_range_and_rejects_unknown_ranges(root: Path, place: Path, check: str) -> None:
    report = convert(root, place, images=ImageFormat(raw=True), check=check)
    assert (report.records, report.rejected, report.deep) == (3, 1, 2)
    stored = {record.name: record.image for record in records(place)}
    np.testing.assert_array_equal(stored["cat/gray.png"], np.repeat(UPPER[..., None], 3, axis=2))
    assert report.warnings[-1].startswith("2 images have more than 8 bits per value, and only the upper 8 bits")
    reasons = {line["name"]: line["reason"] for line in report_lines(report)}
    assert reasons["cat/gray.png"] == "has 16-bit values, and is stored with 8-bit values"
    assert reasons["cat/float.tif"] == (
        "its 32-bit float values have no known range, so they cannot be stored as pixels of 8 bits; "
        "leave out raw (--raw) to store the file"
    )
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 3}


def test_resized_gray_keeps_16_bits_and_resized_color_is_reported(root: Path, place: Path) -> None:
    report = convert(root, place, images=ImageFormat(max_side=25))
    assert (report.records, report.resized) == (4, 4)
    with open_store(place) as store:
        assert store.manifest.depths == {"8-bit": 2, "16-bit": 1, "32-bit float": 1}
    reasons = {line["name"]: line["reason"] for line in report_lines(report)}
    assert reasons["cat/colors.png"] == "has 16-bit values, and is stored with 8-bit values"
    assert "all bits are stored" in reasons["cat/gray.png"]


UNREAD = [
    tiff(bytes(5 * 4 * 16), 4, 4, 32, white=2, kind=3, samples=5),  # an array with five channels of floats
    tiff(bytes(8 * 16), 4, 4, 64, kind=3),
    tiff(bytes(16), 4, 4, 8).replace(struct.pack("<HHII", 259, 4, 1, 1), struct.pack("<HHII", 259, 4, 1, 34_999)),
]


def test_files_of_unsupported_kinds_are_not_reported_as_damaged(tmp_path: Path, place: Path) -> None:
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
def test_report_names_files_of_several_frames(image_format: str, tmp_path: Path, place: Path) -> None:
    data = moving(image_format)
    name = {"GIF": "0.png"}.get(image_format, f"0.{image_format.lower()}")
    folder = plant(tmp_path / "moving", {f"cat/{name}": data, "cat/1.jpg": photo()})
    report = convert(folder, place)
    assert report.frames == 1
    assert report.warnings[0].startswith("1 file has several frames or pages: only the first is decoded; images stored")
    (line,) = report_lines(report)
    assert (line["name"], line["event"]) == (f"cat/{name}", "frames")
    assert line["reason"] == "has several frames or pages: only the first is decoded"
    assert records(place)[0].image == data
    for images in (ImageFormat(raw=True), ImageFormat(max_side=5)):
        (line,) = report_lines(convert(folder, place, overwrite=True, images=images))
        assert line["reason"] == "has several frames or pages: only the first is stored"
