"""Read the header of an image file, and find out whether the file decodes."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

import simplejpeg
from PIL import Image, UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError, OptionError
from dbloader.images.jpeg import examine, find_warning
from dbloader.images.markers import END
from dbloader.images.pillow import EIGHT_BITS, FORMATS, describe, max_pixels, open_pillow, translate_errors, value_depth

if TYPE_CHECKING:
    from PIL import ImageFile

# libjpeg warns if bytes are left over after the last pixel. Some cameras write padding there, and the pixels are right.
# But of 3,000 photos with one bit flipped, 705 gave only this warning, and all 705 had wrong pixels. Padding repeats
# one value; the bytes left over in those 705 did not.
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")

_NOISE = b"\xa5\x5a" * 32  # decodes as coded data

UNREAD_TIFF = (
    "damaged, or a TIFF of a kind that Pillow does not read: save it as another kind (8 or 16 bits, one or three "
    "channels, LZW or Deflate), or store it byte for byte, with check='none' (--check none) and without raw (--raw), "
    "and give the dataset a decode= of your own"
)

# The markers SOC and SIZ at the beginning of a JPEG 2000 file, or of its box with the codestream, whose length may have
# 8 bytes more (ITU-T T.800 (11/2015), A.5.1 and I.4). Other boxes may hold any bytes, even those of the markers.
_CODESTREAM = re.compile(rb"(?:\A|jp2c(?:.{8})?)\xff\x4f\xff\x51", re.DOTALL)


class Facts(NamedTuple):
    """Facts from the header of an image file."""

    format: str  # Pillow's name
    width: int  # in pixels, as encoded
    height: int
    depth: str = EIGHT_BITS  # bits of a value: "8-bit" (or less), "10-bit", "16-bit", "32-bit float" and the like
    frames: bool = False  # whether it has several frames or pages; only the first is decoded
    transparent: bool = False  # whether it has opacities or a transparent color


def read_facts(data: bytes) -> Facts:
    """Read the header of an image file without decoding pixels; raise NotAnImageError if that fails."""
    if data.startswith(b"\xff\xd8"):
        # 3 us; Pillow takes 45, which is much for conversions that check nothing.
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if height * width <= max_pixels():
                return Facts("JPEG", width, height)
        except (ValueError, KeyError):
            pass  # a kind of JPEG that simplejpeg refuses or does not know; Pillow decides
    try:
        with open_pillow(data) as image:
            name = format_name(image)
            # Pillow's has_transparency_data fails for missing palettes.
            depth, transparent = _depth(data, image), "A" in image.getbands() or "transparency" in image.info
            return Facts(name, image.width, image.height, depth, _has_frames(image), transparent)
    except UnidentifiedImageError as error:
        raise NotAnImageError(_unknown(data)) from error
    except (NotAnImageError, OptionError):
        raise
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise NotAnImageError(f"its header cannot be read: {describe(error)}") from error


def _unknown(data: bytes) -> str:
    if not data:
        return "is empty"
    reason = f"is in no known image format (it begins with {data[:4]!r})"
    for name, (_, accept) in Image.OPEN.items() if len(data) >= 16 else ():  # what Pillow hands to them
        if name not in FORMATS and accept is not None and accept(data[:16]) is True:
            return f"{reason}; {name}, perhaps, which is not read: check='none' (--check none) stores it for a decode="
    return reason


def _depth(data: bytes, image: ImageFile.ImageFile) -> str:
    """Return the depth in the header, even for colors that Pillow reduces to 8 bits."""
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
        bits = 8 if not flags & 0x40 else 12 if flags & 0x20 else 10
    elif image.format == "HEIF":
        bits = image.info["bit_depth"]
    return f"{bits}-bit" if bits > 8 else value_depth(image)


def _has_frames(image: Image.Image) -> bool:
    try:
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    except Exception:  # Pillow fails behind the first frame, which may be intact
        return True


def check_decodes(data: bytes, facts: Facts) -> None:
    """Decode a whole image and drop the pixels; raise DamagedImageError if some are wrong or missing."""
    if facts.format == "PNG":
        _check_chunks(data)
    if facts.format == "JPEG" and _check_jpeg(data):
        return
    try:
        with open_pillow(data) as image:
            image.load()
            if value_depth(image) == EIGHT_BITS:
                # One pixel shows whether the mode can become RGB; all of them would take four bytes each.
                image.crop((0, 0, 1, 1)).convert("RGB")
    except MemoryError:
        raise  # the machine's, not the file's
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        kind = f"; it is {UNREAD_TIFF}" if facts.format == "TIFF" else ""
        raise DamagedImageError(f"does not decode: {describe(error)}{kind}") from error


def _check_jpeg(data: bytes) -> bool:
    """Return whether libjpeg-turbo decodes a JPEG; False if its kind is left to Pillow."""
    with translate_errors("its header cannot be read"):
        open_pillow(data).close()  # training will open it with Pillow, which parses more of the header
    warning = find_warning(data)
    if not warning:
        return True
    end = examine(data).end - len(END)
    # TurboJPEG has no name for its sampling factors ("tjDecompressHeader3(): ..."), or libjpeg-turbo lacks its process.
    if warning.startswith("tj") or "nsupported" in warning:
        _check_last_scan(data, end)
        return False
    left_over = _LEFT_OVER.search(warning)
    if not left_over:
        raise DamagedImageError(f"does not decode: {warning}")
    if len({*data[end - int(left_over[1]) : end]}) > 1:
        raise DamagedImageError(f"has data left when all pixels are decoded, so some are wrong: {warning}")
    return True


def _check_last_scan(data: bytes, end: int) -> None:
    """Look for a cut in a JPEG whose sampling factors only Pillow decodes, though it ignores libjpeg's warnings.

    Bytes that are added to a complete scan change no pixel; where codes are missing, they are read in their place.
    """
    with translate_errors("does not decode", MemoryError):
        whole, longer = (zlib.crc32(open_pillow(data[:end] + more + END).tobytes()) for more in (b"", _NOISE))
    if whole != longer:
        raise DamagedImageError("does not decode: its last scan is cut short")


def _check_chunks(data: bytes) -> None:
    """Compare the chunks of a PNG with their CRCs, which Pillow skips for those that hold the pixels."""
    start = 8  # https://www.w3.org/TR/png-3/#5Chunk-layout: length, type, data, CRC
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        if end <= len(data) and zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            kind = data[start + 4 : start + 8].decode("ascii", "backslashreplace")
            raise DamagedImageError(f"does not decode: the CRC of its chunk {kind} at byte {start} is wrong")
        start = len(data) if data[start + 4 : start + 8] == b"IEND" else end


def format_name(image: Image.Image) -> str:
    """Return the format; a multi-picture file (MPO) is a JPEG with more JPEGs after it."""
    return "JPEG" if image.format == "MPO" else image.format or ""
