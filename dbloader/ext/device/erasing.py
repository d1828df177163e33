"""Erase random rectangles of images."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from dbloader._options import check_choice, real_number, whole_number
from dbloader.device.normalize import check_images
from dbloader.device.transfer import send_small
from dbloader.errors import LoaderError, OptionError
from dbloader.sampling.rng import ROUNDS, STEP, SampleRNG

if TYPE_CHECKING:
    from dbloader.sampling.rng import Array

_MODES = ("const", "rand", "pixel")
_ATTEMPTS = 10  # most tries for a rectangle that fits into the image, as in timm

# 16 random bits choose one of 65,536 quantiles of the normal distribution; 64 random bits choose four quantiles.
_LEVELS = 2**16
_PER_WORD = 4


class RandomErasing(nn.Module):
    """Erases rectangles of some images (Zhong et al.: Random Erasing Data Augmentation, AAAI 2020), as timm does.

    A call takes images of shape (N, C, H, W), and returns images of the same dtype, shape and memory format. Call it
    after Normalize. Then the fill (0 for ``const``, otherwise noise) fits the mean 0 and the variance 1 of the images.

    Area and aspect of a rectangle are drawn up to ten times, until the rectangle is lower and narrower than the image.
    If no draw fits, the rectangle is left out. Random numbers are drawn on the CPU. Only the noise of ``pixel`` is made
    on the images' device. The noise has 65,536 different values, from -4.3 to 4.3.

    Args:
        probability: The probability that an image is erased.
        min_area: Least share of the image's area to erase, 0 to 1. Several rectangles share this area, and may overlap.
        max_area: Greatest share.
        min_aspect: Least ratio of height to width, above 0. The logarithm of the ratio is drawn uniformly.
        max_aspect: Greatest ratio; None for ``1 / min_aspect``.
        mode: ``const`` fills with 0, ``rand`` with one normal number for each rectangle and channel, ``pixel`` with
            normal numbers for each pixel and channel.
        min_count: Least number of rectangles.
        max_count: Greatest number; None for ``min_count``.

    Raises:
        LoaderError: A call is captured in a CUDA graph.
        OptionError: An option is out of its range, or the ``rng`` of a call is for another number of images.
        TypeError: An option is not a number, or the images of a call are not a tensor of floats. The mode ``const``
            also accepts uint8.
        ValueError: The images of a call do not have four axes.
    """

    def __init__(
        self,
        probability: float = 0.5,
        min_area: float = 0.02,
        max_area: float = 1 / 3,
        min_aspect: float = 0.3,
        max_aspect: float | None = None,
        mode: Literal["const", "rand", "pixel"] = "const",
        min_count: int = 1,
        max_count: int | None = None,
    ) -> None:
        super().__init__()
        self.probability = real_number("probability", probability, 0, 1)
        self.min_area = real_number("min_area", min_area, 0, 1)
        self.max_area = real_number("max_area", max_area, self.min_area, 1)
        self.min_aspect = real_number("min_aspect", min_aspect, 0, above=True)
        max_aspect = 1 / self.min_aspect if max_aspect is None else max_aspect
        self.max_aspect = real_number("max_aspect", max_aspect, self.min_aspect)
        check_choice("mode", mode, _MODES)
        self.mode = mode
        self.min_count = whole_number("min_count", min_count, 1)
        self.max_count = self.min_count if max_count is None else whole_number("max_count", max_count, self.min_count)

    @override
    def forward(self, images: torch.Tensor, rng: SampleRNG | None = None) -> torch.Tensor:
        check_images(images)
        if self.mode != "const" and not images.dtype.is_floating_point:
            raise TypeError(f"mode {self.mode!r} must come after Normalize, for float images, got {images.dtype}")
        if images.is_cuda and torch.cuda.is_current_stream_capturing():
            raise LoaderError(
                "RandomErasing draws random numbers on the CPU, so each replay of a CUDA graph would erase the same "
                "rectangles: call it before the graph, for example as the preparation of a PrefetchLoader"
            )
        rng = SampleRNG.from_torch(len(images)) if rng is None else rng
        if len(rng) != len(images):
            raise OptionError(f"rng must have one position for each of the {len(images)} images, got {len(rng)}")
        channels, height, width = images.shape[1:]
        boxes = torch.from_numpy(self.draw_boxes(rng, height, width))
        inside = _inside(send_small(boxes, images.device), height, width)
        result = torch.empty_like(images)
        if self.mode == "rand":
            result.copy_(images)
            for number, colors in enumerate(self._draw_colors(rng, images).unbind(1)):
                torch.where(inside[:, number, None], colors[..., None, None], result, out=result)
            return result
        if self.mode == "pixel":
            fill = normal(rng.bits("pixels"), (channels, height, width), images.dtype, images.device)
        else:
            fill = torch.zeros((), dtype=images.dtype, device=images.device)
        return torch.where(inside.any(1, keepdim=True), fill, images, out=result)

    def draw_boxes(self, rng: SampleRNG, height: int, width: int) -> Array:
        """Return (top, bottom, left, right) of rectangles: int32, shape (N, max_count, 4). Zeros mean no rectangle."""
        erased, counts = rng.uniform(2, "erasing").T
        counts = self.min_count + np.floor(counts * (self.max_count - self.min_count + 1))
        numbers = rng.uniform(self.max_count * (2 * _ATTEMPTS + 2), "boxes")
        numbers = numbers.reshape(len(rng), self.max_count, 2 * _ATTEMPTS + 2)
        areas, aspects = numbers[..., :_ATTEMPTS], numbers[..., _ATTEMPTS : 2 * _ATTEMPTS]
        areas = (self.min_area + areas * (self.max_area - self.min_area)) * (height * width) / counts[:, None, None]
        least, most = math.log(self.min_aspect), math.log(self.max_aspect)
        aspects = np.exp(least + aspects * (most - least))
        heights, widths = np.rint(np.sqrt(areas * aspects)), np.rint(np.sqrt(areas / aspects))
        fits = (heights < height) & (widths < width)
        first = fits.argmax(-1)[..., None]
        heights = np.take_along_axis(heights, first, -1)[..., 0]
        widths = np.take_along_axis(widths, first, -1)[..., 0]
        tops = np.floor(numbers[..., -2] * (height - heights + 1))
        lefts = np.floor(numbers[..., -1] * (width - widths + 1))
        kept = fits.any(-1) & (erased < self.probability)[:, None] & (np.arange(self.max_count) < counts[:, None])
        boxes = np.stack([tops, tops + heights, lefts, lefts + widths], -1)
        return np.where(kept[..., None], boxes, 0).astype(np.int32)

    def _draw_colors(self, rng: SampleRNG, images: torch.Tensor) -> torch.Tensor:
        """Return the colors of the rectangles: shape (N, max_count, C), with the dtype and device of the images."""
        channels = images.shape[1]
        uniform = torch.from_numpy(rng.uniform(self.max_count * channels, "colors"))
        colors = torch.special.ndtri(uniform.clamp_(min=2.0**-54)).to(images.dtype)
        return send_small(colors.view(len(rng), self.max_count, channels), images.device)

    @override
    def extra_repr(self) -> str:
        names = ("probability", "min_area", "max_area", "min_aspect", "max_aspect", "mode", "min_count", "max_count")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _inside(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the mask of the pixels that each rectangle covers: bool, shape (N, boxes, H, W)."""
    top, bottom, left, right = boxes[..., None].unbind(2)
    rows = torch.arange(height, dtype=torch.int32, device=boxes.device)
    columns = torch.arange(width, dtype=torch.int32, device=boxes.device)
    in_rows = (rows >= top) & (rows < bottom)
    in_columns = (columns >= left) & (columns < right)
    return in_rows[..., :, None] & in_columns[..., None, :]


def normal(keys: Array, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return noise of mean 0 and variance 1: floats, shape (N, *shape), with the same values on any device.

    ``keys`` has one seed for each image: uint64, shape (N,). ``shape`` is (C, H, W).
    """
    values = shape[0] * shape[1] * shape[2]
    words = torch.arange(1, -(-values // _PER_WORD) + 1, device=device)
    words.mul_(_signed(STEP))
    seeds = send_small(torch.from_numpy(keys.view("int64")), device)
    chosen = _mix(seeds[:, None] + words).view(torch.int16)[:, :values]
    # Read the values from a table. Devices would compute different values, because their logarithms differ slightly.
    rows = chosen.to(torch.int32).add_(_LEVELS // 2).flatten()
    table = send_small(quantiles().to(dtype), device)
    return table.index_select(0, rows).view(len(keys), *shape)


@functools.cache
def quantiles() -> torch.Tensor:
    """Return 65,536 quantiles of the normal distribution, at equal steps of probability: float64, shape (65536,)."""
    middles = (torch.arange(_LEVELS, dtype=torch.float64, device="cpu") + 0.5) / _LEVELS
    values: torch.Tensor = torch.special.ndtri(middles)
    return values


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Scramble int64 numbers in place. The bits are the same as with ``sampling.rng.mix`` and uint64 numbers."""
    for shift, factor in ROUNDS:
        shifted = words >> shift
        shifted &= (1 << (64 - shift)) - 1  # clear the copied sign bits: a shift of uint64 would insert zeros
        words ^= shifted
        if factor != 1:
            words *= _signed(factor)
    return words


def _signed(bits: int) -> int:
    """Return the int64 with the bits of a uint64; torch has no arithmetic of uint64."""
    return bits - 2**64 if bits >= 2**63 else bits
