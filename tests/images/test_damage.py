"""Images with missing or changed bytes are rejected, unless they decode without a warning, or to the right pixels."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pillow_heif
import pytest
import simplejpeg
import torch
from PIL import Image, PngImagePlugin

from dbloader.decoding import DecodeTensor, RandomResizedCrop, decode_pil
from dbloader.errors import ImageError
from dbloader.images.check import check_image
from dbloader.images.pillow import open_pillow
from tests.support import jpegs
from tests.support.images import chunk, encoded, photo

TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("parameters", "a cat, " * 20)
TEXT.add_text("workflow", "a dog, " * 20, zip=True)
PICTURE = jpegs.draw(40, 30)
FLAT = PICTURE.convert("P", palette=Image.Palette.ADAPTIVE)
ALPHA = PICTURE.convert("RGBA")
ALPHA.putalpha(Image.linear_gradient("L").resize(PICTURE.size))


def heif() -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(jpegs.draw(64, 64)).save(stream)
    return stream.getvalue()


WHOLE = {
    "JPEG": jpegs.encode(PICTURE),
    "JPEG with restarts": jpegs.encode(PICTURE, restart_marker_blocks=2, exif=jpegs.turned_exif(), comment=b"a cat"),
    "JPEG optimized": jpegs.encode(PICTURE, optimize=True, subsampling=0, icc_profile=bytes(300)),
    "JPEG progressive": jpegs.encode(PICTURE, progressive=True),
    "JPEG gray": jpegs.encode(jpegs.draw(40, 30, "L")),
    "JPEG RGB": jpegs.encode(PICTURE, keep_rgb=True),
    "JPEG CMYK": jpegs.encode(jpegs.draw(40, 30, "CMYK")),
    "PNG": encoded(PICTURE, "PNG", pnginfo=TEXT, dpi=(72, 72)),
    "PNG palette": encoded(FLAT, "PNG", transparency=3, icc_profile=bytes(300)),
    "PNG RGBA": encoded(ALPHA, "PNG", exif=jpegs.turned_exif()),
    "GIF": encoded(FLAT, "GIF"),
    "BMP": encoded(PICTURE, "BMP"),
    "PPM": encoded(PICTURE, "PPM"),
    "WEBP": encoded(PICTURE, "WEBP"),
    "WEBP lossless": encoded(ALPHA, "WEBP", lossless=True),
    "TIFF": encoded(PICTURE, "TIFF"),
    "TIFF LZW": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
    "AVIF": encoded(PICTURE, "AVIF"),
    "JPEG2000": encoded(PICTURE, "JPEG2000"),
    "ICO": encoded(ALPHA, "ICO", sizes=[(32, 24)]),
    "QOI": encoded(PICTURE, "QOI"),
    "PCX": encoded(PICTURE, "PCX"),
    "TGA": encoded(PICTURE, "TGA"),
    "HEIF": heif(),
}


def pixels(data: bytes) -> Any:
    return np.asarray(decode_pil(data))


def is_plainly_whole(data: bytes) -> bool:
    """Return whether a strict decoder has nothing to say about a file."""
    if data.startswith(b"\xff\xd8"):
        try:
            simplejpeg.decode_jpeg(data, strict=True)
        except ValueError as error:
            # TurboJPEG does not decode CMYK; bytes before the end marker may be padding, which check_image judges
            return any(word in str(error) for word in ("tj3", "tjDecompress", "nsupported", "before marker 0xd9"))
    if data.startswith(b"\x89PNG"):
        at = 8
        while at + 12 <= len(data):
            end = at + 12 + int.from_bytes(data[at : at + 4], "big")
            if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                return False
            at = end if data[at + 4 : at + 8] != b"IEND" else len(data)
    try:
        open_pillow(data).load()
    except Exception:
        return False
    return True


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return a file with one place changed: cut there, or with bytes removed, added, repeated or overwritten."""
    at, size = rng.randrange(len(data)), rng.choice([1, 1, 2, 3, 8, 64])
    kind = rng.choice(["cut", "remove", "add", "repeat", "zero", "flip", "overwrite"])
    if kind == "cut":
        return data[:at] + rng.choice([b"", b"\xff\xd9", bytes(len(data) - at)])
    middle = {
        "remove": b"",
        "add": rng.randbytes(size) + data[at : at + size],
        "repeat": data[at : at + size] * 2,
        "zero": bytes(size),
        "flip": bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 : at + size],
        "overwrite": rng.randbytes(size),
    }
    return data[:at] + middle[kind] + data[at + size :]


@pytest.mark.parametrize("count", [300, pytest.param(4_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", WHOLE)
def test_damaged_image_is_rejected_or_has_the_right_pixels(name: str, count: int) -> None:
    whole = WHOLE[name]
    check_image(whole, lambda _: None)
    right, rng, rejected = pixels(whole), random.Random(name), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd EXIF
        for _ in range(count):
            data = damage(rng, whole)
            try:
                checked = check_image(data, lambda _: None).data
            except ImageError:
                rejected += 1
                continue
            if is_plainly_whole(checked):
                continue
            found = pixels(checked)  # training decodes what conversion accepts
            assert np.array_equal(found, right), data.hex()
    assert rejected > count / 20


def png(image: Image.Image, *, interlaced: bool, lost: int) -> bytes:
    """Return a PNG, valid but for the last bytes that its compressed data lack."""
    colors = {"1": (0, 1), "L": (0, 8), "I;16": (0, 16), "P": (3, 8), "RGB": (2, 8), "LA": (4, 8), "RGBA": (6, 8)}
    color, depth = colors[image.mode]
    starts, steps = ((0, 4, 0, 2, 0, 1, 0), (0, 0, 4, 0, 2, 0, 1)), ((8, 8, 4, 4, 2, 2, 1), (8, 8, 8, 4, 4, 2, 2))
    pixels, lines = np.asarray(image), []
    for left, top, across, down in zip(*starts, *steps, strict=True) if interlaced else [(0, 0, 1, 1)]:
        part = pixels[top::down, left::across]
        rows = np.packbits(part, axis=1) if depth == 1 else part
        lines += [b"\0" + row.tobytes() for row in rows if part.shape[1]]
    raw = b"".join(lines)
    header = struct.pack(">IIBBBBB", *image.size, depth, color, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(range(256)) * 3) if image.mode == "P" else b""
    packed = chunk(b"IDAT", zlib.compress(raw[: len(raw) - lost]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + packed + chunk(b"IEND", b"")


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("mode", ["1", "L", "I;16", "P", "RGB", "LA", "RGBA"])
def test_png_whose_compressed_data_end_early_is_rejected(mode: str, interlaced: bool) -> None:
    # zlib ends such data without an error, and Pillow makes the missing pixels black.
    for size in ((40, 30), (33, 21), (1, 1), (5, 1), (1, 5), (2, 2), (9, 8)):
        for image in (PICTURE.resize(size).convert(mode), Image.new(mode, size)):
            assert not is_rejected(png(image, interlaced=interlaced, lost=0))
            for lost in (1, 2, 3, 1 + image.width // 2, 100):
                assert is_rejected(png(image, interlaced=interlaced, lost=lost)), (size, lost)


def before(data: bytes, code: int, new: bytes) -> bytes:
    """Return a JPEG with new bytes before its first segment of this code."""
    at = data.index(bytes((0xFF, code)))
    return data[:at] + new + data[at:]


def samsung(data: bytes) -> bytes:
    """Return a JPEG whose scan header ends with three zeros, as some Samsung phones write it."""
    scan = data.index(b"\xff\xda")
    end = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    return data[: end - 3] + bytes(3) + data[end:]


ICC = jpegs.segment(0xE2, b"ICC_PROFILE\0\1\1profile")
ODD: dict[str, Callable[[bytes], bytes]] = {
    "Samsung": samsung,
    "bytes before a table": lambda data: before(data, 0xDB, b"\0\x20\0"),
    "bytes after a comment": lambda data: before(data, 0xC0, jpegs.segment(0xFE, b"a cat") + b"\xff\0\0\2hello"),
    "two ICC profiles": lambda data: before(before(data, 0xC0, ICC), 0xDB, ICC),
    "cut APP14": lambda data: before(data, 0xDB, jpegs.segment(0xEE, b"Adobe\0d\0\0\0\0") + b"\1"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_jpeg_is_decoded_to_pillows_pixels(name: str) -> None:
    data = ODD[name](photo(3, 160, 240, exif=jpegs.turned_exif()))
    with pytest.raises(ValueError, match=r"Corrupt JPEG data|Invalid SOS"):
        simplejpeg.decode_jpeg(data, strict=True)
    assert check_image(data, lambda _: None).data == data
    with Image.open(io.BytesIO(data)) as image:
        right = np.asarray(image)
    assert np.array_equal(pixels(data), right)
    for known_intact in (False, True):
        tensor = DecodeTensor()(data, known_intact=known_intact)
        assert np.array_equal(tensor.permute(1, 2, 0).numpy(), right)
    decode = RandomResizedCrop(64)
    for numbers in np.random.default_rng(0).random((8, decode.draws)):
        crop, plain = (decode(file, numbers, known_intact=True) for file in (data, photo(3, 160, 240)))
        assert torch.equal(crop, plain)


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ODD)
def test_odd_jpeg_with_damaged_codes_is_rejected_like_a_plain_one(name: str, count: int) -> None:
    data, rng, found = photo(4, 80, 60), random.Random(name), {True: 0, False: 0}
    start = data.index(b"\xff\xda") + 14
    for _ in range(count):
        damaged = data[:start] + damage(rng, data[start:-2]) + data[-2:]
        rejected = is_rejected(damaged)
        assert is_rejected(ODD[name](damaged)) == rejected, damaged.hex()
        found[rejected] += 1
    assert min(found.values()) > count / 20


def is_rejected(data: bytes) -> bool:
    try:
        check_image(data, lambda _: None)
    except ImageError:
        return True
    return False


@pytest.mark.parametrize("code", [0xC0, 0xC4, 0xDA])
def test_jpeg_with_bytes_after_a_table_is_rejected(code: int) -> None:
    # They may have been shifted out of the table, which then has wrong values.
    assert is_rejected(before(photo(), code, b"hello"))


@pytest.mark.parametrize("code", [0xDB, 0xC4, 0xC0, 0xE0, 0xDA])
def test_jpeg_with_a_wrong_marker_is_rejected(code: int) -> None:
    data = photo()
    at = data.index(bytes((0xFF, code)))
    assert is_rejected(data[:at] + b"\xfe" + data[at + 1 :])


# --- PNG --------------------------------------------------------------------------------------------------------------


def with_chunk(kind: bytes, content: bytes, *, mask: int = 0, at: bytes = b"IDAT") -> bytes:
    """Return a PNG with one more chunk before another one; ``mask`` is XORed into its CRC."""
    new = chunk(kind, content)
    new = new[:-4] + (int.from_bytes(new[-4:], "big") ^ mask).to_bytes(4, "big")
    data = WHOLE["PNG RGBA"]
    start = data.index(at) - 4
    return data[:start] + new + data[start:]


LARGE = zlib.compress(bytes(3_000_000))
REFUSED = {
    "profile": with_chunk(b"iCCP", b"a\0\0" + LARGE),
    "compressed text": with_chunk(b"zTXt", b"a\0\0" + LARGE),
    "compressed text after the pixels": with_chunk(b"zTXt", b"a\0\0" + LARGE, at=b"IEND"),
    "international text": with_chunk(b"iTXt", b"a\0\1\0en\0b\0" + LARGE),
    **{f"CRC of {kind!r}": with_chunk(kind, b"a\0b", mask=1) for kind in (b"tEXt", b"iTXt", b"pHYs", b"tIME")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_png_whose_metadata_pillow_refuses_has_all_pixels(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    data = REFUSED[name]
    assert check_image(data, lambda _: None).data == data
    right = np.asarray(ALPHA)[..., :3]
    assert np.array_equal(pixels(data), right)
    for known_intact in (False, True):
        upright = DecodeTensor(exif_transpose=True)(data, known_intact=known_intact)
        assert np.array_equal(upright.permute(1, 2, 0).numpy(), np.rot90(right, -1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [b"tRNS", b"eXIf", b"PLTE"])
def test_png_with_a_wrong_crc_of_what_training_needs_is_rejected(kind: bytes) -> None:
    assert is_rejected(with_chunk(kind, bytes(6), mask=1))


def test_png_with_a_wrong_length_of_a_text_is_rejected() -> None:
    data = with_chunk(b"tEXt", b"a\0b")
    at = data.index(b"tEXt") - 4
    pixels_end = data.index(b"IEND") - 4
    assert is_rejected(data[:at] + (pixels_end - at - 12).to_bytes(4, "big") + data[at + 4 :])


def test_message_names_why_pillow_cannot_read_a_header() -> None:
    texts = b"".join(chunk(b"tEXt", b"a\0" + bytes(900_000)) for _ in range(80))
    data = WHOLE["PNG"]
    start = data.index(b"IDAT") - 4
    with pytest.raises(ImageError, match="its header is cut short or wrong: Too much memory used in text chunks"):
        check_image(data[:start] + texts + data[start:], lambda _: None)


def test_png_without_the_last_bytes_of_its_pixels_is_rejected() -> None:
    data = WHOLE["PNG"]
    end = data.index(b"IEND") - 4
    for cut in range(end - 12, end):
        for more in (b"", b"\xff\xd9", bytes(4)):
            assert is_rejected(data[:cut] + more)
