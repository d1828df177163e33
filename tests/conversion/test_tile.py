"""``convert --tile`` keeps the pixels, and names every image that it cannot tile."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import decode_pil
from dbloader.errors import OptionError
from dbloader.images.tiled import decode_crop, find_lengths
from dbloader.records.record import Record
from dbloader.stores.open import open_store
from tests.support import jpegs
from tests.support.conversion import events, interrupt, records, report_lines
from tests.support.images import END, KINDS, encoded, photo, plant, plant_kinds, plant_photos


@pytest.fixture
def _no_jpegtran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def assert_tiled(record: Record) -> np.ndarray[Any, Any]:
    """Check that crops of a tiled record equal crops of its whole image. Return the whole image."""
    assert isinstance(record.image, bytes)
    tiles = record.fields["tiles"]
    assert tiles == find_lengths(record.image)
    whole = np.asarray(decode_pil(record.image))
    height, width, _ = whole.shape
    assert (record.width, record.height, record.format) == (width, height, "JPEG")
    generator = random.Random(0)
    for _ in range(10):
        w, h = generator.randint(1, width), generator.randint(1, height)
        x, y = generator.randint(0, width - w), generator.randint(0, height - h)
        np.testing.assert_array_equal(
            decode_crop(record.image, tiles, x, y, w, h), whole[y : y + h, x : x + w], f"{w} x {h} at ({x}, {y})"
        )
    return whole


def pixels(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(decode_pil(path.read_bytes()))


@jpegs.needs_jpegtran
def test_untileable_image_is_stored_unchanged_and_named(root: Path, place: Path) -> None:
    padded = photo()[:-2] + bytes(40) + END  # the check accepts this file and jpegtran refuses it
    files = {
        "cat/0.jpg": photo(),
        "cat/1.png": encoded(jpegs.draw(24, 18), "PNG"),
        "cat/2.jpg": jpegs.encode(jpegs.draw(24, 18, "CMYK")),
        "cat/3.jpg": padded,
        "dog/4.jpg": jpegs.encode(jpegs.draw(24, 18, "CMYK"))[:-2],
    }
    plant(root, files)
    report = convert(root, place, images=ImageFormat(tile=True))
    tiled, *others = records(place)
    assert_tiled(tiled)
    assert [record.fields for record in others] == [{}] * 4
    assert [record.image for record in others] == [*[*files.values()][1:4], files["dog/4.jpg"] + END]
    assert (report.untiled, report.repaired, report.rejected) == (4, 1, 0)
    reported = [(event["name"], event["event"], event["reason"]) for event in report_lines(report)]
    cmyk = "the JPEG cannot be decoded by tiles: it has 4 components of 8 bits"
    assert reported[:2] == [("cat/1.png", "untiled", "is a PNG, not a JPEG"), ("cat/2.jpg", "untiled", cmyk)]
    assert reported[2][:2] == ("cat/3.jpg", "untiled")
    assert "extraneous bytes" in reported[2][2]
    repaired = "its end marker was missing: appended FF D9"
    assert reported[3:] == [("dog/4.jpg", "repaired", repaired), ("dog/4.jpg", "untiled", cmyk)]
    with open_store(place) as store:
        assert store.manifest.outcome["untiled"] == 4
        assert list(store.events()) == report_lines(report)


@jpegs.needs_jpegtran
@pytest.mark.usefixtures("frequent_commits")
def test_resumed_conversion_tiles_or_names_every_kind_of_file(root: Path, place: Path) -> None:
    planted = plant_kinds(root, *KINDS)
    images = ImageFormat(tile=True, tile_width=8)
    plain = convert(root, place.with_name("plain.lmdb"))
    interrupt(root, place, 1, images=images, workers=1)
    with pytest.raises(OSError, match=r"another tile_width \(--tile-width\) \(8, now None\): resume with the same"):
        convert(root, place, resume=True, images=ImageFormat(tile=True))
    report = convert(root, place, images=images, resume=True)
    assert report.resumed_at > 0
    # Tiling rejects no further file and changes no reason.
    assert (report.records, report.rejected, report.repaired) == (plain.records, plain.rejected, plain.repaired)
    reported = events(place)
    assert [event for event in reported if event["event"] != "untiled"] == events(plain.place)
    untiled = {event["name"] for event in reported if event["event"] == "untiled"}
    assert len(untiled) == report.untiled
    for record, before in zip(records(place), records(plain.place), strict=True):
        assert record.name is not None
        assert ("tiles" in record.fields) != (record.name in untiled)
        if record.name in untiled:
            assert record.image == before.image
        else:
            assert planted[record.name] in (
                "photo", "gray", "progressive", "multi-picture", "trailing bytes", "no end marker",
            )  # fmt: skip
            assert isinstance(before.image, bytes)
            np.testing.assert_array_equal(assert_tiled(record), np.asarray(decode_pil(before.image)))


@jpegs.needs_jpegtran
def test_resized_images_are_encoded_in_tiles_and_others_keep_their_pixels(root: Path, place: Path) -> None:
    plant(
        root,
        {
            "cat/0.jpg": photo(width=200, height=150, subsampling=1),
            "cat/1.jpg": photo(width=64, height=48),
            "cat/2.png": encoded(jpegs.draw(200, 150), "PNG"),
            "cat/3.jpg": jpegs.encode(jpegs.draw(200, 150, "CMYK")),
            "cat/4.jpg": jpegs.encode(jpegs.draw(200, 150, "L")),
        },
    )
    report = convert(root, place, images=ImageFormat(tile=True, max_side=100))
    convert(root, place.with_name("plain.lmdb"), images=ImageFormat(max_side=100))
    plain = records(place.with_name("plain.lmdb"))
    large, small, png, cmyk, gray = records(place)
    for record, same in ((large, plain[0]), (gray, plain[4])):
        assert record.resized_from == (200, 150)
        assert isinstance(same.image, bytes)
        np.testing.assert_array_equal(assert_tiled(record), np.asarray(decode_pil(same.image)))
    np.testing.assert_array_equal(assert_tiled(small), pixels(root / "cat/1.jpg"))
    assert small.resized_from is None
    assert (png.image, cmyk.image) == (plain[2].image, plain[3].image)
    assert (report.resized, report.untiled, report.reencoded) == (4, 2, 0)
    with Image.open(io.BytesIO(large.image)) as image:  # type: ignore[arg-type]
        assert image.layer[0][1:3] == (2, 1)  # type: ignore[attr-defined]  # its subsampling


@pytest.mark.usefixtures("_no_jpegtran")
@pytest.mark.parametrize("options", [{}, {"max_side": 100}])
def test_quality_encodes_all_jpegs_again_and_reports_this(root: Path, place: Path, options: dict[str, Any]) -> None:
    data = photo(width=90, height=60, quality=95)
    cmyk = jpegs.encode(jpegs.draw(90, 60, "CMYK"))
    plant(root, {"cat/0.jpg": data, "cat/1.png": picture_of(data), "cat/2.jpg": cmyk})
    report = convert(root, place, images=ImageFormat(tile=True, quality=50, **options))
    jpeg, png, other = records(place)
    assert_tiled(jpeg)
    assert isinstance(jpeg.image, bytes)
    assert len(jpeg.image) < len(data) / 2
    assert jpeg.resized_from == (jpeg.width, jpeg.height) == (90, 60)
    assert (png.image, png.resized_from) == (picture_of(data), None)
    assert (other.image, other.resized_from) == (cmyk, None)  # encoding these again would only lose quality
    assert (report.reencoded, report.resized, report.untiled) == (1, 0, 2)
    with open_store(place) as store:
        assert store.manifest.outcome["reencoded"] == 1
        assert store.manifest.source["quality"] == 50


def picture_of(data: bytes) -> bytes:
    return encoded(decode_pil(data), "PNG")


@pytest.mark.usefixtures("_no_jpegtran")
def test_missing_jpegtran_is_refused_before_anything_is_written() -> None:
    with pytest.raises(OptionError, match=r"install it \(Debian and Ubuntu: apt-get .*, or give a quality to encode"):
        ImageFormat(tile=True)


def test_killed_jpegtran_ends_the_conversion_and_rejects_no_image(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 30)
    program = tmp_path / "bin" / "jpegtran"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")
    with pytest.raises(OSError, match="ended by signal"):
        convert(root, place, images=ImageFormat(tile=True))
    assert not place.exists()
