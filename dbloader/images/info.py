"""Read the header of an image file."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simplejpeg
from PIL import ExifTags, UnidentifiedImageError

from dbloader.errors import NotAnImageError, OptionError
from dbloader.images.pillow import EIGHT_BITS, TURNS, array_depth, describe, max_pixels, open_pillow, value_depth

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image, ImageFile

# A JPEG 2000 codestream begins with the markers SOC and SIZ. The codestream is at the start of the file, or in a box
# "jp2c". The box's header may have 8 more bytes for the length (ITU-T T.800 (11/2015), A.5.1 and I.4). Other boxes may
# contain any bytes, including these markers.
_CODESTREAM = re.compile(rb"(?:\A|jp2c(?:.{8})?)\xff\x4f\xff\x51", re.DOTALL)

UPRIGHT = 1  # EXIF orientation of an image that is stored upright


class Facts(NamedTuple):
    """Properties of an image file, read from its header."""

    format: str  # Pillow's name of the image format
    width: int  # in pixels, as encoded
    height: int
    depth: str = EIGHT_BITS  # bits of a pixel value: "8-bit" (or fewer), "10-bit", "16-bit", "32-bit float" and so on
    frames: bool = False  # whether there are several frames or pages; decoders read only the first
    transparent: bool = False  # whether there is an alpha channel or a transparent color


def read_facts(data: bytes) -> Facts:
    """Read the header of an image file without decoding pixels. Raise NotAnImageError if the header cannot be read."""
    if data.startswith(b"\xff\xd8"):
        # simplejpeg takes 3 us. Pillow takes 45 us, which would slow conversions with check="none".
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if height * width <= max_pixels():
                return Facts("JPEG", width, height)
        except (ValueError, KeyError):
            pass  # Pillow may read this kind of JPEG
    try:
        with open_pillow(data) as image:
            name = format_name(image)
            # Do not use Pillow's has_transparency_data, which fails if a palette is missing.
            depth, transparent = _depth(data, image), "A" in image.getbands() or "transparency" in image.info
            return Facts(name, image.width, image.height, depth, _has_frames(image), transparent)
    except UnidentifiedImageError as error:
        reason = f"is in no known image format (it begins with {data[:4]!r})" if data else "is empty"
        if data.startswith(b"version https://git-lfs"):
            reason = "is a pointer of Git LFS, not the image: run git lfs pull, and convert again"
        raise NotAnImageError(reason) from error
    except (NotAnImageError, OptionError):
        raise
    except Exception as error:  # Pillow's parsers raise many types of errors
        raise NotAnImageError(f"its header cannot be read: {describe(error)}") from error


def find_facts(data: bytes) -> Facts | None:
    """Return what `read_facts` returns, or None if the file is not an image."""
    with suppress(NotAnImageError):
        return read_facts(data)
    return None


def count_depth(image: bytes | memoryview | npt.NDArray[Any] | None) -> dict[str, int]:
    """Return ``{depth: 1}`` with the depth of a record's image; {} if there is no image, or its format is unknown."""
    if isinstance(image, np.ndarray):
        return {array_depth(image): 1}
    facts = None if image is None else find_facts(bytes(image))
    return {} if facts is None else {facts.depth: 1}


def _depth(data: bytes, image: ImageFile.ImageFile) -> str:
    """Return the depth in the header. Pillow's mode may not show this depth: Pillow reduces deep colors to 8 bits."""
    bits = 8
    if image.format == "PNG":
        bits = data[24]  # https://www.w3.org/TR/png-3/#11IHDR
    elif image.format == "PPM" and image.mode == "RGB" and isinstance(options := image.tile[0][3], tuple):
        bits = 16 if options[1] > 255 else 8  # the greatest value, https://netpbm.sourceforge.net/doc/ppm.html
    elif image.format == "JPEG2000":
        size = _CODESTREAM.search(data).end() - 2  # type: ignore[union-attr] # Pillow has found one
        components = int.from_bytes(data[size + 38 : size + 40], "big")
        bits = max((depth & 0x7F) + 1 for depth in data[size + 40 : size + 40 + 3 * components : 3])
    elif image.format == "AVIF":
        # https://aomediacodec.github.io/av1-isobmff/#av1codecconfigurationbox-syntax
        flags = data[data.find(b"av1C") + 6]
        if flags & 0x40:
            bits = 12 if flags & 0x20 else 10
    elif image.format == "HEIF":
        bits = image.info["bit_depth"]
    return f"{bits}-bit" if bits > 8 else value_depth(image)


def _has_frames(image: Image.Image) -> bool:
    try:
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    except Exception:  # a later frame is damaged, but the first may be intact
        return True


def format_name(image: Image.Image) -> str:
    """Return Pillow's name of the format; "JPEG" for a multi-picture file (MPO), because it begins with a JPEG."""
    return "JPEG" if image.format == "MPO" else image.format or ""


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image, 1 to 8; 1 without EXIF. Damaged EXIF raises errors of any type.

    Like ImageOps.exif_transpose, this function reads EXIF, or XMP if EXIF has no orientation. Reading takes 17 us.
    """
    if image.format == "TIFF":
        return UPRIGHT  # Pillow turns a TIFF upright when it loads the pixels
    value = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
    return value if value in TURNS else UPRIGHT
