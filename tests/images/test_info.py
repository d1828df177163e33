"""Headers of images are read, and damaged files are found."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dbloader.decoding import decode_pil
from dbloader.errors import DamagedImageError, NotAnImageError
from dbloader.images.check import check_decodes
from dbloader.images.info import Facts, read_facts
from tests.support import jpegs
from tests.support.images import END, encoded, multi_picture, photo

Array = np.ndarray[Any, Any]

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")


def check(data: bytes) -> None:
    check_decodes(data, read_facts(data))


def floats(image: Image.Image) -> Array:
    pixels = np.asarray(image).astype(float)
    return pixels.reshape(*pixels.shape[:2], -1)


def flip(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_facts_are_read_from_the_header_of_the_first_image_alone() -> None:
    assert read_facts(encoded(jpegs.draw(37, 21), "PNG")[:60])[:3] == ("PNG", 37, 21)
    assert read_facts(multi_picture())[:3] == ("JPEG", 24, 18)
    check(multi_picture())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", r"in no known image format \(it begins with b'<htm'\)"),
        (bytes(1000), "in no known image format"),
        (b"\xff\xd8\xff", "in no known image format"),
        (b"BM" + bytes(60), "its header cannot be read"),
        (encoded(jpegs.draw(37, 21), "WEBP")[:-10], "its header cannot be read: could not create decoder object"),
    ],
)
def test_files_that_are_not_images_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(NotAnImageError, match=reason):
        read_facts(data)


@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_complete_images_pass_the_check(image_format: str, mode: str) -> None:
    data = encoded(jpegs.draw(37, 21, mode), image_format)
    assert read_facts(data)[:3] == (image_format, 37, 21)
    check(data)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("L", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"keep_rgb": True}),
        ("RGB", {"subsampling": 0, "quality": 1}),
        ("RGB", {"restart_marker_blocks": 3}),
        ("CMYK", {}),
        ("CMYK", {"progressive": True}),
    ],
)
@pytest.mark.parametrize("size", [(37, 21), (12, 1), (1, 1), (1, 500)])
def test_complete_jpegs_of_all_kinds_pass_the_check(mode: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    check(jpegs.encode(jpegs.draw(*size, mode), **options))


@pytest.mark.parametrize("sampling", [(0x31, 0x11, 0x11), (0x14, 0x11, 0x11), (0x22, 0x21, 0x11), (0x11, 0x22, 0x11)])
def test_complete_jpegs_with_rare_sampling_factors_pass_the_check(sampling: tuple[int, ...]) -> None:
    assert read_facts(jpegs.exotic(*sampling))[:3] == ("JPEG", 48, 48)
    check(jpegs.exotic(*sampling))


def test_truncated_jpegs_with_rare_sampling_factors_are_damaged() -> None:
    with pytest.raises(ValueError, match="subsampling level"):
        simplejpeg.decode_jpeg(jpegs.exotic(0x31, 0x11, 0x11))
    decode_pil(jpegs.exotic(0x31, 0x11, 0x11, blocks=5))  # Pillow reports no error
    with pytest.raises(DamagedImageError, match=r"does not decode: its last scan is cut short"):
        check(jpegs.exotic(0x31, 0x11, 0x11, blocks=9))
    # Pillow cannot decode this file
    with pytest.raises(DamagedImageError, match="does not decode: broken data stream"):
        check(jpegs.exotic(0x33, 0x11, 0x11))


def test_damage_that_causes_a_libjpeg_warning_is_found() -> None:
    generator = random.Random(0)
    data = photo(width=160, height=120, quality=85)
    found = 0
    for _ in range(300):
        flipped = flip(data, generator.randrange(data.index(b"\xff\xda") + 14, len(data) - 2), generator.randrange(8))
        try:
            simplejpeg.decode_jpeg(flipped, strict=True)
        except ValueError:
            found += 1
            with pytest.raises(DamagedImageError, match=r"does not decode|has data left"):
                check(flipped)
        else:
            check(flipped)
    assert found > 30


@pytest.mark.parametrize("padding", [bytes(40), b"\xff" * 20, b"\x7f", b"\x41" * 1000])
def test_padding_before_the_end_marker_is_not_damage(padding: bytes) -> None:
    data = photo()
    padded = data[:-2] + padding + END
    assert np.array_equal(floats(decode_pil(padded)), floats(decode_pil(data)))
    check(padded)
    check(padded + b"and bytes after the end marker")


def test_other_bytes_before_the_end_marker_are_damage() -> None:
    noise = bytes(random.Random(0).choices(range(255), k=100))
    with pytest.raises(DamagedImageError, match=r"has data left .* so some pixels are wrong: .*\d+ extraneous bytes"):
        check(photo()[:-2] + noise + END)


def test_jpeg_with_a_header_that_pillow_cannot_read_is_damaged() -> None:
    data = photo()
    start = data.index(b"\xff\xdb")
    broken = data[:start] + jpegs.segment(0xE1, b"Exif\x00\x00II*\x00\xff\xff\xff\xff") + data[start:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about corrupt EXIF, which does not affect pixels
        check(broken)
    with pytest.raises(DamagedImageError, match=r"^its header cannot be read: cannot identify image file$"):
        check_decodes(b"\xff\xd8\xff\xe0", Facts("JPEG", 1, 1))


def test_every_flipped_bit_in_the_pixels_of_a_png_is_found() -> None:
    image = jpegs.draw(16, 16)
    data = encoded(image, "PNG")
    start = data.index(b"IDAT") + 4
    for position in range(start, len(data) - 16):
        with pytest.raises(DamagedImageError, match=r"the CRC of its chunk IDAT at byte \d+ is wrong"):
            check(flip(data, position, position % 8))
    check(data + b"\x00\x00\x00\x01tEXtxbad!")  # bytes after the end of the image do not matter
