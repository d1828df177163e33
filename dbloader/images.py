"""What conversion must know of an image file: what it is, whether it decodes, and how it looks smaller."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejpeg
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_QUALITY = 95

# libjpeg's warning about bytes that belong to nothing: it skips them, and the pixels are right.
_HARMLESS = "extraneous bytes"


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
            return Facts("JPEG", width, height)
        except ValueError:
            pass  # a kind of JPEG that this decoder refuses; Pillow decides
    try:
        with Image.open(io.BytesIO(data)) as image:
            return Facts(_name(image), image.width, image.height)
    except UnidentifiedImageError as error:
        what = "is empty" if not data else f"is in no known image format (it begins with {data[:4]!r})"
        raise NotAnImageError(what) from error
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise NotAnImageError(f"its header cannot be read: {_text(error)}") from error


def check_decodes(data: bytes, facts: Facts) -> None:
    """Decodes an image, whole, and lets the pixels go.

    A JPEG is decoded at an eighth of its size: every coefficient is still read, which is where damage shows, but the
    pixels that nobody will see cost neither time nor memory.

    Raises:
        DamagedImageError: It does not decode, or only with a warning that pixels are wrong or missing.
    """
    if facts.format == "JPEG":
        try:
            Image.open(io.BytesIO(data)).close()  # training will open it with Pillow, which parses more of the header
        except Exception as error:  # a Pillow plugin raises whatever its parsing meets
            raise DamagedImageError(f"its header cannot be read: {_text(error)}") from error
        try:
            simplejpeg.decode_jpeg(data, min_height=1, min_width=1, min_factor=8, strict=True)
        except ValueError as error:
            text = _text(error)
            if text.startswith("tj") or "nsupported" in text:
                pass  # a kind of JPEG that this decoder refuses; Pillow decides
            elif _HARMLESS in text:
                return
            else:
                raise DamagedImageError(f"does not decode: {text}") from error
        else:
            return
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.convert("RGB")
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"does not decode: {_text(error)}") from error


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


def resize(data: bytes, size: tuple[int, int], *, quality: int = DEFAULT_QUALITY) -> tuple[bytes, Facts]:
    """Gives an image file of another size, with its colour mode, colour profile, EXIF and, if it can, its format.

    JPEG and WebP are encoded with the quality given, JPEG with the chroma subsampling it had; every other format
    without loss, as PNG if it is not one of PNG, BMP, PPM and TIFF. Palettes become full colours, since a mixture of
    two of its colours is seldom in a palette; 16 bits, gray, alpha and CMYK are kept. The filter is Lanczos.

    Raises:
        DamagedImageError: The image does not decode, or cannot be encoded again.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            name = _name(image)
            options = _encoding(image, name, quality)
            # From a JPEG of many times the size, libjpeg itself may make one of at least twice the size wanted.
            image.draft(None, (2 * size[0], 2 * size[1]))
            smaller = _full_colours(image).resize(size, Image.Resampling.LANCZOS)
        file = io.BytesIO()
        name = name if name in ("JPEG", "WEBP", "PNG", "BMP", "PPM", "TIFF") else "PNG"
        smaller.save(file, name, **options)
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"cannot be resized: {_text(error)}") from error
    return file.getvalue(), Facts(name, *size)


def _full_colours(image: Image.Image) -> Image.Image:
    """Gives the image in a mode whose pixels can be mixed."""
    if image.mode in ("P", "PA") or "transparency" in image.info:
        has_alpha = image.mode == "PA" or "transparency" in image.info
        return image.convert("RGBA" if has_alpha else "RGB")
    if image.mode == "1":
        return image.convert("L")
    return image


def _encoding(image: Image.Image, name: str, quality: int) -> Mapping[str, Any]:
    options: dict[str, Any] = {}
    for key in ("icc_profile", "exif"):
        if image.info.get(key):
            options[key] = image.info[key]
    if name == "JPEG":
        options |= {"quality": quality, "optimize": True}
        sampling = JpegImagePlugin.get_sampling(image)
        if sampling != -1:
            options["subsampling"] = sampling
    elif name == "WEBP":
        options["quality"] = quality
    elif name == "TIFF":
        options["compression"] = "tiff_adobe_deflate"
    return options


def _name(image: Image.Image) -> str:
    """Gives the format; a multi-picture file (MPO) is a JPEG with more after it."""
    return "JPEG" if image.format == "MPO" else image.format or ""


def _text(error: Exception) -> str:
    return f"{error}".rstrip(". ") or type(error).__name__
