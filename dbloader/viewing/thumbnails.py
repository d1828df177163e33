"""Make small pictures of records for the browser."""

from __future__ import annotations

import io
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import Image

from dbloader.errors import NotAnImageError, OptionError
from dbloader.images.jpeg import examine
from dbloader.images.pillow import (
    EIGHT_BITS,
    GRAY_16,
    KNOWN_RANGE,
    decoding_bytes,
    gray_values,
    open_pillow,
    translate_errors,
    value_depth,
)  # fmt: skip
from dbloader.queries.cache import LRUCache
from dbloader.viewing.files import header_of, image_of, media_type, shown_orientation

if TYPE_CHECKING:
    import numpy.typing as npt

    from dbloader.images.info import Facts
    from dbloader.stores.base import Store

SIDES = (160, 240, 320, 480, 640, 1600)
"""Pixels of the longer side. The page requests the size that it shows.

1600 is for images that a browser cannot show as they are stored.
"""

# A smaller file is its own thumbnail: bytes and pixels. The pixels matter because 20 kB may decode to gigabytes.
_SMALL, _SMALL_PIXELS = 20_000, 2**22
_MOST = 400_000_000  # bytes of memory for decoding an image
_LARGE = 50_000_000  # images that need more bytes are decoded one at a time
_CACHE_BYTES = 64 * 2**20
_MOST_LABELS = 64  # a gray mask of more values is shown as brightness
_TURNS = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))  # EXIF orientation


class Thumbnails:
    """Makes thumbnails and keeps the last ones. Threads may share it.

    Images that need more than 50 MB for decoding are decoded one at a time.

    Args:
        cache_bytes: Bytes of thumbnails to keep.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES) -> None:
        self.kept = LRUCache[tuple[bytes, str]](cache_bytes, lambda picture: len(picture[0]))
        self._large = threading.Lock()

    def get(self, store: Store, index: int, px: int, field: int | None = None) -> tuple[bytes, str]:
        """Return a picture of a record, or of the file in a field, and its media type.

        No side of the picture exceeds ``px``, one of ``SIDES``. A file of at most 20 kB that browsers show is its own
        thumbnail. The EXIF orientation is applied, as browsers do. In 16-bit images and in
        arrays that are not uint8, the least value is black and the greatest is white. The labels of a gray mask get
        colors.

        Raises:
            DamagedRecordError: The record is damaged.
            RecordIndexError: No record has this index.
            OptionError: ``px`` is not in ``SIDES``, or the store has no such field.
            ImageError: The image is missing, does not decode, or needs more than 400 MB for decoding.
        """
        if px not in SIDES:
            raise OptionError(f"px must be one of {', '.join(map(str, SIDES))}, got {px}")
        # The place is in the key because a damaged copy has the same digest.
        key = (store.place, store.manifest.digest, index, field, px)
        return self.kept.get(key, lambda: self._make(store, index, px, field))

    def _make(self, store: Store, index: int, px: int, field: int | None) -> tuple[bytes, str]:
        image, is_field = image_of(store, store.read([index])[0], field), field is not None
        if isinstance(image, np.ndarray):
            return _encode(_from_array(image, px), px, lossless=True)
        facts = header_of(image)
        kind, pixels = media_type(image), facts.width * facts.height
        as_stored = facts.depth == EIGHT_BITS and not facts.frames and (facts.format == "JPEG" or not is_field)
        if kind and as_stored and len(image) <= _SMALL and pixels <= _SMALL_PIXELS:
            return image, kind
        needed = pixels * decoding_bytes(facts.format)
        if facts.format == "JPEG":  # decoded at an eighth of its size; a progressive JPEG needs all its coefficients
            needed = examine(image).coefficient_bytes + pixels // 16
        if needed > _MOST:
            raise NotAnImageError(
                f"the image is too large for a preview: to decode its {facts.width:,} x {facts.height:,} pixels takes "
                f"{needed // 10**6:,} MB, and {_MOST // 10**6} MB are allowed; download it to see it"
            )
        with self._large if needed > _LARGE else nullcontext():
            return _thumbnail(image, facts, px, is_field=is_field)


def _thumbnail(data: bytes, facts: Facts, px: int, *, is_field: bool) -> tuple[bytes, str]:
    with translate_errors("the image does not decode", MemoryError), open_pillow(data) as opened:
        depth, image = value_depth(opened), None
        turn = None if facts.format == "TIFF" else _TURNS.get(shown_orientation(data))  # Pillow always turns a TIFF
        if facts.format == "JPEG":
            image = _small_jpeg(data, facts, px)
            opened.draft(None, (px, px))
        if image is None:
            opened.load()
            image = opened
        if depth != EIGHT_BITS:
            image = _spread(gray_values(opened) if opened.mode in GRAY_16 and depth in KNOWN_RANGE else opened, px)
        elif is_field and image.mode in ("1", "L", "P"):
            image = _mask(image)
        elif facts.transparent or image.mode not in ("L", "RGB"):
            image = image.convert("RGBA" if facts.transparent else "L" if image.mode == "1" else "RGB")
        lossless = depth != EIGHT_BITS or is_field or (px == SIDES[-1] and facts.format != "JPEG")
        return _encode(image if turn is None else image.transpose(turn), px, lossless=lossless)


def _small_jpeg(data: bytes, facts: Facts, px: int) -> Image.Image | None:
    """Decode a JPEG at a half to an eighth of its size; None if simplejpeg does not support its kind.

    Missing data are gray, as in browsers: a store may contain damaged images, which are marked.
    """
    scale = min(1.0, px / max(facts.width, facts.height))
    least = {"min_width": round(facts.width * scale), "min_height": round(facts.height * scale)}
    try:
        return Image.fromarray(simplejpeg.decode_jpeg(data, "RGB", strict=False, **least))
    except (ValueError, KeyError):
        return None


def _mask(image: Image.Image) -> Image.Image:
    """Return a mask with its palette; a gray mask of few values gets a palette of visible colors.

    A black label 0 becomes transparent, because the page shows the mask over the image.
    """
    mask = image if image.mode == "P" else image.convert("L")
    if mask.mode == "L" and sum(map(bool, mask.histogram())) <= _MOST_LABELS:
        mask.putpalette([label * odd % 256 for label in range(256) for odd in (67, 151, 211)])
    if mask.mode == "P" and (mask.getpalette() or [])[:3] == [0, 0, 0]:
        mask.info.setdefault("transparency", 0)
    return mask


def _from_array(array: npt.NDArray[Any], px: int) -> Image.Image:
    """Return an image of an array, shape (height, width), (height, width, channels) or (channels, height, width)."""
    pixels = array
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        pixels = array.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if not (pixels.ndim == 2 or pixels.shape[2:] in ((3,), (4,))) or not array.size or array.dtype.kind not in "biuf":
        raise NotAnImageError(f"the image is an array of {array.dtype}, shape {array.shape}: it cannot be drawn")
    return Image.fromarray(np.ascontiguousarray(pixels)) if array.dtype == np.uint8 else _spread(pixels, px)


def _spread(values: Any, px: int) -> Image.Image:
    """Scale values to 8 bits: the least is black, the greatest white. Values that are not finite are black."""
    array = np.asarray(values)
    step = max(1, max(array.shape[:2]) // (2 * px))
    with np.errstate(all="ignore"):
        array = array[::step, ::step].astype(np.float32)
        finite = np.isfinite(array)
        low, high = array.min(where=finite, initial=np.inf), array.max(where=finite, initial=-np.inf)
        scaled = (array - low) / (high - low if high > low else 1) * 255
        return Image.fromarray(np.where(finite, scaled, 0).astype(np.uint8))


def _encode(image: Image.Image, px: int, *, lossless: bool) -> tuple[bytes, str]:
    image.thumbnail((px, px), Image.Resampling.LANCZOS)  # with a palette, Pillow uses the nearest pixel
    file, is_png = io.BytesIO(), lossless or image.mode not in ("L", "RGB")
    image.save(file, "PNG" if is_png else "JPEG", **({} if is_png else {"quality": 85}))
    return file.getvalue(), ("image/png" if is_png else "image/jpeg")
