"""The form in which images are stored: the files as they are, smaller, tiled, or as pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dbloader.conversion.resize import DEFAULT_QUALITY, load_picture, load_pixels, reduced_size, resize, resizing_bytes
from dbloader.errors import DamagedImageError, NotTiledError, OptionError, PixelRangeError
from dbloader.images.pillow import EIGHT_BITS, decoding_bytes
from dbloader.images.tiled.encode import TILE_WIDTH, encode_tiled, find_jpegtran, tile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dbloader.images.info import Facts

TILES = "tiles"
"""The field of a record that has the lengths of its image's tiles."""

_MAX_SIDE, _SHORT_SIDE = "max_side (--max-side)", "short_side (--short-side)"  # for messages: in Python, and outside
_SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")  # by Pillow's numbers

# Bytes a pixel. `tile` compares two images of three bytes, which takes a third array; jpegtran, before, held six.
_TILING = 9
# Pillow's image, of four, and what it encodes.
_ENCODING = 6
# Of pixels that are stored: the array, which stays; an image of Pillow's, from which it is made; and what gray of 16
# bits takes beside it on its way to 8.
_RGB, _PILLOW, _RAW_DEEP = 3, 4, 5


class Stored(NamedTuple):
    """An image as it is to be stored.

    Attributes:
        image: The file; or uint8, shape (height, width, 3), RGB.
        format: Pillow's name; None for pixels, and for a file in no known format.
        width: In pixels, None for a file in no known format.
        height: The same.
        depth: How deep its values are; None for a file in no known format.
        lengths: Of its tiles, if it has any.
        untiled: Why it has none, in words that follow the file's name and a colon; "" if none were wanted.
        encoded_anew: Whether its pixels are others than the file's, because it was made smaller or given a quality.
    """

    image: bytes | npt.NDArray[np.uint8]
    format: str | None
    width: int | None
    height: int | None
    depth: str | None
    lengths: bytes | None = None
    untiled: str = ""
    encoded_anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat:
    """In which form images are stored; checks itself.

    Attributes:
        max_side: Pixels that the longer side has at the most.
        short_side: Pixels that the shorter side has at the most.
        quality: JPEG and WebP quality, 1 to 100, of the images that are made smaller; with ``tile`` of all JPEGs.
        tile: Whether JPEGs are tiled: those that are encoded by encoding, the others without loss.
        tile_width: Of the tiles, in pixels, as near as can be; None for `TILE_WIDTH`.
        raw: Whether pixels are stored instead of files.

    Raises:
        OptionError: A value is out of its range, or two exclude each other; or the program ``jpegtran``, which tiling
            without loss needs, is not installed.
    """

    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    tile: bool = False
    tile_width: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        for name in ("max_side", "short_side", "tile_width"):
            pixels = getattr(self, name)
            if pixels is not None and pixels < 1:
                raise OptionError(f"{name} (--{name.replace('_', '-')}) must be at least 1 pixel, got {pixels}")
        if self.max_side is not None and self.short_side is not None:
            raise OptionError(f"{_MAX_SIDE} and {_SHORT_SIDE} both say how small an image becomes: choose one")
        if self.raw and (self.tile or self.tile_width is not None):
            raise OptionError("raw (--raw) stores pixels, and tile (--tile) stores JPEGs: choose one")
        if self.raw and self.quality is not None:
            raise OptionError("raw (--raw) stores pixels, which have no quality: leave quality (--quality) out")
        if self.tile_width is not None and not self.tile:
            raise OptionError("tile_width (--tile-width) is that of tiled JPEGs: give tile (--tile) too")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise OptionError(f"quality (--quality) must be from 1 to 100, got {self.quality}")
        if self.quality is not None and not self.tile and self.max_side is None and self.short_side is None:
            raise OptionError(
                f"quality (--quality) is for images that are made smaller or tiled: give {_MAX_SIDE} or "
                f"{_SHORT_SIDE} too, or tile (--tile); all other images are stored byte for byte",
            )
        if self.tile and self.quality is None:
            find_jpegtran()

    def new_size(self, facts: Facts) -> tuple[int, int] | None:
        """Return the width and height that an image gets; None if they stay."""
        return reduced_size(facts, max_side=self.max_side, short_side=self.short_side)

    def memory(self, facts: Facts) -> tuple[int, int]:
        """Return the bytes that ``make`` and the encoding of the record hold meanwhile, and those that it keeps."""
        size, pixels = self.new_size(facts), facts.width * facts.height
        smaller = resizing_bytes(facts, size) if size else 0
        if self.raw:
            stored = size[0] * size[1] if size else pixels
            deep = 0 if facts.depth == EIGHT_BITS else _RAW_DEEP
            a_pixel = deep + (_PILLOW if size else decoding_bytes(facts.format))
            return max(smaller - _RGB * stored, a_pixel * stored), _RGB * stored
        if size:
            return smaller, 0
        if self.tile and facts.format == "JPEG":
            return (_TILING if self.quality is None else _ENCODING) * pixels, 0
        return 0, 0

    def make(self, data: bytes, facts: Facts) -> Stored:
        """Return an image file in this form.

        What cannot be tiled is stored as it would be without ``tile``.

        Raises:
            DamagedImageError: It does not decode, or cannot be encoded again.
            PixelRangeError: It is to be stored as pixels, but its values have no known range.
            OSError: ``jpegtran`` could not be run.
        """
        size, untiled = self.new_size(facts), ""
        if self.raw:
            try:
                pixels = load_pixels(data, size)
            except PixelRangeError as error:
                raise PixelRangeError(
                    f"its values are {facts.depth}: their range is not known, so they cannot be stored as pixels of 8 "
                    "bits; leave raw (--raw) out to store the file"
                ) from error
            return Stored(pixels, None, pixels.shape[1], pixels.shape[0], EIGHT_BITS, encoded_anew=size is not None)
        if self.tile:
            try:
                return self._tiled(data, facts, size)
            except NotTiledError as error:
                untiled = str(error)
        if size is None:
            return Stored(data, *facts[:4], untiled=untiled)
        data, smaller = resize(data, size, quality=self.quality or DEFAULT_QUALITY)
        return Stored(data, *smaller[:4], untiled=untiled, encoded_anew=True)

    def _tiled(self, data: bytes, facts: Facts, size: tuple[int, int] | None) -> Stored:
        if facts.format != "JPEG":
            raise NotTiledError(f"is a {facts.format}, not a JPEG")
        tile_width = self.tile_width or TILE_WIDTH
        if size is None and self.quality is None:
            try:
                jpeg, lengths = tile(data, tile_width=tile_width)
            except DamagedImageError as error:
                # jpegtran stops at more than a check does, such as padding before the end marker.
                raise NotTiledError(str(error)) from error
            return Stored(jpeg, *facts[:4], lengths)
        picture = load_picture(data, size)
        try:
            jpeg, lengths = encode_tiled(
                picture.pixels,
                quality=self.quality or DEFAULT_QUALITY,
                subsampling=_SUBSAMPLINGS[picture.subsampling],
                icc_profile=picture.options.get("icc_profile"),
                exif=picture.options.get("exif"),
                tile_width=tile_width,
            )
        except OSError as error:
            raise DamagedImageError(f"cannot be encoded again: {error}") from error
        return Stored(jpeg, "JPEG", *picture.pixels.size, EIGHT_BITS, lengths, encoded_anew=True)
