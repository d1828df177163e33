"""What must be known of an image file: what it is, and whether it decodes."""

from __future__ import annotations

import io
import re
import zlib
from typing import NamedTuple

import simplejpeg
from PIL import Image, UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError
from dbloader.jpeg import State, examine

# libjpeg's warning that bytes are left over when all pixels are there. Some cameras write padding there, and the pixels
# are right; but of 3,000 photographs with one bit flipped, 705 gave this warning and no other, all of them with wrong
# pixels. Padding is of one value, what is left of an image is not (none of those 705 was).
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


class Facts(NamedTuple):
    """An image file's format (Pillow's name for it), and its width and height in pixels, as encoded."""

    format: str
    width: int
    height: int


def facts(data: bytes) -> Facts:
    """Gives what the header of an image file says; decodes nothing.

    Raises:
        NotAnImageError: It is in no format that Pillow knows, or has more pixels than Pillow allows.
    """
    if data.startswith(b"\xff\xd8"):
        # 3 us where Pillow takes 45, which is much for conversions that check nothing.
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if height * width <= (Image.MAX_IMAGE_PIXELS or 2**32):
                return Facts("JPEG", width, height)
        except (ValueError, KeyError):
            pass  # a kind of JPEG that this decoder refuses or has no name for; Pillow decides
    try:
        with Image.open(io.BytesIO(data)) as image:
            return Facts(format_name(image), image.width, image.height)
    except UnidentifiedImageError as error:
        what = "is empty" if not data else f"is in no known image format (it begins with {data[:4]!r})"
        raise NotAnImageError(what) from error
    except Image.DecompressionBombError as error:
        raise NotAnImageError(f"is too large to be decoded: {told(error)}") from error
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise NotAnImageError(f"its header cannot be read: {told(error)}") from error


def check_decodes(data: bytes, facts: Facts) -> None:
    """Decodes an image, whole, and lets the pixels go.

    A JPEG is decoded at an eighth of its size: every coefficient is still read, which is where damage shows, but the
    pixels that nobody will see cost neither time nor memory.

    Raises:
        DamagedImageError: It does not decode, or only with a warning that pixels are wrong or missing.
    """
    if facts.format == "PNG":
        _check_chunks(data)
    if facts.format == "JPEG" and _decodes_strictly(data):
        return
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load() if image.mode == "RGB" else image.convert("RGB")  # which would copy it
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"does not decode: {told(error)}") from error


def _decodes_strictly(data: bytes) -> bool:
    """Says whether libjpeg-turbo decodes a JPEG; False if it refuses this kind, and Pillow, which tells less, must.

    Raises:
        DamagedImageError: It does not decode, or only with a warning.
    """
    try:
        Image.open(io.BytesIO(data)).close()  # training will open it with Pillow, which parses more of the header
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"its header cannot be read: {told(error)}") from error
    try:
        simplejpeg.decode_jpeg(data, min_height=1, min_width=1, min_factor=8, strict=True)
    except ValueError as error:
        text = told(error)
        left_over = _LEFT_OVER.search(text)
        end = examine(data).end - len(b"\xff\xd9")
        if text.startswith("tj") or "nsupported" in text:
            # Pillow ignores all warnings of libjpeg, so the codes are followed here.
            structure = examine(data[:end])
            if structure.state is State.DAMAGED:
                raise DamagedImageError(f"does not decode: {structure.reason}") from error
            return False
        if not left_over:
            raise DamagedImageError(f"does not decode: {text}") from error
        if len({*data[end - int(left_over[1]) : end]}) > 1:
            raise DamagedImageError(f"has data left when all pixels are decoded, so some are wrong: {text}") from error
    return True


def _check_chunks(data: bytes) -> None:
    """Compares the chunks of a PNG with their CRCs, which Pillow does not for those that hold the pixels.

    Raises:
        DamagedImageError: A chunk has another.
    """
    start = 8  # https://www.w3.org/TR/png-3/#5Chunk-layout: length, type, data, CRC
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        if end <= len(data) and zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            kind = data[start + 4 : start + 8].decode("ascii", "backslashreplace")
            raise DamagedImageError(f"does not decode: the CRC of its chunk {kind} at byte {start} is wrong")
        start = len(data) if data[start + 4 : start + 8] == b"IEND" else end


def format_name(image: Image.Image) -> str:
    """Gives the format; a multi-picture file (MPO) is a JPEG with more after it."""
    return "JPEG" if image.format == "MPO" else image.format or ""


def told(error: Exception) -> str:
    """Gives what an error says, as a part of a sentence."""
    return f"{error}".rstrip(". ") or type(error).__name__
