"""Decoders that crop: random crops for training, centers for evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._options import check_choice, checked_flag, real_number, whole_number
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.decoding.jpeg import shrink_factor
from dbloader.decoding.render import FILTERS, TORCH_FILTERS, Crop
from dbloader.errors import OptionError

if TYPE_CHECKING:
    import numpy.typing as npt

_CROP_PCT = 0.875  # 224 of 256 pixels, the usual crop for evaluation on ImageNet
_RANDOM = "random"
_ATTEMPTS = 10  # number of random crops to try until one fits into the image, as in torchvision


class ResizeCenterCrop(Decoder):
    """Decodes an image, resizes its shorter side to a given length, and cuts out the center.

    This class replaces torchvision's Resize and CenterCrop, with the same sizes and positions, and with antialiasing.
    If the resized image is smaller than the output, the rest of the output is black.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        crop_pct: Side of a square output as a share of the resized image's shorter side, above 0 and at most 1. timm
            uses the same name. The default is 0.875, unless ``resize`` is given.
        resize: Length of the resized image's shorter side in pixels, instead of ``crop_pct``.
        interpolation: The filter to resize with. torch applies "bilinear" and "bicubic". Pillow applies "nearest",
            "box", "hamming" and "lanczos", and is several times slower.
        exif_transpose: Whether to turn images upright according to their EXIF.

    Raises:
        OptionError: An option is out of range; or both ``crop_pct`` and ``resize`` are given; or the output is not
            square and ``resize`` is not given.
        TypeError: An option is not a number, or ``exif_transpose`` is not a bool.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        crop_pct: float | None = None,
        *,
        resize: int | None = None,
        interpolation: str = "bilinear",
        exif_transpose: bool = False,
    ) -> None:
        super().__init__(exif_transpose=exif_transpose)
        self.size: tuple[int, int] = check_size(size)
        check_choice("interpolation", interpolation, FILTERS)
        self.interpolation = interpolation
        if resize is not None:
            if crop_pct is not None:
                raise OptionError(f"crop_pct and resize exclude each other, got {crop_pct!r} and {resize!r}")
            self.resize = whole_number("resize", resize, 1)
            return
        if self.size[0] != self.size[1]:
            raise OptionError(f"resize must be given if the output is not square, got size={self.size}")
        share = real_number("crop_pct", _CROP_PCT if crop_pct is None else crop_pct, 0, 1, above=True)
        self.resize = math.floor(self.size[0] / share)

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        self.check_random_numbers(random_numbers)
        longer = int(self.resize * max(width, height) / min(width, height))
        resized = (longer, self.resize) if width <= height else (self.resize, longer)
        window = (_center(resized[0], self.size[0]), _center(resized[1], self.size[1]))
        return Crop(0, 0, width, height, resized=resized, window=window, interpolation=self.interpolation)


def _center(full: int, length: int) -> int:
    """Return the first row or column of a center crop, rounded as in torchvision: .5 to even, but padding down."""
    return -((length - full) // 2) if length > full else round((full - length) / 2)


class RandomCrop(Decoder):
    """Decodes a random part of an image without resizing it, and mirrors it at random.

    This class replaces torchvision's RandomCrop and RandomHorizontalFlip, for small images (CIFAR) and segmentation.
    From a tiled JPEG, only the tiles that the crop touches are decoded.

    Each sample uses three random numbers. The output is mirrored if the first number is below ``flip``. The second
    number chooses the crop's upper edge. The third number chooses its left edge.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        padding: Number of black pixels to add around the image, less than ``size``. Give one number for all sides,
            or two (left/right, top/bottom), or four (left, top, right, bottom). The crop is cut from the padded image.
        pad_if_needed: Whether to pad further if the padded image is still smaller than ``size``. If the
            padded image is n pixels too narrow (or too low), n black pixels are added on each side, as in torchvision.
        flip: Probability that the output is mirrored.
        exif_transpose: Whether to turn images upright according to their EXIF.

    Raises:
        OptionError: An option is out of range; or, in a call, the padded image is smaller than the output.
        TypeError: An option has the wrong type, or ``padding`` has the wrong length.
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
        flip, for_top, for_left = self.check_random_numbers(random_numbers)
        pad_left, pad_top, pad_right, pad_bottom = self.padding
        first = []  # upper and left edge of the crop in pixels of the image; negative in the padding
        for number, length, full, before, after in (
            (for_top, self.size[0], height, pad_top, pad_bottom),
            (for_left, self.size[1], width, pad_left, pad_right),
        ):
            padded = before + full + after
            if padded < length and not self.pad_if_needed:
                raise OptionError(
                    f"size must not exceed the padded image, got {self.size} (height, width) for an image of "
                    f"{height} x {width} pixels with padding={self.padding}: pass pad_if_needed=True to fill with black"
                )
            missing = max(length - padded, 0)
            first.append(int(number * (padded + 2 * missing - length + 1)) - before - missing)
        top, left = max(first[0], 0), max(first[1], 0)
        shown = min(first[0] + self.size[0], height) - top, min(first[1] + self.size[1], width) - left
        window = first[0] - top, first[1] - left
        return Crop(left, top, shown[1], shown[0], flip < self.flip, resized=shown, window=window)


class RandomResizedCrop(Decoder):
    """Decodes a random part of an image, resizes it, and mirrors it at random.

    This class replaces torchvision's RandomResizedCrop and RandomHorizontalFlip. Each crop has the same probability as
    in torchvision. This class also rounds like torchvision, and resizes with antialiasing. From a tiled JPEG, only the
    tiles that the crop touches are decoded.

    Each sample takes 23 random numbers. The output is mirrored if the first number is below ``flip``. The next two
    numbers choose the crop's upper edge and left edge. Then follow ten pairs. Each pair gives a crop's share of the
    image's area and its aspect ratio. The first crop that fits into the image is used. If no crop fits, the largest
    centered crop with an allowed ``ratio`` is used. With ``interpolation="random"``, a sample takes one more random
    number, which chooses the filter: bilinear if the number is below 0.5.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        scale: Least and greatest share of the image's area, above 0 and at most 1.
        ratio: Least and greatest ratio of the crop's width to its height, before resizing. The logarithm of the ratio
            is drawn uniformly.
        flip: Probability that the output is mirrored.
        scaled: Whether libjpeg may decode a JPEG at 1/2, 1/4 or 1/8 of its size. The decoded crop is never smaller than
            the output. This changes the pixels, and rounds the crop's edges to pixels of the smaller image. For 27
            photos of 2 to 18 megapixels and an output of 224 x 224, pixels changed by 1.4 of 255 levels on average
            (6.4 in the worst image). Samples took two thirds of the usual time, also samples of tiled JPEGs.
        interpolation: The filter to resize with. torch applies "bilinear" and "bicubic"; "random" chooses one of these
            two for each sample, as in timm. Pillow applies "nearest", "box", "hamming" and "lanczos", and is several
            times slower.
        exif_transpose: Whether to turn images upright according to their EXIF.

    Raises:
        OptionError: An option is out of range.
        TypeError: An option has the wrong type.
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
        values = self.check_random_numbers(random_numbers)
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
                # A number below 1 times n is less than n, even after rounding. So ``left`` is at most width - w.
                left, top = int(values[2] * (width - w + 1)), int(values[1] * (height - h + 1))
                break
        else:
            w, h = self._largest(width, height)
            left, top = (width - w) // 2, (height - h) // 2
        return Crop(left, top, w, h, flip, interpolation=interpolation)

    def _largest(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height, at least 1, of the largest crop with an allowed ratio."""
        least, most = self.ratio
        if width / height < least:
            return width, max(1, round(width / least))
        if width / height > most:
            return max(1, round(height * most)), height
        return width, height

    @override
    def reduction(self, crop: Crop) -> int:
        return shrink_factor(crop.height, crop.width, self.size) if self.scaled else 1


def _padding(padding: Any, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the option ``padding`` as (left, top, right, bottom)."""
    values = [*padding] if isinstance(padding, Sequence) and len(padding) in (2, 4) else [padding]
    left, top, right, bottom = (whole_number("padding", value, 0) for value in (values * 4)[:4])
    if max(left, right) >= size[1] or max(top, bottom) >= size[0]:
        raise OptionError(f"padding must be less than size={size}, otherwise a crop may be all black, got {padding!r}")
    return left, top, right, bottom


def _range(name: str, value: Any, most: float) -> tuple[float, float]:
    """Check an option of the form (least, greatest), both above 0, and return it."""
    if not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (least, greatest), got {value!r}")
    least = real_number(name, value[0], 0, most, above=True)
    if isinstance(value[1], (int, float)) and 0 < value[1] < least:
        raise OptionError(f"{name} must be (least, greatest), got {value!r}: write {name}={(value[1], value[0])!r}")
    return least, real_number(name, value[1], least, most)
