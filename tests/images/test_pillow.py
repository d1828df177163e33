"""Image files as Pillow opens them: no format that runs a program, no value lost in silence, a known limit."""

from __future__ import annotations

import ast
import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, features

import dbloader
import dbloader.stores.writer
from dbloader import LMDBDataset, convert, write_store
from dbloader.conversion.prepare import FilePreparer
from dbloader.conversion.resize import load_pixels, resize
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import DecodeTensor, RandomResizedCrop, decode_pil
from dbloader.errors import DamagedImageError, NotAnImageError, PixelRangeError
from dbloader.images.info import check_decodes, read_facts
from dbloader.images.pillow import FORMATS, may_be_image, open_pillow
from dbloader.sources.base import Entry
from dbloader.stores.open import open_store
from tests.conversion.test_convert import interrupt, records, report_lines, verified
from tests.support import jpegs
from tests.support.images import encoded, photo, plant, run

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]

Image.init()

# Every value of 16 bits, and each of the upper 8 bits as often as the others.
DEEP = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
UPPER = (DEEP >> 8).astype(np.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels: Array, color: int, depth: int = 16) -> bytes:
    """A PNG of a color type that Pillow cannot write with 16 bits; pixels of the shape (height, width, channels)."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(
    pixels: bytes, width: int, height: int, bits: int, *, white: int = 1, kind: int = 1, samples: int = 1
) -> bytes:
    """A TIFF without compression, little-endian; ``white`` is PhotometricInterpretation, ``kind`` SampleFormat."""
    tags = {256: width, 257: height, 259: 1, 262: white, 273: 8, 277: samples, 278: height, 279: len(pixels)}
    at = 8 + len(pixels)
    after = at + 2 + 12 * (len(tags) + 2) + 4
    directory, extra = struct.pack("<H", len(tags) + 2), b""
    for tag, value in sorted({**tags, 258: bits, 339: kind}.items()):
        if tag in (258, 339):
            values = struct.pack(f"<{samples}H", *[value] * samples)
            if samples > 2:
                directory += struct.pack("<HHII", tag, 3, samples, after + len(extra))
                extra += values
            else:
                directory += struct.pack("<HHI4s", tag, 3, samples, values)
        else:
            directory += struct.pack("<HHII", tag, 4, 1, value)
    return struct.pack("<2sHI", b"II", 42, at) + pixels + directory + bytes(4) + extra


def planar_tiff(planes: Array, *, white: int, compression: int = 1, fill: int = 1) -> bytes:
    """A TIFF of one strip a plane; ``planes`` of the shape (samples, height, width), uint8 or uint16."""
    samples, height, width = planes.shape
    strips = [zlib.compress(plane.tobytes()) if compression == 8 else plane.tobytes() for plane in planes]
    ends = np.cumsum([len(strip) for strip in strips]).tolist()
    tags = {
        256: [width], 257: [height], 258: [8 * planes.itemsize] * samples, 259: [compression], 262: [white],
        266: [fill], 273: [8, *(8 + end for end in ends[:-1])], 277: [samples], 278: [height],
        279: [len(strip) for strip in strips], 284: [2],
    }  # fmt: skip
    at = 8 + ends[-1]
    after, directory, extra = at + 2 + 12 * len(tags) + 4, struct.pack("<H", len(tags)), b""
    for tag, values in tags.items():
        packed = struct.pack(f"<{len(values)}I", *values)
        place = packed if len(values) == 1 else struct.pack("<I", after + len(extra))
        directory += struct.pack("<HHI", tag, 4, len(values)) + place
        extra += packed if len(values) > 1 else b""
    return struct.pack("<2sHI", b"II", 42, at) + b"".join(strips) + directory + bytes(4) + extra


def packed_12_bits(values: Array) -> bytes:
    """Values of 12 bits, two in three bytes."""
    bits = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 4:]
    return np.packbits(bits.reshape(-1)).tobytes()


def save(values: Array, image_format: str) -> bytes:
    return encoded(Image.fromarray(values), image_format)


GRAY = {
    "PNG": (save(DEEP, "PNG"), DEEP),
    "TIFF": (save(DEEP, "TIFF"), DEEP),
    "TIFF, big-endian": (
        struct.pack(">2sHI", b"MM", 42, 8 + DEEP.nbytes) + DEEP.astype(">u2").tobytes() + struct.pack(
            ">H" + "HHII" * 2 + "HHIHH" * 4 + "HHII" * 2 + "I", 8, 256, 4, 1, 256, 257, 4, 1, 256, 258, 3, 1, 16, 0,
            259, 3, 1, 1, 0, 262, 3, 1, 1, 0, 277, 3, 1, 1, 0, 273, 4, 1, 8, 279, 4, 1, DEEP.nbytes, 0,
        ), DEEP,
    ),
    "TIFF, white is 0": (tiff((~DEEP).tobytes(), 256, 256, 16, white=0), DEEP),
    "TIFF, 12 bits": (tiff(packed_12_bits(DEEP >> 4), 256, 256, 12), DEEP),
    "PGM": (save(DEEP, "PPM"), DEEP),
    "PGM, text": (b"P2 256 256 65535\n" + b" ".join(b"%d" % value for value in DEEP.reshape(-1).tolist()), DEEP),
    "PGM, 12 bits": (b"P5 256 256 4095\n" + (DEEP >> 4).astype(">u2").tobytes(), DEEP),
}  # fmt: skip
if features.check("jpg_2000"):
    GRAY["JPEG 2000"] = (save(DEEP, "JPEG2000"), DEEP)

COLORS = np.random.default_rng(0).integers(0, 2**16, (40, 30, 4)).astype(np.uint16)
COLORED = {
    "PNG, RGB": (png(COLORS[..., :3], 2), COLORS[..., :3]),
    "PNG, RGBA": (png(COLORS, 6), COLORS[..., :3]),
    "PNG, gray with alpha": (png(COLORS[..., :2], 4), COLORS[..., [0, 0, 0]]),
    "TIFF, RGB": (tiff(COLORS[..., :3].tobytes(), 30, 40, 16, white=2, samples=3), COLORS[..., :3]),
}
FLOATS = (DEEP / 65535).astype(np.float32)
UNKNOWN = {
    "TIFF, float": (save(FLOATS, "TIFF"), "32-bit float"),
    "TIFF, float, white is 0": (tiff(FLOATS.tobytes(), 256, 256, 32, white=0, kind=3), "32-bit float"),
    "PFM": (save(FLOATS, "PPM"), "32-bit float"),
    "TIFF, 32 bits": (tiff(DEEP.astype("<u4").tobytes(), 256, 256, 32), "32-bit"),
    "TIFF, 32 bits signed": (save(DEEP.astype(np.int32), "TIFF"), "32-bit signed"),
    "TIFF, 16 bits signed": (tiff(DEEP.tobytes(), 256, 256, 16, kind=2), "16-bit signed"),
    "TIFF, 8 bits signed": (tiff(UPPER.tobytes(), 256, 256, 8, kind=2), "8-bit signed"),
}


# Values


@pytest.mark.parametrize("kind", GRAY)
def test_gray_of_16_bits_becomes_its_upper_8_everywhere(kind: str) -> None:
    data, _ = GRAY[kind]
    expected = np.repeat(UPPER[..., None], 3, axis=2)
    check_decodes(data, read_facts(data))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), expected)
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)
    assert read_facts(data).depth == ("12-bit" if kind == "TIFF, 12 bits" else "16-bit")
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(DecodeTensor()(image).permute(1, 2, 0), expected)


@pytest.mark.parametrize("kind", GRAY)
def test_gray_made_smaller_keeps_16_bits_or_becomes_its_upper_8_as_pixels(kind: str) -> None:
    data, values = GRAY[kind]
    smaller, its_facts = resize(data, (128, 128))
    assert (read_facts(smaller), its_facts.depth) == (its_facts, "16-bit")
    means = values.reshape(128, 2, 128, 2).mean(axis=(1, 3))
    assert np.abs(np.asarray(open_pillow(smaller)).astype(float) - means)[4:-4, 4:-4].max() < 300
    pixels = load_pixels(data, (128, 128))
    assert np.abs(pixels[..., 0] - means / 256)[4:-4, 4:-4].max() < 2


@pytest.mark.parametrize("kind", COLORED)
def test_colors_of_16_bits_become_their_upper_8_and_are_known_to_have_had_16(kind: str) -> None:
    data, values = COLORED[kind]
    expected = (values >> 8).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)
    assert read_facts(data).depth == "16-bit"
    assert resize(data, (15, 20))[1].depth == "8-bit"


def test_colors_of_a_ppm_of_16_bits_are_rounded() -> None:
    data = b"P6 30 40 65535\n" + COLORS[..., :3].astype(">u2").tobytes()
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), np.round(COLORS[..., :3] / 257))
    assert read_facts(data).depth == "16-bit"
    assert read_facts(b"P6 1 1 255\nabc").depth == read_facts(b"P3 1 1 255\n1 2 3\n").depth == "8-bit"


@pytest.mark.parametrize("kind", UNKNOWN)
def test_values_whose_range_is_not_known_are_an_error_that_says_what_to_do(kind: str) -> None:
    data, depth = UNKNOWN[kind]
    assert read_facts(data).depth == depth
    check_decodes(data, read_facts(data))
    for decode in (decode_pil, DecodeTensor(), RandomResizedCrop(9), lambda data: load_pixels(data, None)):
        with pytest.raises(PixelRangeError, match=rf"values are {depth}: .* give the dataset a decode= of your own"):
            decode(data)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_made_smaller_such_values_keep_their_meaning_or_are_refused(kind: str) -> None:
    data, _ = UNKNOWN[kind]
    if kind in ("TIFF, float, white is 0", "TIFF, 32 bits", "TIFF, 8 bits signed"):
        with pytest.raises(PixelRangeError, match=r"which Pillow (reads as|cannot write).*: keep its size"):
            resize(data, (128, 128))
        return
    smaller, its_facts = resize(data, (128, 128))
    assert read_facts(smaller) == its_facts
    before, after = np.asarray(open_pillow(data)).astype(float), np.asarray(open_pillow(smaller)).astype(float)
    means = before.reshape(128, 2, 128, 2).mean(axis=(1, 3))
    middle = slice(4, 60) if kind == "TIFF, 16 bits signed" else slice(4, -4)  # half of them are negative
    assert np.abs(after - means)[middle, 4:-4].max() < 0.005 * np.ptp(before)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_pil_image_of_unknown_range_is_refused_too(mode: str) -> None:
    with pytest.raises(PixelRangeError, match="range is not known"):
        DecodeTensor()(Image.fromarray(DEEP.astype(np.int32 if mode == "I" else np.float32)))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_the_modes_of_8_bits_are_converted_by_pillow(mode: str) -> None:
    image = jpegs.draw(20, 10).convert(mode)
    data = encoded(image, "TIFF")
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), expected)
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)
    assert read_facts(data).depth == "8-bit"


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gray_of_fewer_bits_is_spread_over_8(depth: int) -> None:
    values = np.arange(2**depth, dtype=np.uint8)
    row = np.packbits(np.unpackbits(values[:, None], axis=1)[:, 8 - depth :].reshape(-1)).tobytes()
    header = struct.pack(">IIBBBBB", len(values), 1, depth, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b""))
    )
    assert np.asarray(decode_pil(data))[0, :, 0].tolist() == [round(v * 255 / (2**depth - 1)) for v in values.tolist()]
    assert read_facts(data).depth == "8-bit"


def boxed(codestream: bytes, *boxes: tuple[bytes, bytes], end: str = "length") -> bytes:
    """A JP2 file with more boxes before its codestream; ``end`` is how the codestream's box tells its length."""
    data = b"\0\0\0\x0cjP  \r\n\x87\n" + b"".join(struct.pack(">I", 8 + len(b)) + k + b for k, b in boxes)
    length, more = {"length": (8 + len(codestream), b""), "to the end": (0, b""),
                    "long": (1, struct.pack(">Q", 16 + len(codestream)))}[end]  # fmt: skip
    return data + struct.pack(">I", length) + b"jp2c" + more + codestream


@pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow has no JPEG 2000")
@pytest.mark.parametrize("end", ["length", "to the end", "long", "bare"])
@pytest.mark.parametrize("bits", [8, 16])
def test_the_depth_of_a_jpeg_2000_is_that_of_its_codestream(bits: int, end: str) -> None:
    """Other boxes may hold the bytes of its markers too."""
    data = encoded(jpegs.draw(20, 10), "JPEG2000") if bits == 8 else GRAY["JPEG 2000"][0]
    codestream = data[data.index(b"\xff\x4f\xff\x51") :]
    if end == "bare":
        assert read_facts(codestream).depth == f"{bits}-bit"
        return
    at = data.index(b"jP  ") + 8
    others, rest = [], data[at : data.index(b"jp2c") - 4]
    while rest:
        size = int.from_bytes(rest[:4], "big")
        others.append((rest[4:8], rest[8:size]))
        rest = rest[size:]
    decoy = b"\xff\x4f\xff\x51" + bytes(38) + bytes([11, 1, 1]) * 40
    boxes = [others[0], (b"xml ", decoy), *others[1:], (b"uuid", decoy)]
    assert read_facts(boxed(codestream, *boxes, end=end)).depth == f"{bits}-bit"


def test_a_jpeg_2000_of_more_boxes_than_any_has_is_not_looked_through() -> None:
    """A file of 2 GB could hold 250 million of them."""
    data = encoded(jpegs.draw(20, 10), "JPEG2000")
    at = data.index(b"jp2c") - 4
    many = data[:at] + struct.pack(">I", 8) + b"free"
    assert read_facts(many + data[at:]).format == "JPEG2000"
    with pytest.raises(NotAnImageError, match="it has no codestream"):
        read_facts(many + (struct.pack(">I", 8) + b"free") * 1000 + data[at:])


@pytest.mark.parametrize("image_format", ["PNG", "PPM", "BMP", "TGA"])
def test_a_beginning_too_short_for_the_tests_of_signatures_is_no_image(image_format: str) -> None:
    data = encoded(jpegs.draw(20, 10), image_format)
    assert may_be_image(data)
    assert not any(may_be_image(data[:length]) for length in range(16))


UNREAD = {
    "five channels of floats": tiff(bytes(5 * 4 * 16), 4, 4, 32, white=2, kind=3, samples=5),
    "64 bits": tiff(bytes(8 * 16), 4, 4, 64, kind=3),
    "an unknown compression": tiff(bytes(16), 4, 4, 8).replace(
        struct.pack("<HHII", 259, 4, 1, 1), struct.pack("<HHII", 259, 4, 1, 34_999)
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_tiff_that_pillow_does_not_read_is_not_said_to_be_damaged(kind: str, tmp_path: Path, place: Path) -> None:
    folder = plant(tmp_path / "images", {"cat/0.tif": UNREAD[kind], "cat/1.jpg": photo()})
    (line,) = report_lines(convert(folder, place))
    assert line["event"] == "rejected"
    assert "damaged, or a TIFF of a kind that Pillow does not read" in line["reason"]
    report = convert(folder, place, check="none", overwrite=True)
    assert (report.records, report.rejected) == (2, 0)


def test_sound_in_a_riff_file_is_no_damaged_image(tmp_path: Path, place: Path) -> None:
    sound = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(24)
    folder = plant(tmp_path / "images", {"cat/0.webp": sound, "cat/1.jpg": photo()})
    (line,) = report_lines(convert(folder, place))
    assert line["reason"].startswith("is in no known image format (it begins with b'RIFF')")


@pytest.mark.parametrize(
    ("dtype", "depth"), [("u1", "8-bit"), ("<u2", "16-bit"), ("i1", "8-bit signed"), ("<f4", "32-bit float")]
)
def test_the_depth_of_pixels_is_counted_when_they_are_written(dtype: str, depth: str, tmp_path: Path) -> None:
    manifest = write_store([(np.zeros((4, 5, 3), dtype), 0)] * 2, tmp_path / "s.lmdb")
    assert manifest.depths == {depth: 2}


def test_a_raw_store_that_is_written_again_has_the_same_depths(root: Path, place: Path) -> None:
    convert(root, place, raw=True)
    with open_store(place) as store:
        again = write_store(store, place.with_name("again.lmdb"))
        assert again.depths == store.manifest.depths == {"8-bit": 3}


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_the_depth_of_an_avif_is_in_its_header() -> None:
    data = encoded(jpegs.draw(20, 10), "AVIF")
    assert read_facts(data).depth == "8-bit"
    at, channels = data.index(b"av1C") + 6, data.index(b"pixi") + 9
    for flags, bits in ((0x40, 10), (0x60, 12)):
        deep = bytearray(data)
        deep[at] = deep[at] & 0x9F | flags
        deep[channels : channels + 3] = bytes([bits] * 3)
        assert read_facts(bytes(deep)).depth == f"{bits}-bit"


PLANES = np.ascontiguousarray(COLORS[..., :3].transpose(2, 0, 1))
BYTES = (PLANES >> 8).astype(np.uint8)


@pytest.mark.parametrize(
    "data",
    [planar_tiff(BYTES, white=2), planar_tiff(BYTES, white=2, compression=8),
     planar_tiff(PLANES, white=2, compression=8)],
)  # fmt: skip
def test_planes_that_pillow_reads_are_read(data: bytes) -> None:
    check_decodes(data, read_facts(data))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), BYTES.transpose(1, 2, 0))


@pytest.mark.parametrize(
    "data",
    [planar_tiff(PLANES, white=2), planar_tiff(BYTES[:1], white=0), planar_tiff(BYTES, white=2, fill=2)],
    ids=["16 bits", "white is 0", "bits from the other end"],
)  # fmt: skip
def test_planes_that_pillow_misreads_are_refused(data: bytes, tmp_path: Path, place: Path) -> None:
    for read in (read_facts, decode_pil, DecodeTensor()):
        with pytest.raises(NotAnImageError, match=r"planes .* that Pillow misreads; save it compressed, or not planar"):
            read(data)
    folder = plant(tmp_path / "images", {"cat/0.jpg": photo(), "cat/1.tif": data})
    report = convert(folder, place)
    assert (report.records, report.rejected) == (1, 1)
    assert report_lines(report)[0]["reason"].startswith("has its values in planes")


# Conversions


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
    report = convert(root, place, raw=True, check=check)
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
    report = convert(root, place, max_side=25)
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
    convert(root, place, tile=True, quality=90)
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


# Several frames


def moving(image_format: str) -> bytes:
    first, second = (Image.new("RGB", (20, 10), color) for color in ("red", "blue"))
    return encoded(
        first,
        image_format,
        save_all=True,
        append_images=[second],
        **({"lossless": True} if image_format == "WEBP" else {}),
    )


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_decoded_and_that_is_said(
    image_format: str, tmp_path: Path, place: Path
) -> None:
    data = moving(image_format)
    assert read_facts(data).frames
    assert np.asarray(decode_pil(data))[5, 5].tolist() == [255, 0, 0]
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
    for options in ({"raw": True}, {"max_side": 5}):
        (line,) = report_lines(convert(folder, place, overwrite=True, **options))
        assert line["reason"] == "has several frames or pages: stored is the first"


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF", "MPO", "JPEG"])
def test_one_frame_is_not_several(image_format: str) -> None:
    assert not read_facts(encoded(jpegs.draw(20, 10), image_format)).frames


# Formats

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
WMF = struct.pack("<IHhhhhHIH", 0x9AC6CDD7, 0, 0, 0, 100, 100, 72, 0, 0) + bytes(18)
XPM = b'/* XPM */\nstatic char * a[] = {\n"1 1 1 1",\n"a c #000000",\n"a"};\n'


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs into PATH in place of Ghostscript; return the file that they make when they are called."""
    mark, programs = tmp_path / "called", tmp_path / "programs"
    programs.mkdir()
    for name in ("gs", "gswin32c", "gswin64c", "convert", "magick"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return mark


def test_the_programs_in_path_would_be_called_by_pillow(ghostscript: Path) -> None:
    code = f"import io; from PIL import Image; Image.open(io.BytesIO({EPS!r})).load()"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
    assert ghostscript.exists()


@pytest.mark.parametrize(
    "options", [(), ("--check", "structure"), ("--raw",), ("--max-side", "5"), ("--check", "none")]
)
def test_no_program_is_run_for_a_file_that_is_converted(
    ghostscript: Path, tmp_path: Path, place: Path, options: tuple[str, ...]
) -> None:
    names = ("1.jpg", "2.png", "3.eps", "4.tif")
    folder = plant(tmp_path / "images", {"0.jpg": photo(), **dict.fromkeys(names, EPS)})
    listing = tmp_path / "list.csv"
    listing.write_text("path,label\n" + "".join(f"{name},0\n" for name in ("0.jpg", *names)))
    outcome = run("convert", folder, place, "--list", listing, *options)
    assert not ghostscript.exists()
    if options == ("--check", "none"):
        assert outcome.status == 0
    else:
        assert outcome.status == 1
        assert outcome.stdout.count("is in no known image format (it begins with b'%!PS')") == len(names)


def test_no_program_is_run_for_a_file_that_is_trained_on(ghostscript: Path, tmp_path: Path, place: Path) -> None:
    write_store([{"image": EPS, "label": 0, "name": name} for name in ("1.jpg", "2.png", "3.eps")], place)
    decoders: list[Callable[[bytes], Any]] = [
        decode_pil, DecodeTensor(), DecodeTensor(exif_transpose=True), RandomResizedCrop(5, exif_transpose=True),
    ]  # fmt: skip
    for decode in decoders:
        with LMDBDataset(place, decode=decode) as dataset:
            for at in range(3):
                with pytest.raises(NotAnImageError, match=r"is in no known format: it begins with b'%!PS'"):
                    dataset[at]
    assert not ghostscript.exists()


@pytest.mark.parametrize("data", [EPS, WMF, XPM, b"#define a_width 8\n#define a_height 1\nstatic char a[] = {0x00};\n"])
def test_what_is_drawn_or_written_as_text_is_no_image(data: bytes) -> None:
    with pytest.raises(NotAnImageError, match="is in no known image format"):
        read_facts(data)


def test_formats_that_are_listed_are_those_of_pillow_and_opened() -> None:
    Image.init()
    assert not {*FORMATS} & {"EPS", "WMF", "IPTC", "PSD", "MPEG", "XPM"}
    for name in (name for name in FORMATS if name in Image.SAVE):
        with open_pillow(encoded(jpegs.draw(20, 10), name)) as image:
            assert image.format == name
            assert image.size == (20, 10) if name != "ICO" else image.size


def test_image_files_are_opened_in_one_place_only() -> None:
    package = Path(dbloader.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("open", "_open")
                and ast.unparse(node.value).endswith("Image")
            ):
                found.add(path.relative_to(package).as_posix())
            if isinstance(node, ast.ImportFrom) and node.module == "PIL.Image":
                assert "open" not in {alias.name for alias in node.names}, path
    assert found == {"pillow.py"}


# Cuts and sizes


def of_all_formats() -> dict[str, bytes]:
    """A small noisy image in each format that Pillow writes, in the ways in which it is compressed."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    image, gray = Image.fromarray(noise), Image.fromarray(noise[..., 0].astype(np.uint16) << 8)
    files = {name: encoded(image, name) for name in FORMATS if name in Image.SAVE and name not in ("ICO", "JPEG")}
    files |= {f"TIFF, {kind}": encoded(image, "TIFF", compression=kind) for kind in ("tiff_lzw", "packbits", "jpeg")}
    files |= {f"{name}, 16 bits": encoded(gray, name) for name in ("PNG", "PPM", "TIFF")}
    files |= {f"{name}, moving": moving(name) for name in ("GIF", "PNG", "WEBP", "TIFF")}
    files["TGA, compressed"] = encoded(image, "TGA", compression="tga_rle")
    files["GIF, interlaced"] = encoded(image, "GIF", interlace=1)
    files["WEBP, lossless"] = encoded(image, "WEBP", lossless=True)
    return files


@pytest.mark.parametrize("kind", of_all_formats())
def test_a_file_that_is_cut_is_refused_or_has_all_pixels(kind: str) -> None:
    data = of_all_formats()[kind]
    whole = decode_pil(data).tobytes()
    for end in (*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 12, len(data))):
        try:
            check_decodes(data[:end], read_facts(data[:end]))
        except (NotAnImageError, DamagedImageError):
            continue
        assert decode_pil(data[:end]).tobytes() == whole, f"cut at {end} of {len(data)}"


def sized(image_format: str, width: int, height: int) -> bytes:
    """A file of 8 x 8 pixels whose header tells of another size."""
    if image_format == "TIFF":
        return tiff(bytes(64), width, height, 8)
    data = bytearray(encoded(Image.new("P" if image_format == "GIF" else "RGB", (8, 8)), image_format))
    at, layout = {
        "PNG": (16, ">II"), "GIF": (6, "<HH"), "BMP": (18, "<II"), "WEBP": (26, "<HH"), "QOI": (4, ">II"),
        "TGA": (12, "<HH"), "JPEG": (data.find(b"\xff\xc0") + 5, ">HH"),
        "JPEG2000": (data.find(b"\xff\x51") + 6, ">II"),
    }[image_format]  # fmt: skip
    struct.pack_into(layout, data, at, *((height, width) if image_format == "JPEG" else (width, height)))
    if image_format == "PNG":
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    return bytes(data)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0), (65_500, 65_500), (65_500, 9)])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "QOI", "TGA", "JPEG2000"])
def test_a_size_that_is_none_or_absurd_is_refused(image_format: str, size: tuple[int, int]) -> None:
    data = sized(image_format, *size)
    for form in (ImageFormat(), ImageFormat(raw=True), ImageFormat(max_side=3)):
        prepared = FilePreparer(form=form).prepare(Entry("x", b"x", None, {}), lambda _: None, data)
        assert (prepared.outcome, prepared.record) == ("rejected", None)


@pytest.mark.parametrize("mode", ["CMYK", "YCCK"])
def test_inks_are_those_of_pillow_in_every_decoder(mode: str) -> None:
    data = encoded(jpegs.draw(33, 21, "CMYK"), "JPEG")
    at = data.index(b"Adobe") + 11
    if mode == "YCCK":
        data = data[:at] + b"\x02" + data[at + 1 :]
    expected = np.asarray(decode_pil(data))
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)


# The limit of pixels


def large(side: int = 13_500) -> bytes:
    """A PNG of 22 kB and 182 megapixels."""
    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + rows.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


TRAIN = """
import sys
from torch.utils.data import DataLoader
from dbloader import LMDBDataset

def size(image):
    return image.size

if __name__ == "__main__":
    loader = DataLoader(LMDBDataset(sys.argv[1], size), None, num_workers=1, multiprocessing_context="spawn")
    print([found for found, _ in loader])
"""


def test_the_limit_of_pixels_is_named_and_can_be_lifted_in_conversion_and_training(tmp_path: Path, place: Path) -> None:
    folder = plant(tmp_path / "images", {"cat/0.png": large(), "cat/1.jpg": photo()})
    outcome = run("convert", folder, place)
    assert outcome.status == 1
    told = (
        "is too large to be decoded: it has more pixels than the 178,956,970 that are allowed; "
        "set the environment variable DBLOADER_MAX_PIXELS to allow more"
    )
    assert f"rejected  cat/0.png: {told}\n" in outcome.stdout
    environment = {**os.environ, "DBLOADER_MAX_PIXELS": "190000000"}
    outcome = run("convert", folder, place, "--overwrite", env=environment)
    assert (outcome.status, outcome.stderr) == (0, "")
    code = tmp_path / "train.py"
    code.write_text(TRAIN)
    refused = subprocess.run([sys.executable, code, place], capture_output=True, text=True, check=False)
    assert f"NotAnImageError: the image {told}" in refused.stderr
    allowed = subprocess.run([sys.executable, code, place], capture_output=True, text=True, check=True, env=environment)
    assert allowed.stdout == "[[13500, 13500], [40, 30]]\n"


@pytest.mark.parametrize("limit", ["many", "0", "-5", "1e9", "٣", "9" * 5000])
def test_a_limit_that_is_no_number_of_pixels_is_told_before_anything_begins(
    root: Path, place: Path, limit: str
) -> None:
    outcome = run("convert", root, place, env={**os.environ, "DBLOADER_MAX_PIXELS": limit})
    assert outcome.status == 2
    told = f"must be a number of pixels, at least 1, of 18 digits at most, got {limit[:19]!r}"
    assert outcome.stderr == f"Error: DBLOADER_MAX_PIXELS {told}\n"
    assert [path.name for path in place.parent.iterdir()] == ["images"]


def test_a_lower_limit_holds_for_jpegs_too(root: Path, place: Path) -> None:
    outcome = run("convert", root, place, env={**os.environ, "DBLOADER_MAX_PIXELS": "1199"})  # a photo has 40 x 30
    assert outcome.status == 2
    assert "none of the 4 files could be stored" in outcome.stderr
    assert "has more pixels than the 1,199 that are allowed" in outcome.stderr
