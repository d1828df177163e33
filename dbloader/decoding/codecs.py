"""Decode intact PNG and WebP files with imagecodecs, which releases the GIL, to the same pixels as Pillow.

Pillow reads the headers of these formats in Python, which takes longer than decoding 32 x 32 pixels. Pillow still
decodes rare kinds of PNG and WebP, and all files that may be damaged, so that only one library decides what is damage.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.decoding.pillow import PillowImage, open_file
from dbloader.images.pillow import max_pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# The start of a PNG: signature, chunk IHDR (https://www.w3.org/TR/png-3/#11IHDR), and the header of the next chunk.
_PNG = struct.Struct(">16s2I3BxB4xI4s")
_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_CHUNK = struct.Struct(">I4s")
_GRAY = 0
_BITS = {_GRAY: (8,), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}  # allowed bits of a value, for each color type
# Allowed chunks before the pixels. Other chunks may belong to an animation, or make libpng warn for each image.
_CHUNKS = (b"PLTE", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME", b"tEXt", b"bKGD")

# The start of a WebP: its first chunk is lossy (VP8), lossless (VP8L) or has the size of the canvas (VP8X).
# https://developers.google.com/speed/webp/docs/riff_container
_WEBP_LENGTH = 30
_ANIMATED = 0x02


class CodecImage(NamedTuple):
    """A PNG or WebP that is known to be intact."""

    data: bytes | memoryview
    width: int
    height: int
    is_gray: bool  # whether the file is a PNG with one 8-bit value per pixel
    codec: Callable[[bytes | memoryview], npt.NDArray[np.uint8]]

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that decodes the image and cuts out a part. See the docstring of open.py."""
        return functools.partial(self.crop, left, top, width, height)

    def crop(self, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, 3), RGB."""
        part = self.decode()[top : top + height, left : left + width]
        return np.repeat(part[..., :1], 3, 2) if part.shape[2] < 3 else part[..., :3]  # without opacity

    def decode(self) -> npt.NDArray[np.uint8]:
        """Return all pixels: uint8, shape (height, width, channels); gray or RGB, perhaps with opacity."""
        try:
            pixels = self.codec(self.data)
        except RuntimeError:  # let Pillow decide whether the file is damaged
            return PillowImage(open_file(self.data)).crop(0, 0, self.width, self.height)
        return pixels[..., None] if pixels.ndim == 2 else pixels


def open_codec(data: bytes | memoryview) -> CodecImage | None:
    """Read the header of an intact PNG or WebP. Return None for files that Pillow must decode."""
    image = None
    if data[:4] == _PNG_START[:4]:
        image = _open_png(data)
    elif data[8:12] == b"WEBP":
        image = _open_webp(data)
    return None if image is None or image.width * image.height > max_pixels() else image


def is_bare(data: bytes | memoryview) -> bool:
    """Return whether a file is a PNG without any metadata, for which Pillow's ``info`` is empty."""
    at, kind = _PNG.size - _CHUNK.size, b"IDAT" if data[:4] == _PNG_START[:4] else b""
    while kind == b"IDAT" and at + _CHUNK.size <= len(data):
        length, kind = _CHUNK.unpack_from(data, at)
        at += length + 12
    return kind == b"IEND"


def _open_png(data: bytes | memoryview) -> CodecImage | None:
    if len(data) < _PNG.size:
        return None
    start, width, height, bits, color, _, interlaced, length, kind = _PNG.unpack_from(data)
    if start != _PNG_START or bits not in _BITS.get(color, ()) or interlaced:
        return None
    at = _PNG.size - _CHUNK.size
    while kind != b"IDAT":
        at += length + 12
        if kind not in _CHUNKS or at + _CHUNK.size > len(data):
            return None
        length, kind = _CHUNK.unpack_from(data, at)
    codecs = _import_codecs()
    return codecs and CodecImage(data, width, height, color == _GRAY and bits == 8, codecs.png_decode)


def _open_webp(data: bytes | memoryview) -> CodecImage | None:
    if len(data) < _WEBP_LENGTH:
        return None
    kind, content = bytes(data[12:16]), data[20:_WEBP_LENGTH]
    if kind == b"VP8 ":
        width, height = (int.from_bytes(content[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    elif kind == b"VP8L":
        bits = int.from_bytes(content[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X" and not content[0] & _ANIMATED:
        width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (4, 7))
    else:
        return None
    codecs = _import_codecs()
    return codecs and CodecImage(data, width, height, False, codecs.webp_decode)


@functools.cache
def _import_codecs() -> Any:
    """Return imagecodecs. On machines for which PyPI has no wheel, return None: Pillow then decodes all images."""
    try:
        import imagecodecs
    except ImportError:
        return None
    return imagecodecs
