"""How an image looks smaller, and its pixels as a file again."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, JpegImagePlugin

from dbloader.errors import DamagedImageError, PixelRangeError
from dbloader.images.info import describe, format_name, read_facts
from dbloader.images.pillow import EIGHT_BITS, decoding_bytes, mend_gray, open_pillow, scale_to_8_bits

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from dbloader.images.info import Facts

DEFAULT_QUALITY = 95

# Below this opacity, of 255, the color that Pillow computes for a pixel is coarse, or lost.
_SEE_THROUGH = 16

# Bytes a pixel of an image that is made smaller, measured: RGB takes 4, a palette 1 beside those. With transparency,
# colors of which one is transparent take most: as they are, with opacity, and multiplied by it. Of more than 8 bits,
# gray of a PGM does: its values in 32 bits, in 16, and the array between.
_OPENED, _TRANSPARENT, _DEEP = 5, 12, 12
# Bytes a pixel of the smaller image, and of the one between, of the new width and the old height; with transparency,
# their bands and what they are mixed of too.
_SMALLER, _SMALLER_TRANSPARENT = 4, 7
# Bytes a pixel that libwebp still holds meanwhile.
_WEBP = 8

_STRIP = 2**20  # bytes

_FORMATS = ("JPEG", "WEBP", "PNG", "BMP", "PPM", "TIFF")


class LoadedImage(NamedTuple):
    """Pixels, and what is kept of the file that they come from.

    Attributes:
        pixels: Of the modes that `resize` tells of; of any mode if the size stays.
        format: What they become again: that of the file, or PNG.
        subsampling: Pillow's number for that of a JPEG's colors: 0 to 2 are 4:4:4, 4:2:2, 4:2:0.
        options: Pillow's, to be encoded with: color profile and EXIF among them.
    """

    pixels: Image.Image
    format: str
    subsampling: int
    options: Mapping[str, Any]


def reduced_size(facts: Facts, *, max_side: int | None, short_side: int | None) -> tuple[int, int] | None:
    """Return the width and height of an image that must be made smaller; None if it need not be.

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
    """Return the most bytes of pixels that ``load_picture`` holds at once."""
    pixels, height = facts.width * facts.height, facts.height
    if facts.format == "JPEG":
        # libjpeg gives less than four times the width and height wanted, unless an eighth of the image's is more.
        pixels = min(pixels, max(16 * size[0] * size[1], pixels // 32))
        height = min(height, max(4 * size[1], height // 4))
    smaller = size[0] * (height + size[1])
    if facts.transparent:
        resizing = _TRANSPARENT * pixels + _SMALLER_TRANSPARENT * smaller
    elif facts.depth != EIGHT_BITS:
        resizing = _DEEP * pixels
    else:
        resizing = _OPENED * pixels + _SMALLER * smaller
    if facts.format == "WEBP":
        resizing += _WEBP * pixels
    return max(decoding_bytes(facts.format) * pixels, resizing)


def resize(data: bytes, size: tuple[int, int], *, quality: int = DEFAULT_QUALITY) -> tuple[bytes, Facts]:
    """Return an image file of another size, with its color mode, color profile, EXIF and, if it can, its format.

    JPEG and WebP are encoded with the quality given, JPEG with the chroma subsampling it had (4:4:4 if that is rare);
    every other format without loss, as PNG if it is not one of PNG, BMP, PPM and TIFF. Palettes become full colors,
    since a mixture of two of its colors is seldom in a palette; gray, alpha and CMYK are kept, and so are 16 bits
    where Pillow reads them, which is in gray images. The filter is Lanczos. Of several pictures in a file the first
    stays.

    Raises:
        DamagedImageError: The image does not decode, or cannot be encoded again.
    """
    return encode_picture(load_picture(data, size), quality=quality)


def load_picture(data: bytes, size: tuple[int, int] | None) -> LoadedImage:
    """Return the pixels of an image file in another size, or in its own if that is None.

    Raises:
        DamagedImageError: The image does not decode.
    """
    try:
        with open_pillow(data) as image:
            name = format_name(image)
            subsampling = max(JpegImagePlugin.get_sampling(image), 0) if name == "JPEG" else 0
            options = _options(image, name)
            if size is None:
                image.load()
                pixels: Image.Image = image
            else:
                # From a JPEG of many times the size, libjpeg itself may make one of at least twice the size wanted.
                draft = image.draft(None, (2 * size[0], 2 * size[1]))
                pixels = _resized(_full_colours(mend_gray(image)), size, draft[1] if draft else None)
    except PixelRangeError:
        raise
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(
            f"{'does not decode' if size is None else 'cannot be resized'}: {describe(error)}"
        ) from error
    return LoadedImage(pixels, name if name in _FORMATS else "PNG", subsampling, options)


def encode_picture(picture: LoadedImage, *, quality: int) -> tuple[bytes, Facts]:
    """Return the file and its facts; `resize` says more.

    Raises:
        DamagedImageError: Pillow cannot encode it.
    """
    pixels, name, subsampling, options = picture
    if name in ("JPEG", "WEBP"):
        options = {**options, "quality": quality}
    if name == "JPEG":
        options = {**options, "subsampling": subsampling}
    try:
        file = _saved(pixels, name, options)
    except Exception as error:  # as above
        raise DamagedImageError(f"cannot be encoded again: {describe(error)}") from error
    return file, read_facts(file)


def load_pixels(data: bytes, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file, as ``decode_pil`` does, in another size or in its own.

    Returns:
        uint8, shape (height, width, 3), RGB, 0 to 255; EXIF is not applied, opacity is dropped, of 16 bits the upper 8
        are taken.

    Raises:
        DamagedImageError: The image does not decode.
        PixelRangeError: Its values have no known range.
    """
    try:
        if size is not None:
            return _rgb(load_picture(data, size).pixels)
        with open_pillow(data) as image:
            return _rgb(image)
    except (DamagedImageError, PixelRangeError):
        raise
    except Exception as error:  # as above
        raise DamagedImageError(f"does not decode: {describe(error)}") from error


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    # By strips, since Pillow would give the bytes of the whole in thousands of pieces and then as one; of these pieces
    # malloc kept up to 64 MB for each thread. And converted as a whole, every pixel would take four bytes more.
    image.load()  # before which a TIFF has its size as stored, and its orientation still to be applied
    image = scale_to_8_bits(image)
    array = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP // (3 * image.width))
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        array[top : top + rows] = np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))
    return array


def _saved(pixels: Image.Image, name: str, options: Mapping[str, Any]) -> bytes:
    if name == "JPEG":
        try:
            file = io.BytesIO()
            pixels.save(file, name, optimize=True, **options)
            return file.getvalue()
        except OSError:
            pass  # Pillow has room for one or two bytes a pixel when it optimizes; noise at a high quality takes more
    file = io.BytesIO()
    pixels.save(file, name, **options)
    return file.getvalue()


def _full_colours(image: Image.Image) -> Image.Image:
    """Return the image in a mode whose pixels can be mixed."""
    mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None) -> Image.Image:
    smaller = image.resize(size, Image.Resampling.LANCZOS, box)
    if image.mode not in ("LA", "RGBA"):
        return smaller
    # Pillow mixes colors by their opacity, as it must for those that are seen; it leaves none where nothing is. But
    # training, which drops the opacity, sees what is there.
    bands = [band.resize(size, Image.Resampling.LANCZOS, box) for band in image.split()]
    seen = bands[-1].point([255 * (opacity >= _SEE_THROUGH) for opacity in range(256)])
    return Image.composite(smaller, Image.merge(image.mode, bands), seen)


def _options(image: Image.Image, name: str) -> Mapping[str, Any]:
    options: dict[str, Any] = {key: image.info[key] for key in ("icc_profile", "exif") if image.info.get(key)}
    if name == "WEBP":
        options["exact"] = True  # colors too that are not seen
    elif name == "TIFF":
        options["compression"] = "tiff_adobe_deflate"
    elif name != "JPEG" and image.mode == "I;16" and "transparency" in image.info:
        options["transparency"] = image.info["transparency"]  # Pillow has no mode of 16 bits with alpha
    return options
