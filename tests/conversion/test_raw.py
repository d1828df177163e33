"""``convert --raw`` stores the pixels that a decoder returns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import decode_pil
from dbloader.images.resize import resize
from tests.support import jpegs
from tests.support.conversion import records, report_lines, verified
from tests.support.images import KINDS, encoded, photo, plant, plant_kinds


@pytest.mark.parametrize("check", ["decode", "structure", "none"])
def test_stored_pixels_equal_decoded_pixels_for_every_kind_of_image(root: Path, place: Path, check: str) -> None:
    see_through = encoded(jpegs.draw(9, 7, "RGBA"), "PNG")
    plant(root, {"cat/turned.jpg": photo(exif=jpegs.turned_exif()), "cat/see through.png": see_through})
    plant_kinds(root, *KINDS)
    plain = convert(root, place.with_name("plain.lmdb"))
    report = convert(root, place, images=ImageFormat(raw=True), check=check)
    before = {record.name: record for record in records(plain.place)}
    for record in records(place):
        if record.name not in before:
            continue  # damage that only decoding finds
        data = before[record.name].image
        assert isinstance(data, bytes)
        assert isinstance(record.image, np.ndarray)
        assert (record.image.dtype, record.image.shape) == (np.uint8, (record.height, record.width, 3))
        np.testing.assert_array_equal(record.image, np.asarray(decode_pil(data)))
        assert (record.format, record.resized_from, record.damaged) == (None, None, None)
    missing = before.keys() - {record.name for record in records(place)}
    assert len(missing) == (check == "none")  # --check none repairs nothing, so one image still lacks its end marker
    assert report.digest == verified(place)
    for event in report_lines(report):
        assert event["event"] in ("rejected", "repaired", *["transparent"] * (event["name"] == "cat/see through.png"))


def test_resized_raw_images_are_never_encoded(root: Path, place: Path) -> None:
    png = encoded(jpegs.draw(90, 60), "PNG")
    plant(root, {"cat/0.png": png, "cat/1.jpg": photo(width=90, height=60), "cat/2.jpg": photo(width=20, height=10)})
    report = convert(root, place, images=ImageFormat(raw=True, max_side=30))
    first, second, third = (record.image for record in records(place))
    np.testing.assert_array_equal(first, np.asarray(decode_pil(resize(png, (30, 20))[0])))
    assert isinstance(second, np.ndarray)
    assert second.shape == (20, 30, 3)
    best = np.asarray(decode_pil(resize(photo(width=90, height=60), (30, 20), quality=100)[0]))
    assert np.abs(second.astype(int) - best).mean() < 3
    np.testing.assert_array_equal(third, np.asarray(decode_pil(photo(width=20, height=10))))
    assert [record.resized_from for record in records(place)] == [(90, 60), (90, 60), None]
    assert report.resized == 2


def test_files_that_do_not_decode_are_rejected_even_without_checks(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text", "cat/2.png": encoded(jpegs.draw(24, 18), "PNG")[:-99]})
    report = convert(root, place, images=ImageFormat(raw=True), check="none")
    assert (report.records, report.rejected) == (1, 2)
    first, second = report_lines(report)
    assert first["reason"] == "is in no known image format (it begins with b'text')"
    assert second["reason"].startswith("does not decode: ")
