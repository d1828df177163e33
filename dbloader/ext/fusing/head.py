"""Turn the first steps of a transform into a Decoder. These steps resize, crop and mirror."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from dbloader.decoding.crops import RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.decoding.jpeg import shrink_factor
from dbloader.decoding.render import FILTERS, TORCH_FILTERS, Crop
from dbloader.ext.fusing.steps import find_step, is_conversion, makes_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Head(Decoder):
    """Decodes an image. Crops, resizes and mirrors it as the first steps of a transform do.

    Args:
        crops: Decoder that chooses the crop. It does not mirror.
        flip: Probability that the output is mirrored; None without a step that mirrors.
        resize: As in LMDBDataset; None is "fast".
        on_tensors: Whether the steps get tensors. torchvision resizes tensors by torch, and PIL images by Pillow.
    """

    def __init__(self, crops: Decoder, flip: float | None, resize: str | None, *, on_tensors: bool = False) -> None:
        super().__init__()
        self.crops = crops
        self.flip = flip
        self.resize = resize
        self.on_tensors = on_tensors
        self.size = crops.size
        self.draws = crops.draws + 1

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        *values, for_flip = map(float, random_numbers)
        crop = self.crops.choose_crop(values, width, height)
        rows, columns = self._resized(crop)
        # In this case, only Pillow itself computes Pillow's bicubic pixels: see the comment in LazyImage.resize.
        only = crop.interpolation == "bicubic" and rows < crop.height and rows * crop.width < crop.height * columns
        if not self.on_tensors and (self.resize == "exact" or only):
            crop = crop._replace(interpolation=crop.interpolation.upper())
        return crop._replace(flip=for_flip < (self.flip or 0))

    @override
    def reduction(self, crop: Crop) -> int:
        rows, columns = self._resized(crop)
        is_scaled = self.resize == "scaled" and crop.interpolation.lower() in TORCH_FILTERS
        return shrink_factor(crop.height, crop.width, (rows, columns)) if is_scaled else 1

    def _resized(self, crop: Crop) -> tuple[int, int]:
        return crop.resized or self.size or (crop.height, crop.width)


class OwnHead(Head):
    """Decodes like Head, but draws the random number for mirroring from torch, as RandomHorizontalFlip does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.draws = 0

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        crop = super().choose_crop([1.0], width, height)
        return crop if self.flip is None else crop._replace(flip=bool(torch.rand(1) < self.flip))


class OwnCrops(Decoder):
    """Chooses crops by calling the user's RandomResizedCrop, which draws its own random numbers."""

    def __init__(self, step: Any, size: tuple[int, int] | None) -> None:
        super().__init__()
        self.size = size
        self.step = step

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        image = torch.empty(height, width, device="meta")
        top, left, height, width = self.step.get_params(image, self.step.scale, self.step.ratio)
        filters = self.step.interpolation
        chosen = random.choice(filters) if isinstance(filters, tuple) else filters  # as timm chooses
        # The step may choose an empty part of a tiny image.
        return Crop(left, top, max(1, width), max(1, height), interpolation=_filter(chosen))


class Squash(Decoder):
    """Resizes a whole image to a height and width, and cuts out the center."""

    def __init__(self, resized: tuple[int, int], size: tuple[int, int], interpolation: str) -> None:
        super().__init__()
        self.size: tuple[int, int] = size
        self.resized = resized
        self.interpolation = interpolation

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        top, left = (round((full - part) / 2) for full, part in zip(self.resized, self.size, strict=True))
        return Crop(0, 0, width, height, resized=self.resized, window=(top, left), interpolation=self.interpolation)


def read_head(steps: Sequence[Any], resize: str | None = None, *, own: bool = False) -> tuple[Head | None, int]:
    """Return (Decoder, number of first steps that it replaces); (None, 0) if no Decoder does the same.

    With ``own``, the Decoder draws the same random numbers as the steps. For RandomCrop, there is no such Decoder.
    """
    at = skip_conversions(steps, 0)
    on_tensors = any(map(makes_tensor, steps[:at]))
    try:
        crops, count = _read_crops(steps[at:], on_tensors=on_tensors)
    except (TypeError, ValueError):  # the Decoder does not allow the value of an option
        return None, 0
    if crops is None or (own and isinstance(crops, RandomCrop)):
        return None, 0
    if own and isinstance(crops, RandomResizedCrop):
        crops = OwnCrops(steps[at], crops.size)
    after, flip = skip_conversions(steps, at + count), None
    if after < len(steps) and find_step(steps[after])[1] == "RandomHorizontalFlip":
        flip, count = float(steps[after].p), after + 1 - at
    return (OwnHead if own else Head)(crops, flip, resize, on_tensors=on_tensors), at + count


def skip_conversions(steps: Sequence[Any], at: int) -> int:
    """Return the position of the first step, at or after ``at``, that changes pixel values."""
    while at < len(steps) and is_conversion(steps[at]):
        at += 1
    return at


def _read_crops(steps: Sequence[Any], *, on_tensors: bool) -> tuple[Decoder | None, int]:
    """Return a Decoder that crops as the first steps do, and the number of these steps."""
    library, name = find_step(steps[0]) if steps else ("", "")
    step: Any = steps[0] if name else None
    if on_tensors and (library != "v2" or not getattr(step, "antialias", True)):
        return None, 0
    if name == "RandomCrop" and type(step.fill) is int and step.fill == 0 and step.padding_mode == "constant":
        padding: Any = step.padding or 0
        if library == "v2" and padding:
            padding = [padding[at] for at in (0, 2, 1, 3)]  # v2 stores left, right, top, bottom: swap right and top
        return RandomCrop(_pair(step.size), _one(padding), pad_if_needed=step.pad_if_needed, flip=0), 1
    interpolation = _filter(getattr(step, "interpolation", None))
    if interpolation not in (TORCH_FILTERS if on_tensors else (*FILTERS, "random")):
        return None, 0
    if name in ("RandomResizedCrop", "RandomResizedCropAndInterpolation"):
        scale, ratio = tuple(step.scale), tuple(step.ratio)
        return RandomResizedCrop(_pair(step.size), scale, ratio, 0, interpolation=interpolation), 1
    if name != "Resize" or step.max_size is not None:
        return None, 0
    cut = len(steps) > 1 and find_step(steps[1])[1] == "CenterCrop"
    size = _pair(steps[1].size) if cut else (0, 0)
    side = _one(step.size)
    if isinstance(side, int):
        return (ResizeCenterCrop(size, resize=side, interpolation=interpolation), 2) if cut else (None, 0)
    resized = check_size(side)
    if size[0] > resized[0] or size[1] > resized[1]:  # CenterCrop would add black borders
        return None, 0
    return Squash(resized, size if cut else resized, interpolation), 1 + cut


def _one(size: Any) -> Any:
    """Return torchvision's size ``[n]`` as ``n``, and any other size unchanged."""
    return size[0] if isinstance(size, (list, tuple)) and len(size) == 1 else size


def _pair(size: Any) -> tuple[int, int]:
    return check_size(_one(size))


def _filter(interpolation: Any) -> str:
    """Return the name of a filter. If timm chooses between two filters at random, the name is "random"."""
    if isinstance(interpolation, tuple):
        return "random" if tuple(map(_filter, interpolation)) == TORCH_FILTERS else ""
    return str(getattr(interpolation, "value", ""))
