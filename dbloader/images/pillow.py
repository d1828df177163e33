"""Open image files with Pillow: which formats, how many pixels, how many bits a value.

Only ``open_pillow`` opens an image file with Pillow. `conversion.file_to_record` repairs files, by ``jpeg.py``.
"""

from __future__ import annotations

import functools
import io
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, TiffImagePlugin

from dbloader.errors import DamagedImageError, NotAnImageError, OptionError, PixelRangeError
from dbloader.images.heif import heif_format, is_heif

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

    import numpy.typing as npt
    from PIL import ImageFile

FORMATS = (
    "JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "AVIF", "JPEG2000", "ICO", "QOI", "PCX", "TGA",
)  # fmt: skip
"""Pillow's names of the formats that are opened, if this Pillow was built with them.

They hold pixels and nothing else. Pillow opens others by running a program (EPS) or by drawing (WMF); some hold any
other file (IPTC) or are not images. TGA comes last, since it is the only one without a signature. HEIF is opened too,
by `heif.py`.
"""

# Most bytes that decoding holds for each pixel, measured with images of 15 megapixels in Pillow 13: libwebp, OpenJPEG
# (RGBA takes 25 bytes) and AVIF (of 16 bits) keep copies. A TIFF may be one strip, or be turned.
_DECODING = {"WEBP": 16, "AVIF": 16, "HEIF": 16, "JPEG2000": 25, "QOI": 8, "TIFF": 8}
_DECODING_MOST = 4

LIMIT_VARIABLE = "DBLOADER_MAX_PIXELS"
_MOST_DIGITS = 18

EIGHT_BITS = "8-bit"

# Numbers of TIFF tags, and the kinds of values by the third (TIFF 6.0, sections 4, 8 and 19).
_BITS, _PHOTOMETRIC, _FILL_ORDER, PLANES, _SAMPLE_FORMAT = 258, 262, 266, 284, 339
_KINDS = {2: " signed", 3: " float"}
_ARRAY_KINDS = {"i": " signed", "f": " float", "c": " complex"}
_WHITE_IS_ZERO = 0
_TGA_BITS = (1, 8, 16, 24, 32)
# Unsigned values, from black to the greatest that so many bits hold.
KNOWN_RANGE = (EIGHT_BITS, "12-bit", "16-bit")
MISREAD = {"8-bit signed": "unsigned", "32-bit": "signed"}
GRAY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def open_pillow(file: bytes | bytearray | memoryview | BinaryIO) -> ImageFile.ImageFile:
    """Open the bytes of an image file, or a file opened for reading; its pixels are not decoded yet.

    Raises:
        NotAnImageError: It has more pixels than `max_pixels` allows, is a TIFF whose planes Pillow misreads, or is HEIF
            and pillow-heif is not installed.
        OSError: It is in none of the `FORMATS` (PIL.UnidentifiedImageError). Damaged headers raise others too.
    """
    max_pixels()  # raises Pillow's limit if the environment says so
    stream = io.BytesIO(file) if isinstance(file, (bytes, bytearray, memoryview)) else file
    formats = heif_format(stream.read(12)) + _available()
    try:
        image = Image.open(stream, formats=formats)
    except Image.DecompressionBombError:
        raise NotAnImageError(_too_large()) from None
    try:
        check_pixels(image.width, image.height)
    except NotAnImageError:
        image.close()
        raise
    if _is_misread_planar(image):
        image.close()
        raise NotAnImageError(
            "has its values in planes (PlanarConfiguration 2) that Pillow misreads; save it compressed, or not planar"
        )
    return image


@contextmanager
def translate_errors(what: str, *kept: type[Exception]) -> Iterator[None]:
    """Turn any error inside, except ``kept``, into a DamagedImageError that begins with ``what``."""
    try:
        yield
    except kept:
        raise
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"{what}: {describe(error)}") from error


def describe(error: Exception) -> str:
    """Return the message of an error as a part of a sentence."""
    return f"{error}".rstrip(". ") or type(error).__name__


def max_pixels() -> float:
    """Return how many pixels an image may have, in conversion and in training.

    The environment variable DBLOADER_MAX_PIXELS sets the limit (OptionError if it is no number of pixels). Otherwise
    Pillow's limit holds: twice ``PIL.Image.MAX_IMAGE_PIXELS``, which is 178,956,970 unless a program changes it, or no
    limit if it is None. Each process reads the variable once. If the variable allows more than
    ``PIL.Image.MAX_IMAGE_PIXELS``, dbloader raises that number for the whole process: Pillow has no other setting.
    """
    limit = read_limit()
    if limit is None:
        return float("inf") if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # Pillow warns beyond this
    return limit


def check_pixels(width: int, height: int) -> None:
    """Raise NotAnImageError if an image of this size has more pixels than `max_pixels` allows."""
    if width * height > max_pixels():
        raise NotAnImageError(_too_large())


def may_be_image(data: bytes | memoryview) -> bool:
    """Return whether a file of 16 bytes or more begins as one of the `FORMATS` does.

    This takes 3 us; `open_pillow` takes 50.
    """
    start = bytes(data[:18])
    if len(start) < 16:  # Pillow passes as many to its signature tests; before version 12 some need them all
        return False
    if is_heif(start) or any(accept(start[:16]) for accept in _signatures()):
        return True
    # Truevision TGA 2.0, C.1: color map or none, kind of image, bits a pixel.
    return len(start) == 18 and start[1] in (0, 1) and start[2] in (1, 2, 3, 9, 10, 11) and start[16] in _TGA_BITS


def decoding_bytes(image_format: str) -> int:
    """Return the most bytes a pixel that decoding an image file of a format holds."""
    return _DECODING.get(image_format, _DECODING_MOST)


def value_depth(image: Image.Image) -> str:
    """Return the depth of the values that Pillow reads: "8-bit" (or less), "16-bit", "32-bit float" and the like.

    For a TIFF this is the file's depth. Of colors in other formats Pillow keeps only 8 bits.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = max(image.tag_v2.get(_BITS, (1,)))
        kind = _KINDS.get(max(image.tag_v2.get(_SAMPLE_FORMAT, (1,))), "")
        return f"{max(bits, 8)}-bit{kind}"
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return "16-bit"
    return {"I": "32-bit signed", "F": "32-bit float"}.get(image.mode, EIGHT_BITS)


def array_depth(pixels: npt.NDArray[Any]) -> str:
    """Return the depth of an array's values, named as in `value_depth`."""
    return f"{8 * pixels.itemsize}-bit{_ARRAY_KINDS.get(pixels.dtype.kind, '')}"


def scale_to_8_bits(image: Image.Image) -> Image.Image:
    """Return an image with 8-bit values, gray of 16 bits in mode L; raise PixelRangeError for an unknown range.

    The upper 8 of 16 bits stay, as Pillow does for colors and torchvision for tensors. Pillow's own conversion makes
    every gray value above 255 white.
    """
    depth = value_depth(image)
    if depth not in KNOWN_RANGE:
        raise PixelRangeError(
            f"its values are {depth}: their range is not known, so they cannot be made pixels of 8 bits; "
            "give the dataset a decode= of your own that scales them"
        )
    if image.mode not in GRAY_16:
        return image
    upper: npt.NDArray[np.uint8] = (gray_values(image) >> 8).astype(np.uint8)
    return Image.fromarray(upper)


def mend_gray(image: Image.Image) -> Image.Image:
    """Return gray of 16 bits in mode I;16, from 0 (black) to 65,535 (white), and other images unchanged.

    Pillow reads gray of 12 bits in a TIFF as 0 to 4,095, leaves 16 bits inverted where 0 is white, and reads a PGM of
    16 bits in the mode of 32. Values that it misreads, or cannot write, are a PixelRangeError.
    """
    depth = value_depth(image)
    if depth in MISREAD:
        raise PixelRangeError(f"its values are {depth}, which Pillow reads as {MISREAD[depth]}: keep its size")
    if image.mode == "F" and _is_inverted(image):
        raise PixelRangeError("its values are floats of which 0 is white, which Pillow cannot write: keep its size")
    return Image.fromarray(gray_values(image)) if image.mode in GRAY_16 and depth in KNOWN_RANGE else image


def gray_values(image: Image.Image) -> npt.NDArray[np.uint16]:
    """Return gray of 16 bits: uint16, shape (height, width), 0 (black) to 65,535."""
    values = np.asarray(image).astype(np.uint16)
    if value_depth(image) == "12-bit":
        values = values << np.uint16(4) | values >> np.uint16(8)
    return ~values if _is_inverted(image) else values


def _is_inverted(image: Image.Image) -> bool:
    """Return whether 0 is white, which Pillow corrects only for values of up to 8 bits."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return False
    return bool(image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)


def _is_misread_planar(image: Image.Image) -> bool:
    """Return whether a TIFF has uncompressed planes that Pillow wrongly reads as plain bytes."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or image.tag_v2.get(PLANES, 1) == 1:
        return False
    if not image.tile or image.tile[0][0] != "raw":
        return False  # libtiff reads it
    plain = set(image.tag_v2.get(_BITS, (1,))) == {8} and image.tag_v2.get(_FILL_ORDER, 1) == 1
    return not plain or image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO


def _too_large() -> str:
    return (
        f"is too large to be decoded: it has more pixels than the {max_pixels():,.0f} that are allowed; "
        f"set the environment variable {LIMIT_VARIABLE} to allow more"
    )


@functools.cache
def _available() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@functools.cache
def _signatures() -> tuple[Callable[[bytes], bool | str], ...]:
    """Return Pillow's tests of the first 16 bytes of a file, one for each format with a signature."""
    return tuple(accept for name in _available() if (accept := Image.OPEN[name][1]) is not None)


@functools.cache
def read_limit() -> int | None:
    """Return the number in DBLOADER_MAX_PIXELS, read once; None if it is not set."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise OptionError(
            f"{LIMIT_VARIABLE} must be a number of pixels, at least 1, of {_MOST_DIGITS} digits at most, "
            f"got {text[: _MOST_DIGITS + 1]!r}"
        )
    return int(text)
