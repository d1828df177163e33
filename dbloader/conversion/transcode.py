"""Make the stored form of an image file: the unchanged file, a smaller or tiled file, or pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dbloader._options import checked_flag, whole_number
from dbloader.errors import DamagedImageError, NotTiledError, OptionError, PixelRangeError
from dbloader.images.info import Facts
from dbloader.images.pillow import EIGHT_BITS, decoding_bytes
from dbloader.images.resize import DEFAULT_QUALITY, load_image, load_pixels, resize, resizing_bytes
from dbloader.images.tiled.encode import TILE_WIDTH, encode_tiled, find_jpegtran, tile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_SIDE, _SHORT_SIDE = "max_side (--max-side)", "short_side (--short-side)"
_SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")  # Pillow calls these 0, 1 and 2

# Memory in bytes per pixel.
_TILING = 9  # `tile` compares pixels in three arrays of 3 bytes; before that, jpegtran takes only 6
_ENCODING = 6  # Pillow's image takes 4, and libjpeg's input 2
_RGB = 3  # the array of stored pixels
_PILLOW = 4  # Pillow's image, from which the array is made
_RAW_DEEP = 5  # extra memory for the conversion of 16-bit values to 8 bits


class Stored(NamedTuple):
    """The stored form of an image."""

    image: bytes | npt.NDArray[np.uint8]  # the file; or uint8, shape (height, width, 3), RGB
    facts: Facts | None  # the format is "" for pixels; None for a file of unknown format
    lengths: bytes | None = None  # lengths of the tiles; None if the image is not tiled
    untiled: str = ""  # reason why the image could not be tiled; "" if there is no such reason
    reencoded: bool = False  # whether pixels changed, because the image was made smaller or encoded with a quality


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat:
    """How ``convert`` stores images. By default, the bytes of the files do not change.

    Args:
        short_side: Limit for the shorter side of images, in pixels. Images beyond the limit are made smaller.
        max_side: Limit for the longer side of images, in pixels. Images beyond the limit are made smaller.
        quality: JPEG and WebP quality, 1 to 100, of images that are made smaller; default 95. If given with ``tile``,
            all JPEGs are encoded again with this quality.
        tile: Store JPEGs tiled (`dbloader.images.tiled`), so a crop is decoded without the rest of its image. The
            field ``tiles`` contains the lengths of the tiles in bytes. The program ``jpegtran`` tiles JPEGs without
            loss. Only JPEGs that become smaller are encoded again; with ``quality``, all JPEGs. Bytes after the end
            of a JPEG, such as a second picture, are left out. An image that cannot be tiled is stored untiled, and
            reported.
        tile_width: Target width of tiles in pixels; default 32.
        raw: Store pixels, not files: uint8 arrays of shape (height, width, 3), RGB, the result of ``decode_pil``.
            JPEG photographs become about six times larger. Values of unknown range, such as floats, are rejected.

    Raises:
        TypeError: A value has the wrong type.
        OptionError: A value is out of its range; two options exclude each other; or ``jpegtran`` is needed but not
            installed.
    """

    short_side: int | None = None
    max_side: int | None = None
    quality: int | None = None
    tile: bool = False
    tile_width: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        for name, most in (("short_side", None), ("max_side", None), ("tile_width", None), ("quality", 100)):
            option = f"{name} (--{name.replace('_', '-')})"
            number = whole_number(option, getattr(self, name), 1, most, none=True)
            object.__setattr__(self, name, number)  # the manifest cannot store NumPy's integers
        for name in ("tile", "raw"):
            object.__setattr__(self, name, checked_flag(name, getattr(self, name)))
        resizes = self.max_side is not None or self.short_side is not None
        if self.max_side is not None and self.short_side is not None:
            raise OptionError(f"{_MAX_SIDE} and {_SHORT_SIDE} both limit the size of an image: choose one")
        if self.raw and (self.tile or self.tile_width is not None):
            raise OptionError("raw (--raw) stores pixels, and tile (--tile) stores JPEGs: choose one")
        if self.raw and self.quality is not None:
            raise OptionError("raw (--raw) stores pixels, which have no quality: leave out quality (--quality)")
        if self.tile_width is not None and not self.tile:
            raise OptionError("tile_width (--tile-width) affects only tiled JPEGs: give tile (--tile) too")
        if self.quality is not None and not self.tile and not resizes:
            raise OptionError(
                f"quality (--quality) affects only images that are made smaller or tiled: give {_MAX_SIDE}, "
                f"{_SHORT_SIDE} or tile (--tile) too"
            )
        if self.tile and self.quality is None:
            find_jpegtran()


def new_size(facts: Facts, images: ImageFormat) -> tuple[int, int] | None:
    """Return the new width and height of an image that is made smaller; None if the image keeps its size."""
    side, limit = max(facts.width, facts.height), images.max_side
    if images.short_side is not None:
        side, limit = min(facts.width, facts.height), images.short_side
    if limit is None or side <= limit:
        return None
    return max(1, round(facts.width * limit / side)), max(1, round(facts.height * limit / side))


def transcoding_bytes(facts: Facts, images: ImageFormat) -> tuple[int, int]:
    """Return the most bytes that transcoding an image needs: (temporary bytes, bytes of stored pixels)."""
    size, pixels = new_size(facts, images), facts.width * facts.height
    smaller = resizing_bytes(facts, size) if size else 0
    if images.raw:
        stored = size[0] * size[1] if size else pixels
        deep = 0 if facts.depth == EIGHT_BITS else _RAW_DEEP
        a_pixel = deep + (_PILLOW if size else decoding_bytes(facts.format))
        return max(smaller - _RGB * stored, a_pixel * stored), _RGB * stored
    if size:
        return smaller, 0
    if images.tile and facts.format == "JPEG":
        return (_TILING if images.quality is None else _ENCODING) * pixels, 0
    return 0, 0


def transcode(data: bytes, facts: Facts, images: ImageFormat) -> Stored:
    """Return the stored form of an image file.

    Raises:
        DamagedImageError: The file does not decode, or the image cannot be encoded again.
        PixelRangeError: ``raw`` is given, but the values of the image have no known range.
        OSError: ``jpegtran`` could not be run.
    """
    size, untiled = new_size(facts, images), ""
    if images.raw:
        try:
            pixels = load_pixels(data, size)
        except PixelRangeError as error:
            raise PixelRangeError(
                f"its {facts.depth} values have no known range, so they cannot be stored as pixels of 8 bits; leave "
                "out raw (--raw) to store the file"
            ) from error
        height, width, _ = pixels.shape
        return Stored(pixels, Facts("", width, height), reencoded=size is not None)
    if images.tile:
        try:
            return _tiled(data, facts, images, size)
        except NotTiledError as error:
            untiled = str(error)
    if size is None:
        return Stored(data, facts, untiled=untiled)
    data, smaller = resize(data, size, quality=images.quality or DEFAULT_QUALITY)
    return Stored(data, smaller, untiled=untiled, reencoded=True)


def _tiled(data: bytes, facts: Facts, images: ImageFormat, size: tuple[int, int] | None) -> Stored:
    if facts.format != "JPEG":
        raise NotTiledError(f"is a {facts.format}, not a JPEG")
    tile_width = images.tile_width or TILE_WIDTH
    if size is None and images.quality is None:
        try:
            jpeg, lengths = tile(data, tile_width=tile_width)
        except DamagedImageError as error:
            # jpegtran rejects some files that the check accepts, such as files with padding before the end marker.
            raise NotTiledError(str(error)) from error
        return Stored(jpeg, facts, lengths)
    picture = load_image(data, size)
    try:
        jpeg, lengths = encode_tiled(
            picture.pixels,
            quality=images.quality or DEFAULT_QUALITY,
            subsampling=_SUBSAMPLINGS[picture.subsampling],
            icc_profile=picture.options.get("icc_profile"),
            exif=picture.options.get("exif"),
            tile_width=tile_width,
        )
    except OSError as error:
        raise DamagedImageError(f"cannot be encoded again: {error}") from error
    return Stored(jpeg, Facts("JPEG", *picture.pixels.size), lengths, reencoded=True)
