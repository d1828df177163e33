"""Decode JPEGs to RGB with libjpeg-turbo, through simplejpeg, to the same pixels as Pillow.

For a part of a tiled JPEG, this module decodes only the part's tiles (images/tiled/decode.py). For a part of most other
intact JPEGs, it decodes only the rows above the part's lower edge. It can also shrink an image while decoding it.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

import simplejpeg

from dbloader.decoding.pillow import PillowImage, open_file
from dbloader.errors import DamagedImageError, NotTiledError
from dbloader.images import markers
from dbloader.images.check import check_decodes
from dbloader.images.info import Facts
from dbloader.images.pillow import describe, max_pixels
from dbloader.images.tiled.decode import decode_joined, join_tiles, read_header

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

# If that saves time, decode only a crop's tiles, joined into a small JPEG (`join_tiles`). Joining takes as long as
# decoding 18,000 pixels. Decoding tiles took as long as decoding the whole image if the tiles covered 0.7 of its area
# (300 x 256 pixels), 0.85 (465 x 394) or 0.95 (2 to 16 megapixels).
_JOINING = 18_000
_LARGEST_CROP = 0.95  # share of the image's area

_COLOR_SPACES = ("YCbCr", "Gray", "RGB")  # not CMYK, because Pillow converts CMYK to RGB in a way of its own

# To shrink tiles, widen the crop by this many pixels of the smaller image. Chroma upsampling needs only 1 pixel.
# But in a JPEG at most four pixels wide, libjpeg-turbo upsamples differently (images/tiled/decode.py).
_MARGIN = 8

# Skip the rows below a part if they have more pixels than this. Decoding 8,000 takes as long as reading the header.
_SKIPPED = 8_000
_HEIGHT = struct.Struct(">H")

# Side of a block in pixels. Do not shrink smaller images: several factors give the same size, but different pixels.
_BLOCK = 8


def open_jpeg(
    data: bytes | memoryview, tiles: bytes | memoryview | None = None, *, known_intact: bool = False
) -> JPEG | None:
    """Read the header of a JPEG. Return None for a file that Pillow must decode or refuse, such as a CMYK JPEG."""
    if data[:2] != markers.START:
        return None
    try:
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(data, strict=False)  # in 1 us; Pillow takes 15 us
    except (ValueError, KeyError):  # KeyError: a chroma subsampling that simplejpeg does not support
        return None
    if color_space not in _COLOR_SPACES or width * height > max_pixels():
        return None
    return JPEG(data, width, height, tiles, known_intact)


class JPEG(NamedTuple):
    """An opened JPEG file."""

    data: bytes | memoryview
    width: int
    height: int
    tiles: bytes | memoryview | None  # lengths of the tiles of a tiled JPEG
    known_intact: bool  # whether the file is known to decode without a warning

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that decodes a part of the image. See the docstring of open.py.

        The pixels are the same with and without ``tiles``.
        """
        if max(self.width, self.height) < _BLOCK:
            factor = 1
        if self.tiles is not None and width * height + _JOINING < _LARGEST_CROP * self.width * self.height:
            try:
                if factor > 1:
                    return self._smaller_tiles(self.tiles, left, top, width, height, factor)
                joined = join_tiles(
                    self.data, self.tiles, left, top, width, height, check_lengths=not self.known_intact
                )
                return functools.partial(decode_joined, *joined, width, height)
            except NotTiledError:
                pass
        rows, columns = scale(top, height, factor), scale(left, width, factor)
        upper = self._upper(rows.stop, factor) if self.known_intact else None
        if upper is not None:
            return lambda: upper()[rows, columns]
        return functools.partial(self._crop, left, top, width, height, factor)

    def _crop(self, left: int, top: int, width: int, height: int, factor: int) -> npt.NDArray[np.uint8]:
        try:
            pixels = _decode_smaller(self.data, self.width, self.height, factor)
        except ValueError:
            # Some warnings of libjpeg are harmless. Conversion accepts such files, so they must decode here too.
            data = bytes(self.data)
            try:
                check_decodes(data, Facts("JPEG", self.width, self.height))
            except DamagedImageError as error:
                raise DamagedImageError(f"the image {error}") from error
            return PillowImage(open_file(data)).crop(left, top, width, height)
        return pixels[scale(top, height, factor), scale(left, width, factor)]

    def _upper(self, bottom: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]] | None:
        """Return a function that decodes the rows above ``bottom`` and a few more rows.

        ``bottom`` is in pixels of the image divided by ``factor``. Return None if the image must be decoded whole.

        The returned function decodes a copy with a smaller height in its header. A decoder stops at this height, and
        then warns about the remaining data. This warning hides other warnings, so the file must be known to be intact.
        """
        if bottom <= 0 or (self.height - bottom * factor) * self.width <= _SKIPPED:
            return None
        try:
            header = read_header(memoryview(self.data))
        except NotTiledError:
            return None
        # Chroma upsampling also reads rows below ``bottom``. Round up to whole MCUs (minimum coded units).
        height = -(-(bottom + header.margin_y) * factor // header.mcu_height) * header.mcu_height
        if header.frame.process not in markers.SEQUENTIAL or not header.interleaved or height >= self.height:
            return None
        joined = bytearray().join(header.parts)
        _HEIGHT.pack_into(joined, header.size_at, height)
        scan = memoryview(self.data)[header.scan :]
        return lambda: _decode_smaller(b"".join((joined, scan)), self.width, height, factor, strict=False)

    def _smaller_tiles(
        self, tiles: bytes | memoryview, left: int, top: int, width: int, height: int, factor: int
    ) -> Callable[[], npt.NDArray[np.uint8]]:
        margin = _MARGIN * factor
        x, y = max(left - margin, 0), max(top - margin, 0)
        right, bottom = min(left + width + margin, self.width), min(top + height + margin, self.height)
        joined, inner_x, inner_y = join_tiles(
            self.data, tiles, x, y, right - x, bottom - y, check_lengths=not self.known_intact
        )
        # Tiles begin at multiples of 8 pixels, which are also multiples of ``factor``.
        rows, columns = scale(top + inner_y - y, height, factor), scale(left + inner_x - x, width, factor)

        def decode() -> npt.NDArray[np.uint8]:
            joined_height, joined_width, _, _ = simplejpeg.decode_jpeg_header(joined)
            try:
                pixels = _decode_smaller(joined, joined_width, joined_height, factor)
            except ValueError as error:
                raise DamagedImageError(f"tiles of the JPEG do not decode: {describe(error)}") from error
            return pixels[rows, columns]

        return decode


def _decode_smaller(
    data: bytes | memoryview | bytearray, width: int, height: int, factor: int, *, strict: bool = True
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG to its width and height divided by ``factor``, rounded up. A warning raises a ValueError."""
    least = {"min_width": -(-width // factor), "min_height": -(-height // factor), "min_factor": factor}
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", strict=strict, **least)
    return pixels


def shrink_factor(height: int, width: int, size: tuple[int, int]) -> int:
    """Return 8, 4, 2 or 1: the greatest factor by which a part can shrink without becoming smaller than ``size``."""
    return next((factor for factor in (8, 4, 2) if height >= factor * size[0] and width >= factor * size[1]), 1)


def scale(first: int, length: int, factor: int) -> slice:
    """Return which pixels a part covers in an image shrunk by ``factor``. Half a pixel is rounded up."""
    return slice((2 * first + factor) // (2 * factor), (2 * (first + length) + factor) // (2 * factor))
