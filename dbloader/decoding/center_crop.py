"""Centers of resized images, for evaluation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._options import check_choice, real_number, whole_number
from dbloader.decoding.crop import FILTERS, Crop
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_CROP_PCT = 0.875  # 224 of 256 pixels, as networks for ImageNet are commonly evaluated


class ResizeCenterCrop(Decoder):
    """Decodes an image, resizes its shorter side to a given length, and cuts out the center.

    It replaces torchvision's Resize and CenterCrop, with the same sizes and positions, and resizes with antialiasing.
    Where the resized image is smaller than the output, the rest is black.

    Args:
        size: Height and width of the output in pixels, or one number for both.
        crop_pct: Side of a square output as a share of the resized image's shorter side, above 0 and at most 1
            (timm's word); 0.875 if ``resize`` is not given either.
        resize: Length of the shorter side in pixels, in place of ``crop_pct``.
        interpolation: The filter to resize with: "bilinear" or "bicubic" with torch's kernels, or "nearest", "box",
            "hamming" or "lanczos" with Pillow's, which are several times slower.
        exif_transpose: Whether images are turned upright as their EXIF says.

    Raises:
        OptionError: An option is out of range; or both ``crop_pct`` and ``resize`` are given; or the output is not
            square and ``resize`` is not given.
        TypeError: An option is not a number, or ``exif_transpose`` not a bool.
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
            raise OptionError(f"resize must be given where the output is not square, got size={self.size}")
        share = real_number("crop_pct", _CROP_PCT if crop_pct is None else crop_pct, 0, 1, above=True)
        self.resize = math.floor(self.size[0] / share)

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        self._check_random_numbers(random_numbers)
        longer = int(self.resize * max(width, height) / min(width, height))
        resized = (longer, self.resize) if width <= height else (self.resize, longer)
        window = (_first(resized[0], self.size[0]), _first(resized[1], self.size[1]))
        return Crop(0, 0, width, height, resized=resized, window=window, interpolation=self.interpolation)

    def __repr__(self) -> str:
        options = f"{self.size}, resize={self.resize}, interpolation={self.interpolation!r}"
        return f"{type(self).__name__}({options}, exif_transpose={self.exif_transpose})"


def _first(full: int, length: int) -> int:
    """Return where a center begins. CenterCrop rounds halves to even numbers, but down where it must pad."""
    return -((length - full) // 2) if length > full else round((full - length) / 2)
