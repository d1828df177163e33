"""decode_unchanged keeps channels and bits, and decode_gray refuses deep images."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import LMDBDataset, convert, create_loader
from dbloader.decoding import ResizeCenterCrop, decode_gray, decode_pil, decode_unchanged
from dbloader.decoding.masks_and_boxes import decode_field, values_of
from dbloader.decoding.pillow import open_file
from dbloader.decoding.unchanged import read_values
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError, PixelRangeError
from tests.support import jpegs
from tests.support.deep import COLORED, COLORS, DEEP, FLOATS, GRAY, PLANES, UNKNOWN, planar_tiff, tiff
from tests.support.images import encoded, photo, plant
from tests.support.stores import store_samples


def read_array(data: bytes | memoryview) -> Any:
    with open_file(data) as image:
        return read_values(data, image)


def deflated() -> bytes:
    """Return a compressed TIFF, which Pillow reads with libtiff."""
    plain = tiff(zlib.compress(COLORS[..., :3].tobytes()), 30, 40, 16, white=2, samples=3)
    method = struct.pack("<HHI", 259, 4, 1)
    return plain.replace(method + struct.pack("<I", 1), method + struct.pack("<I", 8))


DEEP_COLORS = {
    "PNG, RGB": COLORED["PNG, RGB"],
    "PNG, RGBA": (COLORED["PNG, RGBA"][0], COLORS),
    "TIFF, RGB": COLORED["TIFF, RGB"],
    "TIFF, compressed": (deflated(), COLORS[..., :3]),
}


@pytest.mark.parametrize("kind", GRAY)
def test_gray_images_keep_their_depth(kind: str) -> None:
    data, values = GRAY[kind]
    array = read_array(data)
    assert array.dtype == np.uint16
    assert array.flags.c_contiguous
    assert array.flags.writeable
    if kind == "PGM, 12 bits":  # Pillow scales these values to 16 bits
        np.testing.assert_array_equal(array >> 4, values >> 4)
    else:
        np.testing.assert_array_equal(array, values >> 4 if kind == "TIFF, 12 bits" else values)
    tensor = decode_unchanged(data)
    assert (tensor.dtype, tensor.shape) == (torch.int32, (1, 256, 256))
    np.testing.assert_array_equal(tensor[0], array)
    np.testing.assert_array_equal(values_of(decode_field(data)), array)


@pytest.mark.parametrize("kind", DEEP_COLORS)
def test_colors_keep_16_bits_of_each_channel(kind: str) -> None:
    data, expected = DEEP_COLORS[kind]
    np.testing.assert_array_equal(read_array(data), expected)
    np.testing.assert_array_equal(decode_unchanged(data).permute(1, 2, 0), expected)


@pytest.mark.parametrize(
    "data",
    [
        COLORED["PNG, gray with alpha"][0],
        b"P6 30 40 65535\n" + COLORS[..., :3].astype(">u2").tobytes(),
        planar_tiff(PLANES, white=2, compression=8),
    ],
    ids=["PNG, gray with alpha", "PPM", "TIFF, planar"],
)
def test_colors_that_pillow_reads_incompletely_are_refused(data: bytes) -> None:
    with pytest.raises(PixelRangeError, match="16-bit, and Pillow reads only some of their bits: decode_pil"):
        decode_unchanged(data)


def test_signed_and_float_values_are_unchanged() -> None:
    special = np.array([[0.5, -1e30], [np.inf, np.nan]], np.float32)
    found = {kind: read_array(data) for kind, (data, _) in UNKNOWN.items()}
    np.testing.assert_array_equal(found["TIFF, float"], FLOATS)
    np.testing.assert_array_equal(found["PFM"], FLOATS)
    np.testing.assert_array_equal(found["TIFF, 32 bits"], DEEP)
    np.testing.assert_array_equal(found["TIFF, 16 bits signed"], DEEP.view(np.int16))
    np.testing.assert_array_equal(found["TIFF, 8 bits signed"], (DEEP >> 8).astype(np.uint8).view(np.int8))
    tensor = decode_unchanged(encoded(Image.fromarray(special), "TIFF"))
    assert tensor.dtype is torch.float32
    np.testing.assert_array_equal(tensor[0], special)


def test_values_that_pillow_reads_as_negative_are_refused() -> None:
    data = tiff(np.full((2, 2), 2**31, "<u4").tobytes(), 2, 2, 32)
    with pytest.raises(PixelRangeError, match="32-bit, and some are above 2,147,483,647"):
        decode_unchanged(data)


def test_channels_are_unchanged() -> None:
    mask = np.random.default_rng(0).integers(0, 20, (30, 40)).astype(np.uint8)
    palette = Image.frombytes("P", (40, 30), mask.tobytes())
    palette.putpalette([*range(60)])
    np.testing.assert_array_equal(decode_unchanged(encoded(palette, "PNG"))[0], mask)
    np.testing.assert_array_equal(decode_unchanged(encoded(Image.fromarray(mask > 9), "PNG"))[0], mask > 9)
    assert decode_unchanged(encoded(Image.fromarray(mask > 9), "PNG")).dtype is torch.uint8
    for mode, image_format in (("L", "PNG"), ("LA", "PNG"), ("RGBA", "PNG"), ("CMYK", "TIFF"), ("RGB", "BMP")):
        image = jpegs.draw(40, 30, mode)
        tensor = decode_unchanged(encoded(image, image_format))
        assert (tensor.dtype, tensor.shape) == (torch.uint8, (len(mode), 30, 40))
        np.testing.assert_array_equal(tensor.permute(1, 2, 0).squeeze(-1), np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_has_channels_and_pixels_of_pillow(mode: str) -> None:
    data = jpegs.encode(jpegs.draw(40, 30, mode))
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(read_array(memoryview(data)), np.asarray(image))


@pytest.mark.parametrize("decode", [decode_unchanged, decode_gray])
def test_damaged_file_raises_the_same_error_as_decode_pil(decode: Any) -> None:
    cases = (b"", b"no image at all", photo()[:-300], encoded(jpegs.draw(24, 18), "PNG")[:-200])
    for data in cases:
        with pytest.raises((DamagedImageError, NotAnImageError)) as expected:
            decode_pil(data)
        with pytest.raises(expected.type, match=re.escape(str(expected.value))):
            decode(data)


def test_decode_gray_equals_pillow_and_refuses_16_bits() -> None:
    for mode in ("L", "RGB", "RGBA", "P"):
        data = encoded(jpegs.draw(40, 30, "RGB").convert(mode), "PNG")
        gray = decode_gray(data)
        assert gray.mode == "L"
        assert gray.tobytes() == decode_pil(data).convert("L").tobytes()
    for kind in ("PNG", "TIFF, 12 bits"):
        with pytest.raises(PixelRangeError, match="which gray of 8 bits cannot hold: decode_unchanged"):
            decode_gray(GRAY[kind][0])
    with pytest.raises(PixelRangeError, match="16-bit"):
        decode_gray(COLORED["PNG, RGB"][0])


def test_dataset_with_decode_unchanged_returns_all_bits(tmp_path: Any) -> None:
    depth = np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50
    plant(tmp_path / "images", {"a/0.png": encoded(Image.fromarray(depth), "PNG")})
    convert(tmp_path / "images", tmp_path / "depth.lmdb")
    with LMDBDataset(tmp_path / "depth.lmdb", decode=decode_unchanged) as dataset:
        image, label = dataset[0]
        assert label == 0
        np.testing.assert_array_equal(image[0], depth)


@pytest.mark.parametrize("decode", [decode_unchanged, decode_pil, decode_gray])
@pytest.mark.parametrize("image", [np.zeros((4, 4), np.uint16), Image.new("RGB", (4, 4)), "a.png"], ids=type)
def test_decoding_what_is_no_file_names_its_type(decode: Any, image: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"bytes of an image file can be decoded, got {type(image).__name__}: use it as"
    ):
        decode(image)


def test_deep_array_can_be_loaded_as_its_error_says(tmp_path: Path) -> None:
    array = np.array([[0, 300, 65535]], np.uint16)
    store_samples([{"image": array, "label": 0}], tmp_path / "deep.lmdb")
    dataset = LMDBDataset(tmp_path / "deep.lmdb", decode=decode_unchanged)
    with pytest.raises(OptionError, match="transform=None and normalize=None leave arrays as is"):
        next(iter(create_loader(dataset, batch_size=1, transform=ResizeCenterCrop(8))))
    images, _ = next(iter(create_loader(dataset, batch_size=1, transform=None, normalize=None)))
    np.testing.assert_array_equal(images.numpy()[0], array)
