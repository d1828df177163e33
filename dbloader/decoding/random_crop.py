"""Random crops, for training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._options import check_choice, checked_flag, real_number, whole_number
from dbloader.decoding.crop import FILTERS, TORCH_FILTERS, Crop
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.errors import OptionError

if TYPE_CHECKING:
    import numpy.typing as npt

_RANDOM = "random"
_ATTEMPTS = 10  # to find a crop that lies within the image, as in torchvision


class RandomCrop(Decoder):
    """Decodes a random part of an image at its own scale, and mirrors it at random, as torchvision's transforms do.

    It replaces RandomCrop and RandomHorizontalFlip, as they are used for small images (CIFAR) and for segmentation. Of
    a tiled JPEG it decodes the tiles that the crop touches.

    The random numbers of a sample are, in this order: one for mirroring (if below ``flip``), two for the positions of
    the crop's upper and left edges.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        padding: Pixels of black around the image, below ``size``: one number, (left and right, top and bottom), or
            (left, top, right, bottom). The crop is chosen from the padded image.
        pad_if_needed: Whether a side that is still too short gets all that is missing, in black, at each end.
        flip: Probability that the output is mirrored.
        exif_transpose: Whether images are turned upright as their EXIF says.

    Raises:
        OptionError: An option is out of range. From a call: the padded image is smaller than the output.
        TypeError: An option is not a number, not as many as it must be, or not True or False.
    """

    draws = 3

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] = 0,
        *,
        pad_if_needed: bool = False,
        flip: float = 0.5,
        exif_transpose: bool = False,
    ) -> None:
        super().__init__(exif_transpose=exif_transpose)
        self.size: tuple[int, int] = check_size(size)
        self.padding = _padding(padding, self.size)
        self.pad_if_needed = checked_flag("pad_if_needed", pad_if_needed)
        self.flip = real_number("flip", flip, 0, 1)

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        flip, *places = self._check_random_numbers(random_numbers)
        first = []
        for at, full in enumerate((height, width)):
            length, before = self.size[at], self.padding[1 - at]
            padded = full + before + self.padding[3 - at]
            if padded < length and not self.pad_if_needed:
                raise OptionError(
                    f"size must be at most the padded image's, got {self.size} (height, width) for an image of "
                    f"{height} x {width} pixels with padding={self.padding}: pass pad_if_needed=True to fill with black"
                )
            missing = max(length - padded, 0)
            first.append(int(places[at] * (padded + 2 * missing - length + 1)) - before - missing)
        top, left = max(first[0], 0), max(first[1], 0)
        shown = min(first[0] + self.size[0], height) - top, min(first[1] + self.size[1], width) - left
        window = first[0] - top, first[1] - left
        return Crop(left, top, shown[1], shown[0], flip < self.flip, resized=shown, window=window)

    def __repr__(self) -> str:
        names = ("size", "padding", "pad_if_needed", "flip", "exif_transpose")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class RandomResizedCrop(Decoder):
    """Decodes a random part of an image, resizes it and mirrors it at random, as torchvision's transforms do.

    It replaces RandomResizedCrop and RandomHorizontalFlip: it draws the same crops with the same probability, rounds as
    they do, and resizes with antialiasing. Of a tiled JPEG it decodes the tiles that the crop touches.

    The random numbers of a sample are, in this order: one for mirroring (if below ``flip``), two for the positions of
    the crop's upper and left edges, and ten pairs for its share of the area and its aspect ratio. The first pair counts
    whose crop fits into the image. If none fits, the crop is the largest one in the center with an allowed ratio. One
    more, for ``interpolation="random"``, chooses the filter: bilinear below 0.5.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        scale: Least and greatest share of the image's area, above 0 and at most 1.
        ratio: Least and greatest ratio of the crop's width to its height, before resizing; its logarithm is drawn.
        flip: Probability that the output is mirrored.
        scaled: Whether libjpeg decodes a JPEG at a half, a quarter or an eighth of its size if the crop is at least as
            many times wider and higher than the output. This changes the pixels, and rounds the crop's edges to
            pixels of the smaller image. For 27 photos of 2 to 18 megapixels and an output of 224 x 224, the mean
            difference was 1.4 levels (6.4 in the worst image), the root mean square 2.9. A sample took 15.7 ms in
            place of 23.4, and 6.8 in place of 10.2 from tiled JPEGs.
        interpolation: The filter to resize with: "bilinear" or "bicubic" with torch's kernels; "random" for one of
            these two, as in timm; "nearest", "box", "hamming" or "lanczos" with Pillow's, which are several times
            slower.
        exif_transpose: Whether images are turned upright as their EXIF says.

    Raises:
        OptionError: An option is out of range.
        TypeError: An option is not a number, not as many as it must be, or not True or False.
    """

    draws = 3 + 2 * _ATTEMPTS

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        *,
        scaled: bool = False,
        interpolation: str = "bilinear",
        exif_transpose: bool = False,
    ) -> None:
        super().__init__(exif_transpose=exif_transpose)
        self.size: tuple[int, int] = check_size(size)
        self.scale = _range("scale", scale, 1)
        self.ratio = _range("ratio", ratio, math.inf)
        self.flip = real_number("flip", flip, 0, 1)
        self.scaled = checked_flag("scaled", scaled)
        check_choice("interpolation", interpolation, (*FILTERS, _RANDOM))
        self.interpolation = interpolation
        if interpolation == _RANDOM:
            self.draws += 1

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        values = self._check_random_numbers(random_numbers)
        flip, interpolation = values[0] < self.flip, self.interpolation
        if interpolation == _RANDOM:
            interpolation = TORCH_FILTERS[values.pop() >= 0.5]
        least, most = self.scale
        low, high = map(math.log, self.ratio)
        for at in range(3, len(values), 2):
            area = width * height * (least + values[at] * (most - least))
            aspect = math.exp(low + values[at + 1] * (high - low))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                # A float64 below 1 times an integer, rounded, is below that integer.
                left, top = int(values[2] * (width - w + 1)), int(values[1] * (height - h + 1))
                break
        else:
            w, h = self._largest(width, height)
            left, top = (width - w) // 2, (height - h) // 2
        return Crop(left, top, w, h, flip, interpolation=interpolation)

    def _largest(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the largest crop with an allowed ratio, at least a pixel each."""
        least, most = self.ratio
        if width / height < least:
            return width, max(1, round(width / least))
        if width / height > most:
            return max(1, round(height * most)), height
        return width, height

    @override
    def reduction(self, crop: Crop) -> int:
        if not self.scaled:
            return 1
        return next((f for f in (8, 4, 2) if crop.height >= f * self.size[0] and crop.width >= f * self.size[1]), 1)

    def __repr__(self) -> str:
        names = ("size", "scale", "ratio", "flip", "scaled", "interpolation", "exif_transpose")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _padding(padding: Any, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the option ``padding`` as (left, top, right, bottom)."""
    values = [*padding] if isinstance(padding, Sequence) and len(padding) in (2, 4) else [padding]
    left, top, right, bottom = (whole_number("padding", value, 0) for value in (values * 4)[:4])
    if max(left, right) >= size[1] or max(top, bottom) >= size[0]:
        raise OptionError(f"padding must be less than size={size}, or a crop may show nothing, got {padding!r}")
    return left, top, right, bottom


def _range(name: str, value: Any, most: float) -> tuple[float, float]:
    """Return an option that is a (least, greatest), above 0."""
    if not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} must be a (least, greatest), got {value!r}")
    least = real_number(name, value[0], 0, most, above=True)
    return least, real_number(name, value[1], least, most)
