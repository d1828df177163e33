"""Open image files with Pillow. Define the allowed formats, the limit on pixels, and the depth of pixel values.

All other code opens image files with ``open_pillow``.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError, PixelRangeError
from dbloader.images.png import without_refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    import numpy.typing as npt
    from PIL import ImageFile

FORMATS = (
    "JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "AVIF", "JPEG2000", "ICO", "QOI", "PCX", "TGA",
)  # fmt: skip
"""Pillow's names of the formats that dbloader reads if this Pillow was built with them.

pillow-heif adds HEIF, and pillow-jxl-plugin adds JXL.

These formats contain only pixels. For other formats, Pillow runs a program (EPS), draws (WMF), or opens an embedded
file of any kind (IPTC). TGA is last, because a TGA file has no signature.
"""

_ALWAYS_IMPORTED = FORMATS[:5]  # PIL.Image.open imports the plug-ins of these formats in any case

# Peak memory of decoding in bytes per pixel, measured with 15 megapixels in Pillow 13. libwebp, OpenJPEG (25 bytes for
# RGBA) and 16-bit AVIF keep copies. TIFFs need 8 bytes if they are rotated or have one strip. Unlisted formats need 4.
_DECODING = {"WEBP": 16, "AVIF": 16, "HEIF": 16, "JXL": 25, "JPEG2000": 25, "QOI": 8, "TIFF": 8}
_DECODING_MOST = 4

# Bytes 4 to 12 of a HEIF file: "ftyp" and the major brand (ISO/IEC 23008-12, 10). Files with _ANY are HEIF or AVIF.
_HEVC = {b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")}
_ANY = {b"ftypmif1", b"ftypmsf1"}
_JXL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")  # a codestream, or a file with boxes (ISO/IEC 18181-2, 9.1)

LIMIT_VARIABLE = "DBLOADER_MAX_PIXELS"

EIGHT_BITS = "8-bit"

# TIFF tags, and names for values of the tag _SAMPLE_FORMAT (TIFF 6.0, sections 4, 8 and 19).
_BITS, _PHOTOMETRIC, _FILL_ORDER, PLANES, _SAMPLE_FORMAT = 258, 262, 266, 284, 339
_KINDS = {2: " signed", 3: " float"}
_ARRAY_KINDS = {"i": " signed", "f": " float", "c": " complex"}
_WHITE_IS_ZERO = 0
# Depths of unsigned values whose range is known: from 0 to the greatest value that their bits allow.
KNOWN_RANGE = (EIGHT_BITS, "12-bit", "16-bit")
MISREAD = {"8-bit signed": "unsigned", "32-bit": "signed"}  # depth in a TIFF -> how Pillow wrongly reads the values
GRAY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # Pillow's modes that may hold gray of 9 to 16 bits
# How to turn a stored image upright, for each EXIF orientation (tag 0x0112; CIPA DC-008, 4.6.5.1). The values mean:
# exchange rows and columns; then mirror from left to right; then mirror from top to bottom.
TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


def turn_boxes(
    boxes: npt.NDArray[np.float64], orientation: int, width: int, height: int, *, back: bool = False
) -> npt.NDArray[np.float64]:
    """Convert boxes from coordinates in the stored image to coordinates in the upright image, or vice versa (``back``).

    ``boxes`` has the shape (n, 4): x_min, y_min, x_max, y_max. ``width`` and ``height`` are of the upright image.
    """
    exchanged, mirrored, inverted = TURNS[orientation]
    turned = boxes[:, [1, 0, 3, 2]] if exchanged and not back else boxes.copy()
    if mirrored:
        turned[:, [0, 2]] = width - turned[:, [2, 0]]
    if inverted:
        turned[:, [1, 3]] = height - turned[:, [3, 1]]
    return turned[:, [1, 0, 3, 2]] if exchanged and back else turned


def open_pillow(file: bytes | bytearray | memoryview | BinaryIO) -> ImageFile.ImageFile:
    """Open an image file with Pillow, without decoding its pixels.

    Args:
        file: The bytes of the file, or a file opened for reading.

    Raises:
        NotAnImageError: The image has more pixels than `max_pixels` allows, or its format needs a plug-in that is not
            installed. Or the image is a TIFF whose planes Pillow misreads.
        PIL.UnidentifiedImageError: The format is not in `FORMATS`. Damaged headers raise errors of many types.
    """
    max_pixels()  # may increase Pillow's limit
    if isinstance(file, (bytes, bytearray, memoryview)):
        stream: BinaryIO = io.BytesIO(without_refused(file) if file[:4] == b"\x89PNG" else file)
    else:
        stream = file
    try:
        image = _open(stream)
    except Image.DecompressionBombError:
        raise NotAnImageError(_too_large()) from None
    check_pixels(image.width, image.height)
    if _is_misread_planar(image):
        raise NotAnImageError(
            "has its values in planes (PlanarConfiguration 2) that Pillow misreads; save it compressed, or not planar"
        )
    return image


def _open(stream: BinaryIO) -> ImageFile.ImageFile:
    # Import Pillow's other plug-ins only if they are needed: the import takes 0.1 s in each worker process.
    with suppress(UnidentifiedImageError):
        return Image.open(stream, formats=_ALWAYS_IMPORTED)
    stream.seek(0)
    start = stream.read(12)
    return Image.open(stream, formats=heif_format(start) + _jxl_format(start) + _available())


def heif_format(start: bytes) -> tuple[str, ...]:
    """Return ("HEIF",) for a HEIF file, and () for other files. Enable Pillow to open HEIF.

    The first HEIF file of a process imports pillow-heif, which takes 75 ms. Without pillow-heif, a file that can only
    be HEIF raises NotAnImageError.
    """
    if start[4:12] not in _HEVC | _ANY:
        return ()
    try:
        import pillow_heif
    except ImportError as error:
        if start[4:12] in _ANY:
            return ()
        raise NotAnImageError("is HEIF (HEIC), which needs pillow-heif: pip install 'dbloader[heif]'") from error
    pillow_heif.register_heif_opener()
    return ("HEIF",)


def _jxl_format(start: bytes) -> tuple[str, ...]:
    """Return ("JXL",) for a JPEG XL file, and () for other files. Enable Pillow to open JPEG XL."""
    if not start.startswith(_JXL):
        return ()
    try:
        importlib.import_module("pillow_jxl")  # the import registers the plug-in
    except ImportError as error:
        raise NotAnImageError("is JPEG XL, which needs pillow-jxl-plugin: pip install 'dbloader[jxl]'") from error
    return ("JXL",)


@contextmanager
def translate_errors(what: str, *kept: type[Exception]) -> Iterator[None]:
    """Turn any error in the block into a DamagedImageError that begins with ``what``. Errors in ``kept`` pass."""
    try:
        yield
    except kept:
        raise
    except Exception as error:  # Pillow's parsers raise many types of errors
        raise DamagedImageError(f"{what}: {describe(error)}") from error


def describe(error: Exception) -> str:
    """Return the message of an error without its final period; the type of the error if there is no message."""
    return f"{error}".partition(" <_io.")[0].rstrip(". ") or type(error).__name__  # no address of a BytesIO


def max_pixels() -> float:
    """Return how many pixels an image may have, in conversion and in training.

    The environment variable DBLOADER_MAX_PIXELS sets the limit. Each process reads the variable once, and raises
    OptionError if the value is invalid. By default, the limit is Pillow's: twice ``PIL.Image.MAX_IMAGE_PIXELS``,
    normally 178,956,970 pixels. If Pillow's constant is None, there is no limit. A higher number in the environment
    variable also increases ``PIL.Image.MAX_IMAGE_PIXELS`` for the whole process, because Pillow has no other setting.
    """
    limit = read_limit()
    if limit is None:
        return float("inf") if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # otherwise Pillow would warn about large images that our limit allows
    return limit


def check_pixels(width: int, height: int) -> None:
    """Raise NotAnImageError if an image of this size has more pixels than `max_pixels` allows."""
    if width * height > max_pixels():
        raise NotAnImageError(_too_large())


def decoding_bytes(image_format: str) -> int:
    """Return the peak memory for decoding an image of this format, in bytes per pixel."""
    return _DECODING.get(image_format, _DECODING_MOST)


def value_depth(image: Image.Image) -> str:
    """Return the depth of the values that Pillow reads: "8-bit" (or fewer), "16-bit", "32-bit float" and so on.

    But for a TIFF, return the depth in the file. In other formats, Pillow has reduced colors to 8 bits.
    """
    tags = _tiff_tags(image)
    if tags is not None:
        bits = max(tags.get(_BITS, (1,)))
        kind = _KINDS.get(max(tags.get(_SAMPLE_FORMAT, (1,))), "")
        return f"{max(bits, 8)}-bit{kind}"
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return "16-bit"
    return {"I": "32-bit signed", "F": "32-bit float"}.get(image.mode, EIGHT_BITS)


def array_depth(pixels: npt.NDArray[Any]) -> str:
    """Return the depth of an array's values, such as "16-bit", like `value_depth`."""
    return f"{8 * pixels.itemsize}-bit{_ARRAY_KINDS.get(pixels.dtype.kind, '')}"


def has_transparent_pixels(image: Image.Image) -> bool:
    """Return whether a pixel of a decoded image is not opaque."""
    if "A" in image.getbands():
        return bool(image.getchannel("A").getextrema()[0] != 255)
    transparent = image.info.get("transparency")
    if image.mode == "P" and transparent is not None:
        opacity = [*transparent] if isinstance(transparent, bytes) else [255] * transparent + [0]
        return any(count and value < 255 for count, value in zip(image.histogram(), opacity, strict=False))
    return transparent is not None  # in an image without a palette, one color may be transparent


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a copy of an image in mode RGB, without its opacity, and without Pillow's warning about palettes."""
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # has the same colors, without Pillow's warning
    return image.convert("RGB")


def scale_to_8_bits(image: Image.Image) -> Image.Image:
    """Return an image with 8-bit values; raise PixelRangeError if the range of its values is unknown.

    16-bit gray becomes mode L with the upper 8 bits of each value. Pillow does the same with colors. torchvision does
    the same with tensors. But Pillow's own conversion of gray makes every value above 255 white.
    """
    depth = value_depth(image)
    if depth not in KNOWN_RANGE:
        raise PixelRangeError(
            f"its values are {depth}: their range is not known, so they cannot be scaled to 8 bits; "
            "give the dataset a decode= of your own that scales them"
        )
    if image.mode not in GRAY_16:
        return image
    upper: npt.NDArray[np.uint8] = (gray_values(image) >> 8).astype(np.uint8)
    return Image.fromarray(upper)


def mend_gray(image: Image.Image) -> Image.Image:
    """Return gray of 12 or 16 bits in mode I;16, from 0 (black) to 65,535 (white). Return other images unchanged.

    Pillow reads 12-bit TIFFs as 0 to 4,095, and 16-bit PGMs in its mode of 32 bits. If 0 is white in a 16-bit TIFF,
    Pillow does not invert the values.

    Raises:
        PixelRangeError: Pillow misreads the values, or cannot write them.
    """
    depth = value_depth(image)
    if depth in MISREAD:
        raise PixelRangeError(f"its values are {depth}, which Pillow reads as {MISREAD[depth]}: do not resize it")
    if image.mode == "F" and _is_inverted(image):
        raise PixelRangeError("its values are floats where 0 is white, and Pillow cannot write them: do not resize it")
    return Image.fromarray(gray_values(image)) if image.mode in GRAY_16 and depth in KNOWN_RANGE else image


def gray_values(image: Image.Image) -> npt.NDArray[np.uint16]:
    """Return the values of gray of 12 or 16 bits: uint16, shape (height, width), from 0 (black) to 65,535 (white)."""
    values = np.asarray(image).astype(np.uint16)
    if value_depth(image) == "12-bit":
        values = values << np.uint16(4) | values >> np.uint16(8)
    return ~values if _is_inverted(image) else values


def _is_inverted(image: Image.Image) -> bool:
    """Return whether 0 means white. Pillow inverts such values only if they have at most 8 bits."""
    tags = _tiff_tags(image)
    return tags is not None and bool(tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)


def _is_misread_planar(image: ImageFile.ImageFile) -> bool:
    """Return whether a TIFF has uncompressed planes that Pillow reads wrongly."""
    tags = _tiff_tags(image)
    if tags is None or tags.get(PLANES, 1) == 1:
        return False
    if not image.tile or image.tile[0][0] != "raw":
        return False  # libtiff reads the planes correctly
    plain = set(tags.get(_BITS, (1,))) == {8} and tags.get(_FILL_ORDER, 1) == 1
    return not plain or bool(tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)


def _tiff_tags(image: Image.Image) -> Any:
    """Return the tags of a TIFF file, None for other images. An isinstance check would import Pillow's plug-in."""
    return getattr(image, "tag_v2", None)


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
def read_limit() -> int | None:
    """Return the number in DBLOADER_MAX_PIXELS; None if it is not set."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return None
    try:
        return whole_number(LIMIT_VARIABLE, int(text), 1)
    except ValueError:
        raise OptionError(f"{LIMIT_VARIABLE} must be a number of pixels, at least 1, got {short_repr(text)}") from None
