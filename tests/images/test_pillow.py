"""Pillow opens only allowed formats, at every depth, and with a limit on pixels."""

from __future__ import annotations

import ast
import io
import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image, features

import dbloader
from dbloader import convert
from dbloader.conversion.file_to_record import convert_file
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import DecodeTensor, RandomResizedCrop, decode_pil
from dbloader.decoding.open import read_orientation
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError, PixelRangeError
from dbloader.images.check import check_decodes
from dbloader.images.info import read_facts
from dbloader.images.pillow import FORMATS, max_pixels, open_pillow, read_limit
from dbloader.images.pillow import LIMIT_VARIABLE as LIMIT
from dbloader.images.resize import load_pixels, resize
from dbloader.sources.base import Entry
from tests.support import jpegs
from tests.support.deep import BYTES, COLORED, COLORS, GRAY, PLANES, UNKNOWN, UPPER, moving, planar_tiff, tiff
from tests.support.images import chunk, encoded, photo, plant

Image.init()


@pytest.mark.parametrize("kind", GRAY)
def test_every_decoder_takes_the_upper_8_bits_of_16_bit_gray(kind: str) -> None:
    data, _ = GRAY[kind]
    expected = np.repeat(UPPER[..., None], 3, axis=2)
    check_decodes(data, read_facts(data))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), expected)
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)
    assert read_facts(data).depth == ("12-bit" if kind == "TIFF, 12 bits" else "16-bit")
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(DecodeTensor()(image).permute(1, 2, 0), expected)


@pytest.mark.parametrize("kind", COLORED)
def test_colors_of_16_bits_become_their_upper_8_bits(kind: str) -> None:
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
def test_values_of_unknown_range_raise_with_a_remedy(kind: str) -> None:
    data, depth = UNKNOWN[kind]
    assert read_facts(data).depth == depth
    check_decodes(data, read_facts(data))
    for decode in (decode_pil, DecodeTensor(), RandomResizedCrop(9), lambda data: load_pixels(data, None)):
        with pytest.raises(PixelRangeError, match=rf"values are {depth}: .* give the dataset a decode= of your own"):
            decode(data)
    if depth.startswith("32-bit "):
        with Image.open(io.BytesIO(data)) as image, pytest.raises(PixelRangeError, match="range is not known"):
            DecodeTensor()(image)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_modes_of_8_bits_are_converted_like_in_pillow(mode: str) -> None:
    image = jpegs.draw(20, 10).convert(mode)
    data = encoded(image, "TIFF")
    if mode == "YCbCr" and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow before 13 cannot read the TIFFs in YCbCr that it writes")
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), expected)
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)
    assert read_facts(data).depth == "8-bit"


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gray_with_fewer_bits_is_scaled_to_8_bits(depth: int) -> None:
    values = np.arange(2**depth, dtype=np.uint8)
    row = np.packbits(np.unpackbits(values[:, None], axis=1)[:, 8 - depth :].reshape(-1)).tobytes()
    header = struct.pack(">IIBBBBB", len(values), 1, depth, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b""))
    )
    assert np.asarray(decode_pil(data))[0, :, 0].tolist() == [round(v * 255 / (2**depth - 1)) for v in values.tolist()]
    assert read_facts(data).depth == "8-bit"


@pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow has no JPEG 2000")
def test_depth_of_jpeg_2000_is_read_from_its_codestream() -> None:
    for bits, data in ((8, encoded(jpegs.draw(20, 10), "JPEG2000")), (16, GRAY["JPEG 2000"][0])):
        at = data.index(b"jp2c") - 4
        box, codestream = data[at : at + 8], data[at + 8 :]
        # The bytes of the codestream's markers may also occur in other boxes.
        decoy = b"\xff\x4f\xff\x51" + bytes(38) + bytes([11, 1, 1]) * 40
        before = data[:at] + struct.pack(">I", 8 + len(decoy)) + b"xml " + decoy
        long = struct.pack(">I4sQ", 1, b"jp2c", 16 + len(codestream))
        for file in (data, codestream, before + box + codestream, before + long + codestream):
            assert read_facts(file).depth == f"{bits}-bit"


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_depth_of_avif_is_read_from_its_header() -> None:
    data = encoded(jpegs.draw(20, 10), "AVIF")
    assert read_facts(data).depth == "8-bit"
    at, channels = data.index(b"av1C") + 6, data.index(b"pixi") + 9
    for flags, bits in ((0x40, 10), (0x60, 12)):
        deep = bytearray(data)
        deep[at] = deep[at] & 0x9F | flags
        deep[channels : channels + 3] = bytes([bits] * 3)
        assert read_facts(bytes(deep)).depth == f"{bits}-bit"


@pytest.mark.parametrize(
    "data",
    [planar_tiff(BYTES, white=2), planar_tiff(BYTES, white=2, compression=8),
     planar_tiff(PLANES, white=2, compression=8)],
)  # fmt: skip
def test_compressed_or_8_bit_planes_are_read(data: bytes) -> None:
    check_decodes(data, read_facts(data))
    np.testing.assert_array_equal(np.asarray(decode_pil(data)), BYTES.transpose(1, 2, 0))


@pytest.mark.parametrize(
    "data",
    [planar_tiff(PLANES, white=2), planar_tiff(BYTES[:1], white=0), planar_tiff(BYTES, white=2, fill=2)],
    ids=["16 bits", "white is 0", "bits from the other end"],
)  # fmt: skip
def test_planes_that_pillow_misreads_are_refused(data: bytes) -> None:
    for read in (read_facts, decode_pil, DecodeTensor()):
        with pytest.raises(NotAnImageError, match=r"planes .* that Pillow misreads; save it compressed, or not planar"):
            read(data)


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_of_several_frames_is_decoded(image_format: str) -> None:
    data = moving(image_format)
    assert read_facts(data).frames
    assert np.asarray(decode_pil(data))[5, 5].tolist() == [255, 0, 0]
    for other in (image_format, "MPO", "JPEG"):
        assert not read_facts(encoded(jpegs.draw(20, 10), other)).frames


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("options", [{}, {"check": "none", "images": ImageFormat(raw=True)}])
def test_file_for_which_pillow_runs_a_program_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    report = convert(plant(tmp_path / "images", {"a/0.jpg": photo(), "a/1.jpg": EPS}), tmp_path / "out.lmdb", **options)
    assert (report.records, report.rejected) == (1, 1)
    for decode in (decode_pil, DecodeTensor(), DecodeTensor(exif_transpose=True), RandomResizedCrop(5)):
        with pytest.raises(NotAnImageError, match=r"is in no known format: it begins with b'%!PS'"):
            decode(EPS)


def test_all_allowed_formats_are_opened() -> None:
    Image.init()
    assert not {*FORMATS} & {"EPS", "WMF", "IPTC", "PSD", "MPEG", "XPM"}
    for name in (name for name in FORMATS if name in Image.SAVE):
        with open_pillow(encoded(jpegs.draw(40, 30), name)) as image:
            assert image.format == name
            assert image.size == (40, 30) if name != "ICO" else image.size


def test_only_one_module_calls_image_open_of_pillow() -> None:
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
    assert found == {"images/pillow.py"}


def of_all_formats() -> dict[str, bytes]:
    """Return a small noisy image in each format and compression that Pillow writes."""
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
def test_truncated_file_is_refused_or_has_all_pixels(kind: str) -> None:
    data = of_all_formats()[kind]
    whole = decode_pil(data).tobytes()
    for end in (*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 12, len(data))):
        try:
            check_decodes(data[:end], read_facts(data[:end]))
        except (NotAnImageError, DamagedImageError):
            continue
        assert decode_pil(data[:end]).tobytes() == whole, f"cut at {end} of {len(data)}"


def sized(image_format: str, width: int, height: int) -> bytes:
    """Return a file of 8 x 8 pixels whose header claims another size."""
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
def test_invalid_or_absurd_size_is_refused(image_format: str, size: tuple[int, int]) -> None:
    data = sized(image_format, *size)
    for images in (ImageFormat(), ImageFormat(raw=True), ImageFormat(max_side=3)):
        settings = Settings(source="x", images=images)
        result = convert_file(settings, Entry("x", (b"x",), None, {}), data, lambda _: None)
        assert (list(result.events), result.record) == (["rejected"], None)


@pytest.mark.parametrize("mode", ["CMYK", "YCCK"])
def test_every_decoder_converts_cmyk_like_pillow(mode: str) -> None:
    data = encoded(jpegs.draw(33, 21, "CMYK"), "JPEG")
    at = data.index(b"Adobe") + 11
    if mode == "YCCK":
        data = data[:at] + b"\x02" + data[at + 1 :]
    check_decodes(data, read_facts(data))
    expected = np.asarray(decode_pil(data))
    np.testing.assert_array_equal(DecodeTensor()(data).permute(1, 2, 0), expected)
    np.testing.assert_array_equal(load_pixels(data, None), expected)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets DBLOADER_MAX_PIXELS, as if before the first image of a process."""

    def set_limit(text: str) -> None:
        monkeypatch.setenv("DBLOADER_MAX_PIXELS", text)
        read_limit.cache_clear()

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # Pillow itself refuses images of more than twice this number
    yield set_limit
    read_limit.cache_clear()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # Pillow warns before the error
def test_error_names_the_limit_of_pixels_and_how_to_raise_it(
    limit: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(jpegs.draw(40, 30), "PNG")
    readers: list[Callable[[bytes], Any]] = [read_facts, decode_pil, DecodeTensor(), read_orientation]
    for text, most, files in (("", "1,000", [data]), ("1199", "1,199", [data, photo()])):
        limit(text)
        for read, file in itertools.product(readers[: 3 if len(files) > 1 else 4], files):
            with pytest.raises(NotAnImageError, match=f"more pixels than the {most} that are allowed; set .* {LIMIT}"):
                read(file)
    limit("1200")
    for read in readers:
        read(data)
        monkeypatch.setenv(LIMIT, "1199")  # this is too late, because a process reads the variable once
    assert Image.open(io.BytesIO(data)).size == (40, 30)  # this limit applies to the whole process


@pytest.mark.parametrize("text", ["many", "0", "-5", "1e9", "9" * 5000])
def test_invalid_limit_is_refused_before_a_conversion_begins(
    limit: Callable[[str], None], text: str, tmp_path: Path
) -> None:
    limit(text)
    message = re.escape(f"{LIMIT} must be a number of pixels, at least 1, got {text!r:.99}") + "…?"
    with pytest.raises(OptionError, match=f"^{message}$"):
        max_pixels()
    folder = plant(tmp_path / "images", {"cat/0.jpg": photo()})
    with pytest.raises(OptionError, match=f"^{message}$"):
        convert(folder, tmp_path / "out.lmdb")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
