"""Resizing keeps the colors, mode, profile and EXIF of an image."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from dbloader.conversion.transcode import ImageFormat, new_size
from dbloader.decoding import decode_pil
from dbloader.errors import PixelRangeError
from dbloader.images.check import check_decodes
from dbloader.images.info import Facts, read_facts
from dbloader.images.pillow import open_pillow
from dbloader.images.resize import load_pixels, resize
from tests.support import jpegs
from tests.support.deep import GRAY, UNKNOWN
from tests.support.images import encoded

Array = np.ndarray[Any, Any]

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
COLOURS = np.array([[200, 30, 40], [10, 220, 90], [30, 60, 210], [240, 230, 20]])


def check(data: bytes) -> None:
    check_decodes(data, read_facts(data))


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def patches(mode: str = "RGB", side: int = 32) -> Image.Image:
    """Draw four squares, each in one color."""
    colors = np.repeat(np.repeat(COLOURS.reshape(2, 2, 3), side, axis=0), side, axis=1)
    return Image.fromarray(colors.astype(np.uint8)).convert(mode)


def waves(width: int, height: int, bands: int) -> Array:
    """Return a smooth picture as floats from 20 to 235, shape (height, width, bands)."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / width * (3 + band) + band) * np.cos(y / height * (4 - band)) for band in range(bands)]
    return 127.5 + 107.5 * np.stack(waves, axis=-1)


def floats(image: Image.Image) -> Array:
    pixels = np.asarray(image).astype(float)
    return pixels.reshape(*pixels.shape[:2], -1)


def centers(image: Image.Image) -> Array:
    """Return the mean color in the middle of each quarter."""
    pixels = floats(image)
    height, width, _ = pixels.shape
    parts = [
        pixels[y + height // 8 : y + 3 * height // 8, x + width // 8 : x + 3 * width // 8]
        for y in (0, height // 2)
        for x in (0, width // 2)
    ]
    return np.array([part.mean(axis=(0, 1)) for part in parts])


# Sizes


@pytest.mark.parametrize(
    ("before", "limits", "after"),
    [
        ((500, 375), {"max_side": 256}, (256, 192)),
        ((500, 375), {"short_side": 256}, (341, 256)),
        ((257, 256), {"max_side": 256}, (256, 255)),
        ((256, 256), {"max_side": 256}, None),
        ((900, 256), {"short_side": 256}, None),
        ((900, 257), {"short_side": 256}, (896, 256)),
        ((5000, 2), {"max_side": 100}, (100, 1)),
        ((10**6, 1), {}, None),
    ],
)
def test_new_sizes_are_rounded(before: tuple[int, int], limits: dict[str, int], after: tuple[int, int] | None) -> None:
    assert new_size(Facts("JPEG", *before), ImageFormat(**limits)) == after  # type: ignore[arg-type]


# Pixels


@pytest.mark.parametrize(("width", "size"), [(1001, (20, 16)), (511, (60, 45)), (40, (3, 2))])
def test_scaled_decoding_does_not_shift_a_jpeg(width: int, size: tuple[int, int]) -> None:
    height = width * 3 // 4
    image = Image.fromarray(waves(width, height, 3).round().astype(np.uint8))
    reference = floats(image.resize(size, Image.Resampling.LANCZOS))
    smaller = floats(decode_pil(resize(jpegs.encode(image, quality=100, subsampling=0), size, quality=100)[0]))
    assert np.abs(smaller - reference).max() < 7


@pytest.mark.parametrize(
    ("image_format", "modes"),
    [
        ("JPEG", {"L": "L", "RGB": "RGB", "CMYK": "CMYK"}),
        ("PNG", {"L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA", "P": "RGB", "1": "L"}),
        ("WEBP", {"RGB": "RGB", "RGBA": "RGB"}),  # WebP drops an alpha channel that is opaque everywhere
        ("TIFF", {"L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA", "CMYK": "CMYK", "P": "RGB", "1": "L"}),
        ("BMP", {"L": "L", "RGB": "RGB", "P": "RGB", "1": "L"}),
        ("PPM", {"L": "L", "RGB": "RGB", "1": "L"}),
    ],
)
def test_colors_and_mode_are_kept(image_format: str, modes: dict[str, str]) -> None:
    for mode, expected in modes.items():
        image = patches(mode)
        smaller, its_facts = resize(encoded(image, image_format), (32, 32))
        assert its_facts[:3] == (image_format, 32, 32)
        assert (opened(smaller).format, opened(smaller).mode) == (image_format, expected)
        check(smaller)
        tolerance = 6 if mode == "1" or image_format in ("JPEG", "WEBP") else 3
        assert np.abs(centers(decode_pil(smaller)) - centers(image.convert("RGB"))).max() < tolerance
        if expected == "CMYK":
            assert np.abs(centers(opened(smaller)) - centers(image)).max() < 6


@pytest.mark.parametrize("image_format", ["GIF", "JPEG2000", "TGA"])
def test_resized_gif_jpeg2000_and_tga_become_png(image_format: str) -> None:
    smaller, its_facts = resize(encoded(patches(), image_format), (32, 32))
    assert read_facts(smaller)[:3] == its_facts[:3] == ("PNG", 32, 32)
    assert np.abs(centers(decode_pil(smaller)) - COLOURS).max() < 3


# Transparency


@pytest.mark.parametrize("image_format", ["PNG", "TIFF", "WEBP"])
def test_opacity_and_hidden_colors_are_kept(image_format: str) -> None:
    image = patches("RGBA", side=64)
    opacity = np.repeat(np.repeat(np.array([[0, 128], [255, 5]], np.uint8), 64, axis=0), 64, axis=1)
    image.putalpha(Image.fromarray(opacity))
    options = {"exact": True, "quality": 100} if image_format == "WEBP" else {}
    smaller = resize(encoded(image, image_format, **options), (64, 64), quality=100)[0]
    assert opened(smaller).mode == "RGBA"
    seen = centers(opened(smaller))
    assert np.abs(seen[:, 3] - [0, 128, 255, 5]).max() < 2
    assert np.abs(seen[:, :3] - COLOURS).max() < 8  # training drops the alpha channel


@pytest.mark.parametrize(
    ("mode", "color", "expected"), [("P", 0, "RGBA"), ("RGB", (200, 30, 40), "RGBA"), ("L", 60, "LA")]
)
def test_transparent_color_becomes_opacity(mode: str, color: Any, expected: str) -> None:
    colors: dict[str, Any] = {"RGB": ((200, 30, 40), (10, 220, 90)), "L": (60, 200)}
    one, other = colors.get(mode, (0, 1))
    image = Image.new(mode, (64, 64), one)
    image.paste(other, (32, 0, 64, 64))
    if mode == "P":
        image.putpalette([200, 30, 40, 10, 220, 90])
    data = encoded(image, "PNG", transparency=color)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow itself recommends this conversion
        smaller = opened(resize(data, (32, 32))[0])
        before = floats(opened(data).convert("RGBA"))
    assert smaller.mode == expected
    after = floats(smaller.convert("RGBA"))
    assert np.abs(after[16, [5, 26]] - before[32, [10, 52]]).max() < 2
    assert after[16, [5, 26], 3].tolist() == [0, 255]


# Profile, EXIF, quality


@pytest.mark.parametrize(
    ("image_format", "mode"), [("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("WEBP", "RGB"), ("TIFF", "RGB")]
)
def test_resizing_keeps_color_profile_exif_and_orientation(image_format: str, mode: str) -> None:
    # Pillow applies the orientation of a TIFF when it opens the file
    options: dict[str, Any] = {} if image_format == "TIFF" else {"exif": jpegs.turned_exif()}
    data = encoded(Image.new(mode, (64, 48)), image_format, icc_profile=PROFILE, **options)
    smaller = resize(data, (32, 24))[0]
    assert opened(smaller).size == (32, 24)
    assert opened(smaller).info["icc_profile"] == PROFILE
    assert opened(smaller).getexif().get(0x0112) == (6 if options else None)


# More than 8 bits


@pytest.mark.parametrize("kind", GRAY)
def test_resized_gray_has_16_bits_in_a_file_and_8_bits_in_raw_pixels(kind: str) -> None:
    data, values = GRAY[kind]
    smaller, its_facts = resize(data, (128, 128))
    assert (read_facts(smaller), its_facts.depth) == (its_facts, "16-bit")
    means = values.reshape(128, 2, 128, 2).mean(axis=(1, 3))
    assert np.abs(np.asarray(open_pillow(smaller)).astype(float) - means)[4:-4, 4:-4].max() < 300
    pixels = load_pixels(data, (128, 128))
    assert np.abs(pixels[..., 0] - means / 256)[4:-4, 4:-4].max() < 2


@pytest.mark.parametrize("kind", UNKNOWN)
def test_resized_deep_values_keep_their_range_or_are_refused(kind: str) -> None:
    data, _ = UNKNOWN[kind]
    if kind in ("TIFF, float, white is 0", "TIFF, 32 bits", "TIFF, 8 bits signed"):
        with pytest.raises(PixelRangeError, match=r"Pillow (reads as|cannot write).*: do not resize it"):
            resize(data, (128, 128))
        return
    smaller, its_facts = resize(data, (128, 128))
    assert read_facts(smaller) == its_facts
    before, after = np.asarray(open_pillow(data)).astype(float), np.asarray(open_pillow(smaller)).astype(float)
    means = before.reshape(128, 2, 128, 2).mean(axis=(1, 3))
    middle = slice(4, 60) if kind == "TIFF, 16 bits signed" else slice(4, -4)  # half of the values are negative
    assert np.abs(after - means)[middle, 4:-4].max() < 0.005 * np.ptp(before)
