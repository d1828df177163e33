"""PNG and WebP files that imagecodecs decodes have Pillow's pixels, and damage is found as Pillow finds it."""

import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from dbloader.decoding import DecodeTensor, decode_pil, masks_and_boxes
from dbloader.decoding import open as open_module
from dbloader.decoding.codecs import open_codec
from dbloader.decoding.decoder import Plan
from dbloader.decoding.lazy import LazyImage, open_lazy
from dbloader.decoding.masks_and_boxes import crop_field, decode_field
from dbloader.decoding.render import Crop
from dbloader.errors import ImageError
from dbloader.images.check import check_decodes
from dbloader.images.info import read_facts
from tests.support.images import encoded

SIZES = ((1, 1), (3, 2), (32, 32), (97, 61))


def scene(width: int, height: int) -> Image.Image:
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 40, (height, width, 3))
    return Image.fromarray((np.stack([rows * 5, columns * 3, rows + columns], 2) + noise).astype(np.uint8))


def with_opacity(image: Image.Image, mode: str) -> Image.Image:
    image = image.convert(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def with_text_at_end(file: bytes) -> bytes:
    """Return a PNG with a text after its pixels, which Pillow finds when it decodes them."""
    end = file.rindex(b"IEND") - 4
    chunk = b"tEXtcomment\0a sunny day"
    return file[:end] + (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") + file[end:]


def pngs(size: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    image = scene(*size)
    for mode in ("1", "L", "P", "RGB"):
        yield mode, encoded(image.convert(mode), "PNG")
        if mode != "1":
            clear = (1, 2, 3) if mode == "RGB" else 3
            yield f"{mode}, one clear color", encoded(image.convert(mode), "PNG", transparency=clear)
    for mode in ("LA", "RGBA"):
        yield mode, encoded(with_opacity(image, mode[:-1]), "PNG")
    for bits in (1, 2, 4):
        yield f"palette of {bits} bits", encoded(image.quantize(2**bits), "PNG", bits=bits)
    yield "palette with opacity", encoded(image.quantize(16), "PNG", transparency=bytes(range(0, 256, 16)))
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "a sunny day")
    text.add(b"gAMA", (45455 * 2).to_bytes(4, "big"))
    yield "text, gamma and resolution", encoded(image, "PNG", pnginfo=text, dpi=(72, 72))
    yield "text after the pixels", with_text_at_end(encoded(image, "PNG"))


def webps(size: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    image = scene(*size)
    yield "lossy", encoded(image, "WEBP", quality=50)
    yield "lossless", encoded(image, "WEBP", lossless=True)
    yield "lossy with opacity", encoded(with_opacity(image, "RGB"), "WEBP")
    yield "lossless with opacity", encoded(with_opacity(image, "RGB"), "WEBP", lossless=True)
    yield "extended", encoded(image, "WEBP", exif=Image.Exif(), icc_profile=b"profile")


ALL = {
    f"{make.__name__[:-1]} {size} {what}": data for make in (pngs, webps) for size in SIZES for what, data in make(size)
}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency expressed in bytes")
@pytest.mark.parametrize("data", ALL.values(), ids=ALL.keys())
def test_decoded_pixels_equal_pillows(data: bytes) -> None:
    opened = open_codec(data)
    assert (opened is None) is (data[24:26] == b"\x01\x00")  # of these files, only black and white is seldom
    expected = decode_pil(data)
    assert torch.equal(DecodeTensor()(data, known_intact=True), torch.from_numpy(np.array(expected).transpose(2, 0, 1)))
    lazy = open_lazy(data, known_intact=True)
    assert (lazy.size, lazy.mode, lazy.info) == (expected.size, expected.mode, expected.info)
    assert lazy.tobytes() == expected.tobytes()


def test_png_of_pixels_alone_becomes_an_ordinary_image() -> None:
    data = encoded(scene(32, 32), "PNG")
    assert type(open_lazy(data, known_intact=True)) is Image.Image
    assert type(open_lazy(data, known_intact=True, resize="fast")) is LazyImage
    assert type(open_lazy(with_text_at_end(data), known_intact=True)) is LazyImage


@pytest.mark.parametrize(
    "data",
    [
        encoded(Image.new("I;16", (8, 8), 700), "PNG"),
        encoded(scene(8, 8), "PNG", icc_profile=b"profile"),
        encoded(scene(8, 8), "PNG", save_all=True, append_images=[scene(8, 8)]),
        encoded(scene(8, 8), "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8))]),
        encoded(scene(8, 8), "PNG")[:40],
        encoded(scene(8, 8), "WEBP")[:29],
        encoded(scene(8, 8), "GIF"),
        b"",
    ],
)
def test_pillow_decodes_all_other_files(data: bytes) -> None:
    assert open_codec(data) is None


def test_pillow_decodes_a_file_that_is_not_known_to_be_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_module, "open_codec", lambda data: pytest.fail("nothing is known of this file"))
    DecodeTensor()(encoded(scene(8, 8), "PNG"))
    open_lazy(encoded(scene(8, 8), "PNG"))


def outcome(decode: Any) -> str:
    try:
        return zlib.crc32(np.ascontiguousarray(np.asarray(decode())).tobytes()).to_bytes(4, "big").hex()
    except ImageError as error:
        return f"{type(error).__name__}: {error}"


def is_accepted(data: bytes) -> bool:
    """Return whether conversion stores a file."""
    try:
        check_decodes(data, read_facts(data))
    except ImageError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True})])
def test_damaged_file_that_conversion_accepts_has_pillows_pixels(kind: str, options: Any) -> None:
    intact = encoded(scene(64, 48), kind, **options)
    chosen = random.Random(0)
    accepted = 0
    for _ in range(1000):
        damaged = bytearray(intact)
        for _ in range(chosen.randint(1, 3)):
            damaged[chosen.randrange(len(damaged))] ^= 1 << chosen.randrange(8)
        data = bytes(damaged[: chosen.randint(1, len(damaged))] if chosen.random() < 0.2 else damaged)
        expected = outcome(lambda data=data: decode_pil(data))
        assert outcome(lambda data=data: DecodeTensor()(data).permute(1, 2, 0)) == expected
        if is_accepted(data):
            accepted += 1
            assert outcome(lambda data=data: DecodeTensor()(data, known_intact=True).permute(1, 2, 0)) == expected
    assert (accepted > 0) is (kind == "WEBP")  # a PNG has checksums


def test_intact_gray_mask_is_decoded_to_pillows_image(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Image.fromarray(np.random.default_rng(0).integers(0, 20, (40, 60), dtype=np.uint8))
    for options in ({}, {"transparency": 3}, {"dpi": (72, 72)}):
        data = encoded(mask, "PNG", **options)
        expected, found = decode_field(data), decode_field(data, known_intact=True)
        assert (type(found), found.mode, found.info) == (type(expected), expected.mode, expected.info)
        assert found.tobytes() == expected.tobytes()
    monkeypatch.setattr(masks_and_boxes, "open_file", lambda data: pytest.fail("imagecodecs decodes this file"))
    assert decode_field(encoded(mask, "PNG"), known_intact=True).tobytes() == mask.tobytes()


def test_mask_is_cropped_to_pillows_values() -> None:
    mask = Image.fromarray(np.random.default_rng(0).integers(0, 20, (40, 60), dtype=np.uint8))
    plan = Plan(lambda: np.zeros((1, 1, 3), np.uint8), Crop(7, 3, 31, 22, flip=True), (16, 24), 60, 40)
    for data in (encoded(mask, "PNG"), encoded(mask, "PNG", transparency=3), encoded(mask.convert("P"), "PNG")):
        expected = crop_field(data, plan, exif_transpose=False)
        assert torch.equal(crop_field(data, plan, exif_transpose=False, known_intact=True), expected)
