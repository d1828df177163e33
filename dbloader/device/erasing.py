"""Rectangles of images erased at random."""

from __future__ import annotations

import math
from operator import index as as_index
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from dbloader.device import checks, noise
from dbloader.device.sending import send
from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from dbloader.sampling.rng import Array

_MODES = ("const", "rand", "pixel")
_ATTEMPTS = 10  # timm's: to find a rectangle that is smaller than the image


class RandomErasing(nn.Module):
    """Erases rectangles of some images (Zhong et al.: Random Erasing Data Augmentation, AAAI 2020), as timm's does.

    It takes images as (N, C, H, W) and gives new ones of the same dtype, shape and memory format. It belongs after
    Normalize: there 0, with which ``const`` fills, is the mean, and the noise has the images' variance.

    A rectangle is drawn by its share of the image's area and the ratio of its height to its width, at most ten times
    until it is lower and narrower than the image, else left out. All is drawn on the CPU, from SampleRNG; only the
    noise of ``pixel`` is made where the images are, of 65,536 different values up to 4.3.

    Args:
        probability: That an image is erased.
        min_area: Least share of an image's area that is erased, 0 to 1; where there are more rectangles than one, each
            has its part of the share. They may overlap.
        max_area: The greatest.
        min_aspect: Least ratio of height to width, above 0; its logarithm is drawn.
        max_aspect: The greatest; ``1 / min_aspect`` if None.
        mode: ``const`` fills with 0, ``rand`` each rectangle with one normal number for each channel, ``pixel`` with
            normal numbers for each pixel and channel.
        min_count: Least number of rectangles.
        max_count: The greatest; ``min_count`` if None.
        num_splits: If above 1, the first ``N // num_splits`` images of a batch are left alone: those without
            augmentation in AugMix.

    Raises:
        OptionError: An option is out of its range. From a call: there are other numbers of positions and images.
        TypeError: An option is no number. From a call: the images are no tensor of uint8 or floats, or they are uint8
            and the mode is not ``const``.
        ValueError: From a call: the images have no four axes.
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
        num_splits: int = 0,
    ) -> None:
        super().__init__()
        self.probability = checks.number("probability", probability, 0, 1)
        self.min_area = checks.number("min_area", min_area, 0, 1)
        self.max_area = checks.number("max_area", max_area, self.min_area, 1)
        self.min_aspect = checks.number("min_aspect", min_aspect, 0, above=True)
        max_aspect = 1 / self.min_aspect if max_aspect is None else max_aspect
        self.max_aspect = checks.number("max_aspect", max_aspect, self.min_aspect)
        if mode not in _MODES:
            raise OptionError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
        self.mode = mode
        self.min_count = as_index(min_count)
        self.max_count = self.min_count if max_count is None else as_index(max_count)
        self.num_splits = as_index(num_splits)
        if not 1 <= self.min_count <= self.max_count:
            raise OptionError(
                f"min_count must be at least 1 and at most max_count, got {self.min_count} and {self.max_count}"
            )
        if self.num_splits < 0:
            raise OptionError(f"num_splits must be at least 0, got {num_splits}")

    @override
    def forward(self, images: torch.Tensor, rng: SampleRNG | None = None) -> torch.Tensor:
        checks.images(images)
        if self.mode != "const" and not images.dtype.is_floating_point:
            raise TypeError(f"mode {self.mode!r} must come after Normalize, for float images, got {images.dtype}")
        rng = SampleRNG.from_torch(len(images)) if rng is None else rng
        if len(rng) != len(images):
            raise OptionError(f"rng must have one position for each of the {len(images)} images, got {len(rng)}")
        boxes = self._boxes(rng, images.shape[2], images.shape[3])
        if self.num_splits > 1:
            boxes[: len(images) // self.num_splits] = 0
        inside = _inside(send(torch.from_numpy(boxes), images.device), images.shape[2], images.shape[3])
        result = torch.empty_like(images)
        if self.mode == "rand":
            result.copy_(images)
            for number, colors in enumerate(self._colors(rng, images).unbind(1)):
                torch.where(inside[:, number, None], colors[..., None, None], result, out=result)
            return result
        if self.mode == "pixel":
            channels, height, width = images.shape[1:]
            fill = noise.normal(rng.bits("pixels"), (channels, height, width), images.dtype, images.device)
        else:
            fill = torch.zeros((), dtype=images.dtype, device=images.device)
        return torch.where(inside.any(1, keepdim=True), fill, images, out=result)

    def _boxes(self, rng: SampleRNG, height: int, width: int) -> Array:
        """Return the rectangles: int32, shape (N, max_count, 4), as top, bottom, left and right; one left out is 0."""
        erased, counts = rng.uniform(2, "erasing").T
        counts = self.min_count + np.floor(counts * (self.max_count - self.min_count + 1))
        drawn = rng.uniform(self.max_count * (2 * _ATTEMPTS + 2), "boxes")
        drawn = drawn.reshape(len(rng), self.max_count, 2 * _ATTEMPTS + 2)
        areas, aspects = drawn[..., :_ATTEMPTS], drawn[..., _ATTEMPTS : 2 * _ATTEMPTS]
        areas = (self.min_area + areas * (self.max_area - self.min_area)) * (height * width) / counts[:, None, None]
        least, most = math.log(self.min_aspect), math.log(self.max_aspect)
        aspects = np.exp(least + aspects * (most - least))
        heights, widths = np.rint(np.sqrt(areas * aspects)), np.rint(np.sqrt(areas / aspects))
        fits = (heights < height) & (widths < width)
        first = fits.argmax(-1)[..., None]
        heights = np.take_along_axis(heights, first, -1)[..., 0]
        widths = np.take_along_axis(widths, first, -1)[..., 0]
        tops = np.floor(drawn[..., -2] * (height - heights + 1))
        lefts = np.floor(drawn[..., -1] * (width - widths + 1))
        kept = fits.any(-1) & (erased < self.probability)[:, None] & (np.arange(self.max_count) < counts[:, None])
        boxes = np.stack([tops, tops + heights, lefts, lefts + widths], -1)
        return np.where(kept[..., None], boxes, 0).astype(np.int32)

    def _colors(self, rng: SampleRNG, images: torch.Tensor) -> torch.Tensor:
        """Return the rectangles' colors: shape (N, max_count, C), of the images' dtype, and where they are."""
        channels = images.shape[1]
        colors = noise.normal_of(rng.uniform(self.max_count * channels, "colors")).to(images.dtype)
        return send(colors.view(len(rng), self.max_count, channels), images.device)

    @override
    def extra_repr(self) -> str:
        names = ("probability", "min_area", "max_area", "min_aspect", "max_aspect", "mode", "min_count", "max_count")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*names, "num_splits"))


def _inside(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels are in which rectangle: bool, shape (N, boxes, H, W)."""
    top, bottom, left, right = boxes[..., None].unbind(2)
    rows = torch.arange(height, dtype=torch.int32, device=boxes.device)
    columns = torch.arange(width, dtype=torch.int32, device=boxes.device)
    in_rows = (rows >= top) & (rows < bottom)
    in_columns = (columns >= left) & (columns < right)
    return in_rows[..., :, None] & in_columns[..., None, :]
