"""Odd image files that browsers and decoders show, and images with transparent pixels."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

from PIL import Image, PngImagePlugin

from tests.support.images import chunk, encoded, plant
from tests.support.jpegs import draw, segment
from tests.support.layouts.base import Answer, by_folder, layout, photo, png, write_tar, write_zip

TRANSPARENT = r"(?i)transparen|opacity|alpha"
JXL = r"pillow-jxl-plugin|dbloader\[jxl\]"


def _pets(at: Path, odd: bytes, extension: str = "jpg") -> Answer:
    """Write a folder in which one image is odd."""
    images = {"cat/0.jpg": photo(0), f"dog/odd.{extension}": odd, "dog/1.jpg": photo(1)}
    plant(at / "pets", images)
    return Answer(images, by_folder(images), classes=("cat", "dog"), decodes=True)


# --- 22: odd JPEGs ----------------------------------------------------------------------------------------------------


@layout(22, "Samsung's scan header", "pets STORE", says="SOS parameters", tool="Pillow")
def samsung(at: Path) -> Answer:
    data = bytearray(photo(5))
    start = data.index(b"\xff\xda")
    end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    data[end - 3 : end] = bytes(3)
    return _pets(at, bytes(data))


@layout(22, "extra bytes before a marker", "pets STORE", says="extraneous bytes", tool="Pillow")
def extra_bytes(at: Path) -> Answer:
    data = photo(6)
    at_table = data.index(b"\xff\xdb")
    return _pets(at, data[:at_table] + b"\x00\x20\x00" + data[at_table:])


@layout(22, "cut APP14 in a zip", "pets.zip STORE", tool="Pillow")
def cut_app14(at: Path) -> Answer:
    data = photo(7)
    images = {"cat/0.jpg": photo(0), "dog/odd.jpg": data[:2] + segment(0xEE, b"Adobe\0\x64") + data[2:]}
    write_zip(at / "pets.zip", images)
    return Answer(images, by_folder(images), classes=("cat", "dog"), decodes=True)


# --- 23: odd PNGs -----------------------------------------------------------------------------------------------------


@layout(23, "PNG with a profile of 3 MB", "pets STORE", says=r"(?i)ICC|profile")
def large_profile(at: Path) -> Answer:
    return _pets(at, png(5, icc_profile=bytes(3_000_000)), "png")


@layout(23, "PNG with a text of 3 MB", "pets STORE", says=r"(?i)text")
def large_text(at: Path) -> Answer:
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", "masterpiece, " * 230_000, zip=True)
    return _pets(at, png(5, pnginfo=text), "png")


@layout(23, "PNG with a wrong checksum of its text", "pets STORE", says=r"(?i)text|tEXt|CRC|checksum")
def wrong_text_crc(at: Path) -> Answer:
    data, text = png(5), b"Software\0editor"
    wrong = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(text) ^ 1)
    before = data.index(b"IDAT") - 4
    return _pets(at, data[:before] + wrong + data[before:], "png")


# --- 24: JPEG XL ------------------------------------------------------------------------------------------------------

# Images of 4 x 3 pixels that Pillow's plug-in wrote.
_CODED = (b"/woQMBAJCAABAEgASxiLFcJJQ1k+gDgOgAgApwIA", b"/woQMBAJCAABAEQASxiLFcJJwuUB9oIAAAADAQA=")
_JXL = tuple(map(base64.b64decode, _CODED))


@layout(24, ".jxl in class folders", "pets STORE", says=JXL, remedy=JXL)
def jxl_folder(at: Path) -> Answer:
    images = {"cat/0.jpg": photo(0), "cat/1.jxl": _JXL[0], "dog/2.jxl": _JXL[1]}
    plant(at / "pets", images)
    return Answer(images, by_folder(images), classes=("cat", "dog"))


@layout(24, ".JXL in a zip", "pets.zip STORE", says=JXL, remedy=JXL)
def jxl_zip(at: Path) -> Answer:
    images = {"cat/0.png": png(0), "cat/1.JXL": _JXL[0], "dog/2.png": png(1)}
    write_zip(at / "pets.zip", images)
    return Answer(images, by_folder(images), classes=("cat", "dog"))


@layout(24, ".jxl in WebDataset", "shard.tar STORE", says=JXL, remedy=JXL)
def jxl_tar(at: Path) -> Answer:
    images = {"0.jxl": _JXL[0], "1.jxl": _JXL[1]}
    write_tar(at / "shard.tar", {"0.jxl": _JXL[0], "0.cls": b"1", "1.jxl": _JXL[1], "1.cls": b"0"})
    return Answer(images, {"0.jxl": 1, "1.jxl": 0})


# --- 31: metadata that breaks only in training ------------------------------------------------------------------------

_XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6" dc:title="caf\xe9 \xff\xfe"/></x:xmpmeta>'


@layout(31, "JPEG with XMP that is not UTF-8", "pets STORE", tool="Pillow", says="XMP")
def bad_xmp(at: Path) -> Answer:
    return _pets(at, photo(5, orientation=6, xmp=_XMP))


@layout(31, "PNG with XMP that is not UTF-8", "pets STORE", tool="Pillow", says="XMP")
def bad_xmp_png(at: Path) -> Answer:
    data = png(5)
    before = data.index(b"IDAT") - 4
    return _pets(at, data[:before] + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + _XMP) + data[before:], "png")


@layout(31, "JPEG with broken EXIF", "pets STORE", tool="Pillow", says="EXIF")
def bad_exif(at: Path) -> Answer:
    return _pets(at, photo(5, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\xff"))


# --- 32: transparent pixels -------------------------------------------------------------------------------------------


def _transparent(seed: int) -> Image.Image:
    image = draw(24, 18, seed=seed).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


@layout(32, "RGBA with hidden colors", "icons STORE", says=TRANSPARENT, remedy=TRANSPARENT, must_say=True)
def rgba(at: Path) -> Answer:
    images = {"home/0.png": encoded(_transparent(0), "PNG"), "user/1.png": encoded(_transparent(1), "PNG")}
    plant(at / "icons", images)
    return Answer(images, by_folder(images))


@layout(32, "a palette with a transparent color", "icons STORE", says=TRANSPARENT, remedy=TRANSPARENT, must_say=True)
def palette(at: Path) -> Answer:
    flat = draw(24, 18).convert("P", palette=Image.Palette.ADAPTIVE)
    images = {"home/0.png": encoded(flat, "PNG", transparency=3), "user/1.gif": encoded(flat, "GIF", transparency=3)}
    plant(at / "icons", images)
    return Answer(images, by_folder(images))


@layout(32, "WebP with opacity, in a zip", "stickers.zip STORE", says=TRANSPARENT, remedy=TRANSPARENT, must_say=True)
def webp(at: Path) -> Answer:
    images = {f"{name}/{n}.webp": encoded(_transparent(n), "WEBP", lossless=True) for n, name in enumerate(("a", "b"))}
    write_zip(at / "stickers.zip", images)
    return Answer(images, by_folder(images))
