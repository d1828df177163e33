"""Decode an image file to its own channels, with all of their bits.

Pillow keeps only 8 bits of 16-bit colors. Pillow's "raw mode" describes the layout of values in a file. The byte order
in the raw mode decides whether Pillow unpacks the first or the second byte of each value. So this module makes two
passes, with opposite byte orders.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dbloader.decoding.jpeg import open_jpeg
from dbloader.decoding.pillow import decode_errors, open_file
from dbloader.errors import PixelRangeError
from dbloader.images.info import read_facts
from dbloader.images.pillow import EIGHT_BITS, GRAY_16, KNOWN_RANGE, PLANES, gray_values, value_depth

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

# Pillow's raw modes for 16-bit colors: the mode that unpacks the upper bytes -> the mode that unpacks the lower bytes.
_LOWER = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA")
    for order, other in (("L", "B"), ("B", "L"), ("N", "B" if sys.byteorder == "little" else "L"))
}


def decode_unchanged(data: bytes | memoryview) -> torch.Tensor:
    """Decode an image file to a tensor of its own channels, with all bits of their values.

    Use it as ``decode=`` for depth maps, label masks, X-rays, and other images whose values are not 8-bit colors.

    Args:
        data: The encoded file.

    Returns:
        Shape (channels, height, width): 1 channel for gray, 3 for RGB, 4 for RGBA and CMYK, 2 for gray with opacity. An
        image with a palette has 1 channel, the indices of its colors. The dtype is

        - uint8, 0 to 255, for values of 8 bits or fewer. 0 is black. Images of one bit have the values 0 and 1. Gray of
          2 or 4 bits is spread over 0 to 255, as PNG defines.
        - int32 for unsigned values of 9 to 16 bits: 0 to 4,095 for 12 bits, else 0 to 65,535. torch has few operations
          for uint16. If a PGM's header gives a greatest value other than 65,535, its values are spread over this range.
        - int32 also for signed values of 16 bits, and for values of 32 bits.
        - float32 for floats of any range, including NaN and infinity.
        - int8 for signed values of 8 bits.

        EXIF orientation is not applied. Only the first of several frames is decoded.

    Raises:
        DamagedImageError: The image does not decode, or it is a JPEG and libjpeg warns of wrong pixels.
        NotAnImageError: The image's format is unknown, or the image has more pixels than are allowed.
        PixelRangeError: Pillow does not read all bits of the image, for example of an AVIF with 10 bits.
    """
    with open_file(data) as image:
        array = read_values(data, image)
    if array.dtype == np.uint16:
        array = array.astype(np.int32)
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def read_values(data: bytes | memoryview, image: Image.Image) -> npt.NDArray[Any]:
    """Return a file's own channels and values, like `decode_unchanged`. Pillow has opened the file as ``image``.

    Returns:
        Shape (height, width) for one channel, else (height, width, channels); uint8, int8, uint16, int32 or float32;
        writable, in one block of memory.
    """
    jpeg = open_jpeg(data)
    if jpeg is not None:
        pixels = jpeg.part(0, 0, jpeg.width, jpeg.height, 1)()
        return pixels[..., 0].copy() if image.mode == "L" else pixels
    depth = read_facts(bytes(data)).depth
    with decode_errors():
        if image.mode in (*GRAY_16, "F") or depth in (EIGHT_BITS, "8-bit signed"):
            return _read_values(image, depth)
        return _read_both_bytes(data, image, depth)


def _read_values(image: Image.Image, depth: str) -> npt.NDArray[Any]:
    """Return the values of an image. Raise PixelRangeError if Pillow does not keep all bits of a value."""
    if depth != value_depth(image):
        raise _cut_off(depth)
    image.load()
    if image.mode in GRAY_16 and depth in KNOWN_RANGE:
        values = gray_values(image)
        return values >> np.uint16(4) if depth == "12-bit" else values
    array: npt.NDArray[Any] = np.array(image, order="C")
    if depth == "32-bit" and array.min() < 0:  # Pillow reads unsigned 32-bit values as signed
        raise PixelRangeError("its values are 32-bit, and some are above 2,147,483,647, which Pillow reads as negative")
    if depth == "8-bit signed":  # Pillow reads signed values as unsigned
        return array.view(np.int8)
    return array.astype(np.uint8) if array.dtype == np.bool_ else array


def _read_both_bytes(data: bytes | memoryview, image: Image.Image, depth: str) -> npt.NDArray[Any]:
    """Return the values of colors with 16 bits. Pillow reads the file twice, 8 bits of each value at a time."""
    lower: Any = open_file(data)
    tiles = []
    planar = getattr(lower, "tag_v2", {}).get(PLANES, 1) != 1  # Pillow unpacks only the upper bytes of planar values
    for tile in getattr(lower, "tile", ()):
        codec, extents, offset, options = tile
        raw, *rest = options if isinstance(options, tuple) else (options,)
        if planar or depth != "16-bit" or raw not in _LOWER:
            raise _cut_off(depth)
        tiles.append((codec, extents, offset, (_LOWER[raw], *rest)))
    if not tiles:  # the plugin of this format does not use Pillow's codecs
        raise _cut_off(depth)
    lower.tile = [getattr(type(tile), "_make", tuple)(new) for tile, new in zip(lower.tile, tiles, strict=True)]
    pixels: npt.NDArray[Any] = np.array(image, np.uint16) << np.uint16(8) | np.asarray(lower)
    return pixels


def _cut_off(depth: str) -> PixelRangeError:
    return PixelRangeError(
        f"its values are {depth}, and Pillow reads only some of their bits: decode_pil and DecodeTensor take the upper "
        "8 bits, and a decode= of your own may read them all"
    )
