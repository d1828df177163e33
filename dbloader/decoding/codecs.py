"""Decode intact PNG and WebP files with imagecodecs, to the same pixels as Pillow but without the GIL.

Pillow reads the headers of these formats in Python, which takes longer than decoding 32 x 32 pixels. Pillow still
decodes rare kinds of PNG and WebP, and all files that may be damaged. So only Pillow decides what is damaged.
"""

from __future__ import annotations

import functools
import itertools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.decoding.pillow import PillowImage, open_file
from dbloader.images.pillow import max_pixels
from dbloader.images.png import read_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# The start of a PNG: signature and chunk IHDR (https://www.w3.org/TR/png-3/#11IHDR), with its CRC.
_PNG = struct.Struct(">16s2I3BxB4x")
_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_GRAY = 0
_CHANNELS = {_GRAY: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_BITS = {_GRAY: (8,), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}  # allowed bits of a value, for each color type
# Allowed chunks before the pixels. Other chunks may belong to an animation, or make libpng warn for each image.
_CHUNKS = (b"PLTE", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME", b"tEXt", b"bKGD")

# Use libdeflate for PNGs with more than _INFLATED bits of pixels in all. From _LARGE bits on, use it only if less than
# half of the pixels are needed: copying more pixels takes longer than libdeflate saves. For whole RGB images,
# libdeflate took 1.06 (32 x 32), 0.77 (1024 x 1024) and 1.06 (2048 x 2048) of libpng's time.
_INFLATED, _LARGE = 2**16, 2**25

# The first _WEBP_LENGTH bytes of a WebP contain its size. The first chunk has lossy pixels (VP8), lossless pixels
# (VP8L) or the size of the canvas (VP8X): https://developers.google.com/speed/webp/docs/riff_container
_WEBP_LENGTH = 30
_ANIMATED = 0x02


class CodecImage(NamedTuple):
    """A PNG or WebP that is known to be intact."""

    data: bytes | memoryview
    width: int
    height: int
    is_gray: bool  # whether the file is a PNG with one 8-bit value per pixel
    codec: Callable[[bytes | memoryview], npt.NDArray[np.uint8]]
    pixel_bits: int = 0  # bits of a pixel in a PNG, at most 32
    pixels_at: int = 0  # where the first chunk with pixels begins in a PNG

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that decodes the image and cuts out a part. See the docstring of open.py."""
        return functools.partial(self.crop, left, top, width, height)

    def crop(self, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, 3), RGB."""
        part = self.decode(left, top, width, height)
        return np.repeat(part[..., :1], 3, 2) if part.shape[2] < 3 else part[..., :3]  # without opacity

    def decode(self, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, channels); gray or RGB, perhaps with opacity."""
        right, bottom, data, first = left + width, top + height, self.data, 0
        bits = self.width * self.height * self.pixel_bits
        # With a smaller height in its header (RFC 6386, 9.1), a lossy WebP is decoded only to this height. Decode whole
        # macroblocks (16 rows), and one more of them, because filters and upsampling also use rows below a macroblock.
        enough = -(-bottom // 16) * 16 + 16
        try:
            if bits > _INFLATED and (bits < _LARGE or 2 * right * bottom < self.width * self.height):
                data, first = self._cut(top, right, bottom)
            elif data[12:16] == b"VP8 " and enough < self.height:
                data = b"".join((data[:28], enough.to_bytes(2, "little"), data[30:]))
            pixels = self.codec(data)
        except (RuntimeError, ValueError):  # Pillow decides whether the file is damaged
            return PillowImage(open_file(self.data)).crop(left, top, width, height)
        return (pixels[..., None] if pixels.ndim == 2 else pixels)[top - first : bottom - first, left:right]

    def _cut(self, top: int, right: int, bottom: int) -> tuple[bytes, int]:
        """Return a smaller PNG and ``first``. The PNG has the rows from ``first`` to ``bottom``, cut off at ``right``.

        ``first`` is the nearest row at or above ``top`` whose filter does not use the row above it. libdeflate inflates
        five times as fast as the zlib in libpng. libpng then only undoes the filters of these rows.
        """
        codecs, data = _import_codecs(), self.data
        row = (self.width * self.pixel_bits + 7) // 8 + 1  # bytes, including the byte for the filter
        chunks = itertools.takewhile(lambda chunk: chunk[0] == b"IDAT", read_chunks(data, self.pixels_at))
        packed = b"".join(data[start + 8 : end - 4] for _, start, end in chunks)
        rows = np.frombuffer(codecs.deflate_decode(packed, out=self.height * row), np.uint8).reshape(self.height, row)
        starts = np.flatnonzero(rows[: top + 1, 0] < 2)  # the filters of these rows do not use the row above
        first = int(starts[-1]) if len(starts) else 0
        kept = np.ascontiguousarray(rows[first:bottom, : (right * self.pixel_bits + 7) // 8 + 1])
        parts = []
        header = struct.pack(">2I", right, bottom - first) + data[24:29]
        for kind, content in ((b"IHDR", header), (b"IDAT", codecs.deflate_encode(kept, 0)), (b"IEND", b"")):
            crc = codecs.deflate_crc32(content, codecs.deflate_crc32(kind))
            parts.append(b"".join((len(content).to_bytes(4, "big"), kind, content, crc.to_bytes(4, "big"))))
        return b"".join((data[:8], parts[0], data[_PNG.size : self.pixels_at], *parts[1:])), first


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
    return data[:4] == _PNG_START[:4] and {kind for kind, _, _ in read_chunks(data)} == {b"IHDR", b"IDAT", b"IEND"}


def _open_png(data: bytes | memoryview) -> CodecImage | None:
    if len(data) < _PNG.size:
        return None
    start, width, height, bits, color, _, interlaced = _PNG.unpack_from(data)
    if start != _PNG_START or bits not in _BITS.get(color, ()) or interlaced:
        return None
    kind, at = next((chunk[:2] for chunk in read_chunks(data, _PNG.size) if chunk[0] not in _CHUNKS), (b"", 0))
    codecs = _import_codecs() if kind == b"IDAT" else None
    return codecs and CodecImage(data, width, height, color == _GRAY, codecs.png_decode, bits * _CHANNELS[color], at)


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
