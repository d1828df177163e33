"""Make small pictures of images for a browser, perhaps with boxes and masks. Find media types of image files."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageDraw

from dbloader.errors import DamagedImageError, ImageError, NotAnImageError
from dbloader.images.info import read_facts
from dbloader.images.jpeg import examine
from dbloader.images.pillow import (
    EIGHT_BITS,
    GRAY_16,
    KNOWN_RANGE,
    TURNS,
    decoding_bytes,
    gray_values,
    open_pillow,
    translate_errors,
    value_depth,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from dbloader.images.info import Facts

# A file with at most this many bytes and pixels is used unchanged as the thumbnail. Pixels are limited, because 20 kB
# may decode to gigabytes.
_SMALL, _SMALL_PIXELS = 20_000, 2**22
_MOST = 400_000_000  # limit of memory for decoding an image, in bytes
_LARGE = 50_000_000  # bytes of memory; `thumbnail` decodes an image that needs more in its context ``large``
_MOST_LABELS = 64  # a gray mask with more different values than this gets no colors
_MOST_LEGEND = 2**24  # in a mask with more pixels than this, values are not counted
# Dark blue, red, yellow: brightness rises evenly, so the colors keep their order in gray and for color-blind people.
_DEPTH_ANCHORS = np.array([(13, 8, 135), (126, 3, 168), (237, 104, 60), (240, 249, 33)])
_DEPTH_COLORS = bytes(
    round(float(np.interp(value, (0, 85, 170, 255), channel))) for value in range(256) for channel in _DEPTH_ANCHORS.T
)
_LOSSLESS_PX = 1600  # pictures of this size replace images that browsers cannot show, so they are lossless
_OPACITY = 0.6  # of a mask
_BOX_PX = 120  # the lines of boxes are 1 pixel wide for every 120 pixels of the picture's longer side
_STEPS = (Image.Transpose.TRANSPOSE, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)  # of TURNS
_MAGIC = re.compile(
    rb"(?P<jpeg>\xff\xd8\xff)|(?P<png>\x89PNG\r\n\x1a\n)|(?P<gif>GIF8[79]a)|"
    rb"(?P<webp>RIFF.{4}WEBP)|(?P<avif>.{4}ftypavi[fs])",
    re.DOTALL,
)


def media_type(data: bytes) -> str | None:
    """Return the media type of a file, from its first bytes; None if some browsers do not show the format."""
    match = _MAGIC.match(data)
    return None if match is None else f"image/{match.lastgroup}"


def header_of(image: bytes) -> Facts:
    """Return the facts in the header of an image file. Add "the image" to an error message without a subject."""
    try:
        return read_facts(image)
    except NotAnImageError as error:
        raise NotAnImageError(f"{error}" if f"{error}".startswith("its ") else f"the image {error}") from error


def shown_orientation(image: Any) -> int:
    """Return the EXIF orientation, 1 to 8, that browsers apply to an image; 1 for an array or without valid EXIF.

    A WebP has 1, because browsers ignore its EXIF. They also ignore XMP. A TIFF has 1, because Pillow turns it upright.
    """
    value, exif = 1, Image.Exif()
    with suppress(DamagedImageError), translate_errors("its EXIF cannot be read"), open_pillow(image) as opened:
        if opened.format not in ("TIFF", "WEBP"):
            exif.load(opened.info.get("exif", b""))
            value = exif.get(ExifTags.Base.Orientation, 1)
    return value if value in range(1, 9) else 1


def value_range(image: Any) -> tuple[float, float] | None:
    """Return the least and the greatest finite value of an image (bytes or an array).

    Return None if the image has 8 bits per value or no finite value, cannot be decoded, or is too large to decode.
    """
    with suppress(ImageError):
        if isinstance(image, np.ndarray):
            return _ends(image) if image.dtype != np.uint8 and image.dtype.kind in "iuf" else None
        facts = header_of(image)
        if facts.depth == EIGHT_BITS or facts.width * facts.height * decoding_bytes(facts.format) > _MOST:
            return None
        with translate_errors("the image does not decode", MemoryError), open_pillow(image) as opened:
            depth = value_depth(opened)
            return None if depth == EIGHT_BITS else _ends(_values(opened, depth))
    return None


def thumbnail(
    image: Any,
    px: int,
    *,
    is_field: bool = False,
    large: AbstractContextManager[object] | None = None,
    window: tuple[float, float] | None = None,
) -> tuple[bytes, str]:
    """Return (a small picture of an image, its media type). No side of the picture exceeds ``px``.

    A file of at most 20 kB that browsers show is its own thumbnail. Other images are turned upright by their EXIF, like
    in browsers. If values are not uint8, the least becomes black and the greatest white. With ``is_field``, some
    gray files get colors. If a uint8 file has at most 64 different values, each value gets a color. A file that is not
    uint8 gets colors from dark blue (the least value) to yellow.

    Args:
        image: The image, bytes or an array.
        px: Pixels of the longer side.
        is_field: Whether ``image`` is an extra field of a record, such as a mask, and not the record's image.
        large: A context, such as a lock. Images that need more than 50 MB are decoded inside this context.
        window: For values that are not uint8: the value to show as black, and the greater value to show as white. None
            means the least and the greatest value.

    Raises:
        ImageError: The image cannot be decoded, or needs more than 400 MB for decoding.
    """
    if isinstance(image, np.ndarray):
        return _encode(_from_array(image, px, window), px, lossless=True)
    facts = header_of(image)
    kind, pixels = media_type(image), facts.width * facts.height
    as_stored = facts.depth == EIGHT_BITS and not facts.frames and (facts.format == "JPEG" or not is_field)
    if kind and as_stored and len(image) <= _SMALL and pixels <= _SMALL_PIXELS:
        return image, kind
    needed = pixels * decoding_bytes(facts.format)
    if facts.format == "JPEG":  # decoded at an eighth of its size; a progressive JPEG also needs all coefficients
        needed = examine(image).coefficient_bytes + pixels // 16
    if needed > _MOST:
        raise NotAnImageError(
            f"the image is too large for a preview: decoding its {facts.width:,} x {facts.height:,} pixels takes "
            f"{needed // 10**6:,} MB, and {_MOST // 10**6} MB are allowed; download it to see it"
        )
    with large if large and needed > _LARGE else nullcontext():
        return _decode(image, facts, px, window, is_field=is_field)


def draw_over(
    picture: bytes, image: Any, size: tuple[int, int], boxes: Iterable[tuple[Sequence[float], str]], masks: list[bytes]
) -> tuple[bytes, str]:
    """Draw boxes and masks over ``picture``, a thumbnail of ``image``. Return the result and its media type.

    ``size`` is the width and height of the stored image. Each box has (left, top, right, bottom) in pixels of this
    image, and Pillow's name of a color. Masks are image files. Raise ImageError if picture or mask cannot be decoded.
    """
    with translate_errors("the image does not decode", MemoryError), open_pillow(picture) as opened:
        shown = opened.convert("RGB")
    shown = _upright(shown, shown_orientation(picture))  # needed if a small file is its own thumbnail
    for mask in masks:
        drawn, _ = thumbnail(mask, max(shown.size), is_field=True)
        with translate_errors("the mask does not decode", MemoryError), open_pillow(drawn) as opened:
            layer = opened.convert("RGBA").resize(shown.size, Image.Resampling.NEAREST)
        shown.paste(layer, mask=layer.getchannel("A").point(lambda alpha: round(alpha * _OPACITY)))
    orientation = shown_orientation(image)
    layer = Image.new("RGBA", shown.size[::-1] if orientation > 4 else shown.size)
    pen, scales = ImageDraw.Draw(layer), [side / whole for side, whole in zip(layer.size, size, strict=True)] * 2
    for box, color in boxes:
        left, top, right, bottom = (part * scale for part, scale in zip(box, scales, strict=True))
        if left <= right and top <= bottom:
            pen.rectangle((left, top, right, bottom), outline=color, width=max(2, max(shown.size) // _BOX_PX))
    layer = _upright(layer, orientation)
    shown.paste(layer, mask=layer)
    file = io.BytesIO()
    shown.save(file, "JPEG", quality=85, subsampling=0)  # subsampling would remove the colors of thin lines
    return file.getvalue(), "image/jpeg"


def legend_of(data: bytes) -> list[tuple[int, str, float]]:
    """Return (value, color in `thumbnail`, fraction of the pixels) for each value in a mask of at most 64 values.

    A color is "#rrggbb", or "" if the value is transparent. The list is empty for all other images, and for a mask of
    over 16 million pixels.

    Raises:
        ImageError: The image cannot be decoded.
    """
    facts = header_of(data)
    if facts.depth != EIGHT_BITS or facts.format == "JPEG" or facts.width * facts.height > _MOST_LEGEND:
        return []
    with translate_errors("the image does not decode", MemoryError), open_pillow(data) as opened:
        if opened.mode not in ("1", "L", "P"):
            return []
        mask = _mask(opened)
        counts = {value: count for value, count in enumerate(mask.histogram()[:256]) if count}
        if mask.mode != "P" or len(counts) > _MOST_LABELS:
            return []
        palette = [*(mask.getpalette() or []), *bytes(768)]
        shown = {value: bytes(palette[3 * value : 3 * value + 3]).hex() for value in counts}
        clear = mask.info.get("transparency")
        return [(v, "" if v == clear else f"#{shown[v]}", n / (mask.width * mask.height)) for v, n in counts.items()]


def _decode(
    data: bytes, facts: Facts, px: int, window: tuple[float, float] | None, *, is_field: bool
) -> tuple[bytes, str]:
    with translate_errors("the image does not decode", MemoryError), open_pillow(data) as opened:
        depth, image = value_depth(opened), None
        orientation = shown_orientation(data)
        if facts.format == "JPEG":
            image = _small_jpeg(data, facts, px)
            opened.draft(None, (px, px))
        if image is None:
            opened.load()
            image = opened
        if depth != EIGHT_BITS:
            image = _spread(_values(opened, depth), px, window)
            if is_field and image.mode == "L":
                image.putpalette(_DEPTH_COLORS)
        elif is_field and image.mode in ("1", "L", "P"):
            image = _mask(image)
        elif facts.transparent:
            image = image.convert("RGBA")
        elif image.mode == "1":
            image = image.convert("L")
        elif image.mode not in ("L", "RGB"):
            image = image.convert("RGB")
        lossless = depth != EIGHT_BITS or is_field or (px >= _LOSSLESS_PX and facts.format != "JPEG")
        return _encode(_upright(image, orientation), px, lossless=lossless)


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    for step, is_needed in zip(_STEPS, TURNS[orientation], strict=True):
        image = image.transpose(step) if is_needed else image
    return image


def _small_jpeg(data: bytes, facts: Facts, px: int) -> Image.Image | None:
    """Decode a JPEG at a reduced scale, but not below a preview of ``px`` pixels; None if simplejpeg cannot.

    Missing data are gray, as in browsers, so the viewer also shows damaged images.
    """
    scale = min(1.0, px / max(facts.width, facts.height))
    least = {"min_width": round(facts.width * scale), "min_height": round(facts.height * scale)}
    try:
        return Image.fromarray(simplejpeg.decode_jpeg(data, "RGB", strict=False, **least))
    except (ValueError, KeyError):
        return None


def _mask(image: Image.Image) -> Image.Image:
    """Return a mask of mode L or P. A gray mask with at most 64 different values gets a palette of visible colors.

    If the label 0 is black, it becomes transparent, because the viewer shows the mask over the image.
    """
    mask = image if image.mode == "P" else image.convert("L")
    if mask.mode == "L" and sum(map(bool, mask.histogram())) <= _MOST_LABELS:
        mask.putpalette([label * odd % 256 for label in range(256) for odd in (67, 151, 211)])
    if mask.mode == "P" and (mask.getpalette() or [])[:3] == [0, 0, 0]:
        mask.info.setdefault("transparency", 0)
    return mask


def _from_array(array: npt.NDArray[Any], px: int, window: tuple[float, float] | None) -> Image.Image:
    """Convert an array to an image. Its shape is (height, width), (height, width, channels) or (channels, ...)."""
    pixels = array
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        pixels = array.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if not (pixels.ndim == 2 or pixels.shape[2:] in ((3,), (4,))) or not array.size or array.dtype.kind not in "biuf":
        raise NotAnImageError(f"the image is an array of {array.dtype}, shape {array.shape}: it cannot be drawn")
    return Image.fromarray(np.ascontiguousarray(pixels)) if array.dtype == np.uint8 else _spread(pixels, px, window)


def _values(opened: Image.Image, depth: str) -> npt.NDArray[Any]:
    return gray_values(opened) if opened.mode in GRAY_16 and depth in KNOWN_RANGE else np.asarray(opened)


def _ends(array: npt.NDArray[Any]) -> tuple[float, float] | None:
    """Return the least and the greatest finite value; None if there is none."""
    finite = np.isfinite(array)
    some = array[finite]
    return (some.min().item(), some.max().item()) if some.size else None


def _spread(array: npt.NDArray[Any], px: int, window: tuple[float, float] | None) -> Image.Image:
    """Scale the values in ``window``, or all finite values, to 8 bits. Values that are not finite become black."""
    step = max(1, max(array.shape[:2]) // (2 * px))
    with np.errstate(all="ignore"):
        array = array[::step, ::step].astype(np.float32)
        low, high = window or _ends(array) or (0, 1)
        scaled = np.clip((array - low) / (high - low if high > low else 1), 0, 1) * 255
        return Image.fromarray(np.where(np.isfinite(array), scaled, 0).astype(np.uint8))


def _encode(image: Image.Image, px: int, *, lossless: bool) -> tuple[bytes, str]:
    image.thumbnail((px, px), Image.Resampling.LANCZOS)  # for an image with a palette, Pillow uses NEAREST instead
    file = io.BytesIO()
    if lossless or image.mode not in ("L", "RGB"):
        image.save(file, "PNG")
        return file.getvalue(), "image/png"
    image.save(file, "JPEG", quality=85)
    return file.getvalue(), "image/jpeg"
