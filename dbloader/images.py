"""What conversion must know of an image file: what it is, whether it decodes, and how it looks smaller."""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejpeg
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError
from dbloader.jpeg import State, examine

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_QUALITY = 95

# libjpeg's warning that bytes are left over when all pixels are there. Some cameras write padding there, and the pixels
# are right; but of 3,000 photographs with one bit flipped, 705 gave this warning and no other, all of them with wrong
# pixels. Padding is of one value, what is left of an image is not (none of those 705 was).
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")

# Below this opacity, of 255, the colour that Pillow computes for a pixel is coarse, or lost.
_SEE_THROUGH = 16


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
            return Facts(_name(image), image.width, image.height)
    except UnidentifiedImageError as error:
        what = "is empty" if not data else f"is in no known image format (it begins with {data[:4]!r})"
        raise NotAnImageError(what) from error
    except Image.DecompressionBombError as error:
        raise NotAnImageError(f"is too large to be decoded: {_text(error)}") from error
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise NotAnImageError(f"its header cannot be read: {_text(error)}") from error


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
        raise DamagedImageError(f"does not decode: {_text(error)}") from error


def _decodes_strictly(data: bytes) -> bool:
    """Says whether libjpeg-turbo decodes a JPEG; False if it refuses this kind, and Pillow, which tells less, must.

    Raises:
        DamagedImageError: It does not decode, or only with a warning.
    """
    try:
        Image.open(io.BytesIO(data)).close()  # training will open it with Pillow, which parses more of the header
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"its header cannot be read: {_text(error)}") from error
    try:
        simplejpeg.decode_jpeg(data, min_height=1, min_width=1, min_factor=8, strict=True)
    except ValueError as error:
        text = _text(error)
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


def reduced_size(facts: Facts, *, max_side: int | None, short_side: int | None) -> tuple[int, int] | None:
    """Gives the width and height of an image that must be made smaller; None if it need not be.

    Args:
        facts: The image's.
        max_side: The most pixels of the longer side.
        short_side: The pixels of the shorter side, if that is longer now.
    """
    side, limit = max(facts.width, facts.height), max_side
    if short_side is not None:
        side, limit = min(facts.width, facts.height), short_side
    if limit is None or side <= limit:
        return None
    return max(1, round(facts.width * limit / side)), max(1, round(facts.height * limit / side))


def resizing_bytes(facts: Facts, size: tuple[int, int]) -> int:
    """Gives the most bytes of pixels that ``resize`` holds at once.

    libjpeg gives less than four times the width and height wanted, unless an eighth of the image's is more.
    """
    pixels = facts.width * facts.height
    if facts.format == "JPEG":
        pixels = min(pixels, max(16 * size[0] * size[1], pixels // 32))
    return 4 * pixels


def resize(data: bytes, size: tuple[int, int], *, quality: int = DEFAULT_QUALITY) -> tuple[bytes, Facts]:
    """Gives an image file of another size, with its colour mode, colour profile, EXIF and, if it can, its format.

    JPEG and WebP are encoded with the quality given, JPEG with the chroma subsampling it had (4:4:4 if that is rare);
    every other format without loss, as PNG if it is not one of PNG, BMP, PPM and TIFF. Palettes become full colours,
    since a mixture of two of its colours is seldom in a palette; gray, alpha and CMYK are kept, and so are 16 bits
    where Pillow reads them, which is in gray images. The filter is Lanczos. Of several pictures in a file the first
    stays.

    Raises:
        DamagedImageError: The image does not decode, or cannot be encoded again.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            name = _name(image)
            options = _encoding(image, name, quality)
            # From a JPEG of many times the size, libjpeg itself may make one of at least twice the size wanted.
            draft = image.draft(None, (2 * size[0], 2 * size[1]))
            smaller = _resized(_full_colours(image), size, draft[1] if draft else None)
        file = io.BytesIO()
        name = name if name in ("JPEG", "WEBP", "PNG", "BMP", "PPM", "TIFF") else "PNG"
        smaller.save(file, name, **options)
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"cannot be resized: {_text(error)}") from error
    return file.getvalue(), Facts(name, *size)


def _full_colours(image: Image.Image) -> Image.Image:
    """Gives the image in a mode whose pixels can be mixed."""
    mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None) -> Image.Image:
    smaller = image.resize(size, Image.Resampling.LANCZOS, box)
    if image.mode not in ("LA", "RGBA"):
        return smaller
    # Pillow mixes colours by their opacity, as it must for those that are seen; it leaves none where nothing is. But
    # training, which drops the opacity, sees what is there.
    bands = [band.resize(size, Image.Resampling.LANCZOS, box) for band in image.split()]
    seen = bands[-1].point([255 * (opacity >= _SEE_THROUGH) for opacity in range(256)])
    return Image.composite(smaller, Image.merge(image.mode, bands), seen)


def _encoding(image: Image.Image, name: str, quality: int) -> Mapping[str, Any]:
    options: dict[str, Any] = {}
    for key in ("icc_profile", "exif"):
        if image.info.get(key):
            options[key] = image.info[key]
    if name == "JPEG":
        options |= {"quality": quality, "optimize": True}
        options["subsampling"] = max(JpegImagePlugin.get_sampling(image), 0)
    elif name == "WEBP":
        options |= {"quality": quality, "exact": True}  # colours too that are not seen
    elif name == "TIFF":
        options["compression"] = "tiff_adobe_deflate"
    elif image.mode == "I;16" and "transparency" in image.info:
        options["transparency"] = image.info["transparency"]  # Pillow has no mode of 16 bits with alpha
    return options


def _name(image: Image.Image) -> str:
    """Gives the format; a multi-picture file (MPO) is a JPEG with more after it."""
    return "JPEG" if image.format == "MPO" else image.format or ""


def _text(error: Exception) -> str:
    return f"{error}".rstrip(". ") or type(error).__name__
