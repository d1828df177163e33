"""``convert --tile``: the same pixels in tiled JPEGs, and every image that is not tiled is named."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from dbloader.conversion.convert import convert
from dbloader.conversion.prepare import FilePreparer
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import decode_pil
from dbloader.errors import ConversionError, OptionError
from dbloader.images.tiled import decode_crop, find_lengths
from dbloader.sources.base import Entry
from dbloader.stores.open import open_store
from tests.support import jpegs
from tests.support.conversion import documents, events, interrupt, records, report_lines, verified
from tests.support.images import (
    END,
    KINDS,
    encoded,
    multi_picture,
    photo,
    plant,
    plant_kinds,
    plant_photos,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.records.record import Record

needs_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="jpegtran is not installed (libjpeg-turbo-progs)"
)


@pytest.fixture
def _no_jpegtran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def assert_tiled(record: Record) -> np.ndarray[Any, Any]:
    """Check that the record's crops are those of the whole image, and return that."""
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


SOURCES = {
    "4:2:0": photo(width=130, height=70, subsampling=2),
    "4:4:4": photo(width=130, height=70, subsampling=0),
    "gray": jpegs.encode(jpegs.draw(130, 70, "L")),
    "progressive": photo(width=130, height=70, progressive=True),
    "multi-picture": multi_picture(),
    "trailing bytes": photo(width=130, height=70) + bytes(64),
    "no end marker": photo(width=130, height=70)[:-2],
}


@needs_jpegtran
def test_jpegs_are_tiled_without_loss(root: Path, place: Path) -> None:
    plant(root, {f"cat/{name}.jpg": data for name, data in SOURCES.items()})
    report = convert(root, place, images=ImageFormat(tile=True))
    for record in records(place):
        assert record.name is not None
        data = (root / record.name).read_bytes()
        data += b"" if END in data else END
        np.testing.assert_array_equal(assert_tiled(record), np.asarray(decode_pil(data)))
        assert record.resized_from is None
    assert (report.records, report.untiled, report.reencoded, report.resized, report.repaired) == (7, 0, 0, 0, 1)
    assert report.digest == verified(place)
    with open_store(place) as store:
        assert store.manifest.fields == {"tiles": 7}
        assert store.manifest.source["tile"] is True


@needs_jpegtran
def test_arithmetic_coded_jpegs_are_tiled_if_the_decoder_of_the_check_knows_them(root: Path, place: Path) -> None:
    data = subprocess.run(["jpegtran", "-arithmetic"], input=photo(width=99), capture_output=True, check=True).stdout
    plant(root, {"cat/0.jpg": data})
    convert(root, place, images=ImageFormat(tile=True))
    (record,) = records(place)
    np.testing.assert_array_equal(assert_tiled(record), pixels(root / "cat/0.jpg"))


@needs_jpegtran
def test_metadata_stay_and_ordinary_programs_read_the_record(root: Path, place: Path) -> None:
    exif = jpegs.thumbnail_exif(photo())
    data = photo(width=90, exif=exif, icc_profile=b"profile", comment=b"comment", dpi=(72, 72))
    plant(root, {"cat/0.jpg": data, "dog/1.jpg": data})
    convert(root, place, images=ImageFormat(tile=True))
    convert(root, place.with_name("small.lmdb"), images=ImageFormat(tile=True, max_side=45))
    with Image.open(io.BytesIO(data)) as before:
        for record in (*records(place), *records(place.with_name("small.lmdb"))):
            assert isinstance(record.image, bytes)
            with Image.open(io.BytesIO(record.image)) as after:
                after.load()
                assert (after.info["exif"], after.info["icc_profile"]) == (exif, b"profile")
                assert record.resized_from or after.info == before.info


@needs_jpegtran
@pytest.mark.parametrize("width", [None, 8, 64])
def test_tiles_are_as_wide_as_asked(root: Path, place: Path, width: int | None) -> None:
    plant(root, {"cat/0.jpg": photo(width=256, height=64, subsampling=0)})
    convert(root, place, images=ImageFormat(tile=True, tile_width=width))
    (record,) = records(place)
    assert_tiled(record)
    assert len(record.fields["tiles"]) == 2 * 8 * 256 // (width or 32)


@needs_jpegtran
def test_what_cannot_be_tiled_is_stored_as_it_is_and_named(root: Path, place: Path) -> None:
    padded = photo()[:-2] + bytes(40) + END  # which a check passes, and jpegtran does not
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
    told = [(event["name"], event["event"], event["reason"]) for event in report_lines(report)]
    cmyk = "the JPEG cannot be decoded by tiles: it has 4 components of 8 bits"
    assert told[:2] == [("cat/1.png", "untiled", "is a PNG, not a JPEG"), ("cat/2.jpg", "untiled", cmyk)]
    assert told[2][:2] == ("cat/3.jpg", "untiled")
    assert "extraneous bytes" in told[2][2]
    assert told[3:] == [
        ("dog/4.jpg", "repaired", "its end marker was missing: appended FF D9"),
        ("dog/4.jpg", "untiled", cmyk),
    ]
    with open_store(place) as store:
        assert store.manifest.outcome["untiled"] == 4
        assert list(store.events()) == report_lines(report)


@needs_jpegtran
@pytest.mark.parametrize("check", ["decode", "none"])
def test_every_kind_of_file_is_tiled_or_named(root: Path, place: Path, check: str) -> None:
    planted = plant_kinds(root, *KINDS)
    plain = convert(root, place.with_name("plain.lmdb"), check=check)
    report = convert(root, place, images=ImageFormat(tile=True), check=check)
    # Tiling rejects nothing, and changes no reason.
    assert (report.records, report.rejected, report.repaired) == (plain.records, plain.rejected, plain.repaired)
    told = events(place)
    assert [event for event in told if event["event"] != "untiled"] == events(plain.place)
    untiled = {event["name"] for event in told if event["event"] == "untiled"}
    assert len(untiled) == report.untiled
    before = {record.name: record for record in records(plain.place)}
    for record in records(place):
        assert record.name is not None
        assert ("tiles" in record.fields) != (record.name in untiled)
        if record.name in untiled:
            assert record.image == before[record.name].image
        else:
            assert planted[record.name] in (
                "photo", "gray", "progressive", "multi-picture", "trailing bytes", "no end marker",
            )  # fmt: skip
            assert_tiled(record)


@needs_jpegtran
def test_damaged_images_that_are_kept_are_not_tiled(root: Path, place: Path) -> None:
    plant_kinds(root, "half")
    report = convert(root, place, images=ImageFormat(tile=True), on_damaged="keep")
    assert (report.damaged, report.untiled) == (1, 0)
    half, whole = records(place)
    assert "tiles" in whole.fields
    assert (half.fields, bool(half.damaged)) == ({}, True)


@needs_jpegtran
@pytest.mark.parametrize("options", [{}, {"max_side": 30, "quality": 60}])
def test_the_number_of_workers_changes_nothing(root: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    plant_photos(root, 20)
    plant_kinds(root, *KINDS)
    images = ImageFormat(tile=True, **options)
    reports = [convert(root, tmp_path / f"{n}.lmdb", workers=n, images=images) for n in (1, 3)]
    assert documents(reports[0].place) == documents(reports[1].place)
    assert events(reports[0].place) == events(reports[1].place)
    assert reports[0].digest == reports[1].digest == verified(reports[1].place)


@needs_jpegtran
@pytest.mark.usefixtures("frequent_commits")
def test_a_resumed_conversion_gives_the_same_store(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    plant_kinds(root, "png", "cmyk")
    whole = convert(root, place.with_name("whole.lmdb"), images=ImageFormat(tile=True))
    interrupt(root, place, 30, images=ImageFormat(tile=True))
    with pytest.raises(OSError, match=r"another tile \(--tile\) \(True, now False\): resume with the same"):
        convert(root, place, resume=True)
    with pytest.raises(OSError, match=r"another tile_width \(--tile-width\) \(None, now 64\)"):
        convert(root, place, resume=True, images=ImageFormat(tile=True, tile_width=64))
    report = convert(root, place, resume=True, images=ImageFormat(tile=True))
    assert 0 < report.resumed_at < 63
    assert documents(place) == documents(whole.place)
    assert events(place) == events(whole.place)
    assert report.untiled == whole.untiled == 2


# Encoded, not lossless


@needs_jpegtran
def test_images_made_smaller_are_encoded_tiled_and_the_others_are_as_they_were(root: Path, place: Path) -> None:
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
def test_with_a_quality_all_jpegs_are_encoded_anew_and_say_so(root: Path, place: Path, options: dict[str, Any]) -> None:
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
    assert (other.image, other.resized_from) == (cmyk, None)  # not made worse for nothing
    assert (report.reencoded, report.resized, report.untiled) == (1, 0, 2)
    with open_store(place) as store:
        assert store.manifest.outcome["reencoded"] == 1
        assert store.manifest.source["quality"] == 50


def picture_of(data: bytes) -> bytes:
    return encoded(decode_pil(data), "PNG")


def test_an_image_that_cannot_be_encoded_anew_is_damaged(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": photo()[:-200]})
    report = convert(root, place, check="none", images=ImageFormat(tile=True, quality=90))
    (event,) = report_lines(report)
    assert (event["name"], event["event"]) == ("cat/1.jpg", "rejected")
    assert event["reason"].startswith("does not decode: image file is truncated")
    with pytest.raises(ConversionError, match=r"cat/1.jpg: does not decode: .* or resume with --on-damaged reject"):
        convert(root, place, overwrite=True, check="none", on_damaged="fail", images=ImageFormat(tile=True, quality=90))


# Options, and the program


@pytest.mark.usefixtures("_no_jpegtran")
@pytest.mark.parametrize("options", [{}, {"max_side": 100}])
def test_a_missing_jpegtran_is_said_before_anything_is_done(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"install it \(Debian and Ubuntu: apt-get .*, or give a quality to encode"):
        ImageFormat(tile=True, **options)


@pytest.mark.parametrize("body", ["kill -9 $$", "exec 2>&1; rm -- $0; kill -15 $$"])
def test_a_jpegtran_that_is_killed_is_not_the_images_fault(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    plant_photos(root, 30)
    program = tmp_path / "bin" / "jpegtran"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")
    with pytest.raises((OSError, OptionError), match=r"ended by signal|needs the program jpegtran|No such file"):
        convert(root, place, images=ImageFormat(tile=True))
    assert not place.exists()


def test_a_field_of_the_users_that_is_named_as_the_tiles_is_refused_where_it_would_be_lost(
    root: Path, place: Path, tmp_path: Path
) -> None:
    plant_photos(root, 2)
    listing = tmp_path / "all.jsonl"
    listing.write_text('{"path": "cat/0000.jpg", "tiles": 7}\n{"path": "dog/0001.jpg"}\n')
    report = convert(root, place, listing=listing, images=ImageFormat(tile=True, quality=90))
    (event,) = report_lines(report)
    assert (event["name"], event["event"]) == ("cat/0000.jpg", "rejected")
    assert event["reason"] == "field 'tiles' is where tile keeps the lengths of tiles: give yours another name"
    convert(root, place, listing=listing, overwrite=True)
    assert records(place)[0].fields == {"tiles": 7}


@needs_jpegtran
def test_memory_is_asked_for_before_it_is_used(root: Path) -> None:
    plant(root, {"0.jpg": photo(width=160, height=120), "1.png": encoded(jpegs.draw(160, 120), "PNG")})
    for images, held in (
        (ImageFormat(tile=True), [9 * 160 * 120, -9 * 160 * 120]),
        (ImageFormat(tile=True, quality=90), [6 * 160 * 120, -6 * 160 * 120]),
        (ImageFormat(raw=True), [3 * 160 * 120, 4 * 160 * 120, -4 * 160 * 120]),
    ):
        sizes: list[int] = []
        preparation = FilePreparer(check="none", root=bytes(root), images=images)
        assert preparation.prepare(Entry("0.jpg", b"0.jpg", None, {}), sizes.append).record
        assert sizes[1:] == held
    FilePreparer(check="none", root=bytes(root), images=ImageFormat(tile=True)).prepare(
        Entry("1.png", b"1.png", None, {}), sizes.append
    )
    assert sizes[4:] == [(root / "1.png").stat().st_size]
