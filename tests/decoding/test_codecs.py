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
from dbloader.images.png import read_chunks
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


def with_pixels(file: bytes, pixels: bytes, pieces: int = 1) -> bytes:
    """Return a PNG with other compressed pixels, in several chunks."""
    begin, end = file.index(b"IDAT") - 4, file.rindex(b"IEND") - 4
    length = -(-len(pixels) // pieces)
    chunks = [b"IDAT" + pixels[at : at + length] for at in range(0, len(pixels), length)]
    made = [(len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks]
    return file[:begin] + b"".join(made) + file[end:]


def packed_pixels(file: bytes) -> bytes:
    return b"".join(file[start + 8 : end - 4] for kind, start, end in read_chunks(file) if kind == b"IDAT")


def banded(width: int, height: int) -> Image.Image:
    """Return an image whose rows have different filters in a PNG."""
    pixels = np.array(scene(width, height))
    pixels[::7] = np.random.default_rng(0).integers(0, 256, (width, 3))
    pixels[3::11] = 90
    return Image.fromarray(pixels)


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "LA", "RGBA", "palette of 1 bit", "palette of 4 bits"])
def test_crop_of_a_png_equals_the_crop_of_pillows_pixels(mode: str) -> None:
    image, options = banded(203, 151), {}
    if mode.startswith("palette"):
        options = {"bits": int(mode[11])}
        image = image.quantize(2 ** options["bits"])
    else:
        image = with_opacity(image, mode[:-1]) if mode[-1] == "A" else image.convert(mode)
    data = encoded(image, "PNG", **options)
    row = (203 * len(image.getbands()) * options.get("bits", 8) + 7) // 8 + 1
    assert mode.startswith(("P", "palette")) or len({*zlib.decompress(packed_pixels(data))[::row]}) > 1, "filters"
    expected = np.array(decode_pil(data))
    chosen = random.Random(0)
    for number in range(20):
        left, top = chosen.randrange(203), chosen.randrange(151)
        width, height = chosen.randint(1, 203 - left), chosen.randint(1, 151 - top)
        opened = open_codec(with_pixels(data, packed_pixels(data), 1 + number % 3))
        assert opened is not None
        assert np.array_equal(opened.crop(left, top, width, height), expected[top : top + height, left : left + width])


def test_only_the_rows_and_columns_that_a_crop_needs_are_decoded() -> None:
    mask = Image.fromarray(np.random.default_rng(0).integers(0, 20, (120, 180), dtype=np.uint8))
    rows = np.zeros((120, 181), np.uint8)  # filter 0 of all rows
    rows[:, 1:] = np.asarray(mask)
    opened = open_codec(with_pixels(encoded(mask, "PNG"), zlib.compress(rows.tobytes())))
    assert opened is not None
    decoded: list[bytes] = []

    def codec(data: bytes | memoryview) -> Any:
        decoded.append(bytes(data))
        return opened.codec(data)

    part = opened._replace(codec=codec).decode(20, 30, 50, 40)
    assert np.array_equal(part[..., 0], np.array(mask)[30:70, 20:70])
    assert [read_facts(file)[:3] for file in decoded] == [("PNG", 70, 40)]


@pytest.mark.parametrize(
    "options", [{"quality": 30}, {"quality": 90}, {"quality": 90, "method": 0}, {"lossless": True}]
)
def test_crop_of_a_webp_equals_the_crop_of_pillows_pixels(options: Any) -> None:
    data = encoded(banded(203, 151), "WEBP", **options)
    expected = np.array(decode_pil(data))
    opened = open_codec(data)
    assert opened is not None
    heights = []

    def codec(data: bytes | memoryview) -> Any:
        heights.append(read_facts(bytes(data)).height)
        return opened.codec(data)

    for bottom in range(1, 152):
        part = opened._replace(codec=codec).crop(7, bottom // 2, 60, bottom - bottom // 2)
        assert np.array_equal(part, expected[bottom // 2 : bottom, 7:67])
    assert min(heights) == (151 if "lossless" in options else 32)


@pytest.mark.parametrize("damage", ["checksum", "one row more", "one row less"])
def test_png_whose_pixels_are_packed_wrongly_is_decoded_as_pillow_does(damage: str) -> None:
    data = encoded(banded(203, 151), "PNG")
    packed = packed_pixels(data)
    rows = zlib.decompress(packed)
    changed = {"checksum": packed[:-4] + b"\0" * 4, "one row more": zlib.compress(rows + rows[:610])}
    data = with_pixels(data, changed.get(damage, zlib.compress(rows[:-610])))
    expected = outcome(lambda: decode_pil(data))
    assert outcome(lambda: DecodeTensor()(data, known_intact=True).permute(1, 2, 0)) == expected


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
        encoded(scene(8, 8), "PNG")[:33] + encoded(scene(8, 8).crop((0, 0, 7, 8)), "PNG")[8:],  # two headers
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
    mask = Image.fromarray(np.random.default_rng(0).integers(0, 20, (120, 180), dtype=np.uint8))
    plan = Plan(lambda: np.zeros((1, 1, 3), np.uint8), Crop(7, 43, 31, 22, flip=True), (16, 24), 180, 120)
    for data in (encoded(mask, "PNG"), encoded(mask, "PNG", transparency=3), encoded(mask.convert("P"), "PNG")):
        expected = crop_field(data, plan, exif_transpose=False)
        assert torch.equal(crop_field(data, plan, exif_transpose=False, known_intact=True), expected)
