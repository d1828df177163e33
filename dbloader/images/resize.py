"""Make an image file smaller, or load its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, JpegImagePlugin

from dbloader.errors import DamagedImageError, PixelRangeError
from dbloader.images.info import format_name, read_facts
from dbloader.images.pillow import EIGHT_BITS, decoding_bytes, mend_gray, open_pillow, scale_to_8_bits, translate_errors
from dbloader.images.tiled.encode import encode_image

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from dbloader.images.info import Facts

DEFAULT_QUALITY = 95

# Below this opacity (0 to 255), the colors that Pillow computes for a smaller image are inexact.
_SEE_THROUGH = 16

# Memory that resizing needs, in bytes per pixel of the original image (measured).
_OPENED = 5  # 4 for RGB, and 1 more for a palette
_TRANSPARENT = 12  # at most, for a transparent color: the image, a copy with alpha, and a copy multiplied by alpha
_DEEP = 13  # at most, for gray in a PGM file: copies of 32 and 16 bits, and an array; 12.53 with glibc 2.41
_WEBP = 8  # added for a WebP file, because libwebp needs memory too

# Bytes per pixel of the smaller image, and of Pillow's intermediate image, which has the new width and the old height.
_SMALLER = 4
_SMALLER_TRANSPARENT = 7  # includes the separate bands, and the image composed of them

_STRIP = 2**20  # bytes of pixels that are converted in one step

_FORMATS = ("JPEG", "WEBP", "PNG", "BMP", "PPM", "TIFF")


class LoadedImage(NamedTuple):
    """Pixels of an image file, and the properties of the file that an encoder needs."""

    pixels: Image.Image  # without a palette if the size was changed
    format: str  # format for encoding the pixels: the file's format, or PNG
    subsampling: int  # Pillow's number for a JPEG's chroma subsampling: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0
    options: Mapping[str, Any]  # Pillow's options for encoding, such as color profile and EXIF


def resizing_bytes(facts: Facts, size: tuple[int, int]) -> int:
    """Return the largest number of bytes that ``load_image`` allocates for pixels."""
    pixels, height = facts.width * facts.height, facts.height
    if facts.format == "JPEG":
        # While decoding, libjpeg divides both sides by up to 8, until they are below four times the new sides.
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
    """Return an image file in another size, and the facts of the new file.

    The filter is Lanczos. Color profile, EXIF, gray (8 or 16 bits), alpha and CMYK are kept; palettes become full
    colors. JPEG and WebP are encoded with the given quality. A JPEG keeps its chroma subsampling, but a rare
    subsampling becomes 4:4:4. PNG, BMP, PPM and TIFF keep their format and are encoded without loss. All other formats
    become PNG. If a file has several frames, only the first is kept.
    """
    pixels, name, subsampling, options = load_image(data, size)
    if name in ("JPEG", "WEBP"):
        options = {**options, "quality": quality}
    if name == "JPEG":
        options = {**options, "subsampling": subsampling}
    with translate_errors("cannot be encoded again"):
        file = encode_image(pixels, name, options)
    return file, read_facts(file)


def load_image(data: bytes, size: tuple[int, int] | None) -> LoadedImage:
    """Return the pixels of an image file in another size. If ``size`` is None, the size is kept."""
    what = "does not decode" if size is None else "cannot be resized"
    with translate_errors(what, PixelRangeError), open_pillow(data) as image:
        name = format_name(image)
        subsampling = max(JpegImagePlugin.get_sampling(image), 0) if name == "JPEG" else 0
        options = _options(image, name)
        if size is None:
            image.load()
            pixels: Image.Image = image
        else:
            # libjpeg scales a large JPEG while decoding. The result has at least twice the new width and height.
            draft = image.draft(None, (2 * size[0], 2 * size[1]))
            pixels = _resized(_full_colors(mend_gray(image)), size, draft[1] if draft else None)
    return LoadedImage(pixels, name if name in _FORMATS else "PNG", subsampling, options)


def load_pixels(data: bytes, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file in another size. If ``size`` is None, the size is kept.

    The array is uint8, shape (height, width, 3), RGB, 0 to 255. As in ``decode_pil``, EXIF is not applied, alpha is
    dropped, and values of 16 bits are reduced to their upper 8 bits.

    Raises:
        DamagedImageError: The file does not decode.
        PixelRangeError: The values have no known range.
    """
    with translate_errors("does not decode", DamagedImageError, PixelRangeError):
        if size is not None:
            return _rgb(load_image(data, size).pixels)
        with open_pillow(data) as image:
            return _rgb(image)


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    # Convert the image in strips. A whole converted image would take 4 more bytes per pixel. Pillow would also allocate
    # it in thousands of pieces. malloc kept up to 64 MB of freed pieces for each thread.
    image.load()  # applies the orientation of a TIFF, which may swap width and height
    image = scale_to_8_bits(image)
    array = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP // (3 * image.width))
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        array[top : top + rows] = np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))
    return array


def _full_colors(image: Image.Image) -> Image.Image:
    """Return the image in a mode that can be resized, such as RGB for a palette."""
    mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None) -> Image.Image:
    smaller = image.resize(size, Image.Resampling.LANCZOS, box)
    if image.mode not in ("LA", "RGBA"):
        return smaller
    # Pillow weights colors by alpha, so transparent pixels lose their colors. Training drops the alpha, so these pixels
    # would get wrong colors. To prevent this, take their colors from bands that are resized separately.
    bands = [band.resize(size, Image.Resampling.LANCZOS, box) for band in image.split()]
    seen = bands[-1].point([255 * (opacity >= _SEE_THROUGH) for opacity in range(256)])
    return Image.composite(smaller, Image.merge(image.mode, bands), seen)


def _options(image: Image.Image, name: str) -> Mapping[str, Any]:
    options: dict[str, Any] = {key: image.info[key] for key in ("icc_profile", "exif") if image.info.get(key)}
    if name == "WEBP":
        options["exact"] = True  # keeps the colors of transparent pixels
    elif name == "TIFF":
        options["compression"] = "tiff_adobe_deflate"
    elif name != "JPEG" and image.mode == "I;16" and "transparency" in image.info:
        options["transparency"] = image.info["transparency"]  # a color, because Pillow has no 16-bit mode with alpha
    return options
