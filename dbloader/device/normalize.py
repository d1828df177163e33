"""uint8 images to the normalized floats that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from typing_extensions import override

from dbloader.device import checks
from dbloader.device.sending import send
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Normalize(nn.Module):
    """Subtracts each channel's mean and divides by its standard deviation, as timm's loader does.

    It takes images as (N, C, H, W), of which the dtype tells the range: uint8 is 0 to 255, a float is 0 to 1. So
    uint8 images are a quarter of the bytes on their way to the device, and the conversion to floats costs nothing of
    its own. The result is about -3 to 3, in the order of the channels of the images.

    It is computed in float32, ``(image - mean) * (1 / std)``, and rounded once to ``dtype``; both operations are
    exactly defined, so a GPU gives the bits that the CPU gives.

    Args:
        mean: One for each channel, 0 to 1, as torchvision and timm give them.
        std: One for each channel, above 0 and at most 1, likewise.
        dtype: Of the result: torch.float32, torch.float16 or torch.bfloat16.
        channels_last: Whether the result lies in memory as torch.channels_last, else it is contiguous; the shape is
            the same. It costs no pass of its own, however the images lie.

    Raises:
        OptionError: ``mean`` or ``std`` is out of its range, they are not equally many, or ``dtype`` is another. From a
            call: the images have another number of channels (a ValueError too).
        TypeError: ``mean`` or ``std`` is no sequence of numbers. From a call: the images are no uint8 or float tensor.
        ValueError: From a call: the images have no four axes.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.mean = checks.shares("mean", mean)
        self.std = checks.shares("std", std, above=True)
        if len(self.mean) != len(self.std) or not self.mean:
            raise OptionError(
                f"mean and std must have one number for each channel, got {len(self.mean)} and {len(self.std)}"
            )
        if dtype not in _DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, got {dtype!r}")
        self.dtype = dtype
        self.channels_last = channels_last

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        checks.images(images)
        if images.shape[1] != len(self.mean):
            raise OptionError(
                f"mean and std must have one number for each of the {images.shape[1]} channels of the images, "
                f"got {len(self.mean)}"
            )
        # Computed here in float64, so that each constant is rounded once.
        full = 1.0 if images.dtype.is_floating_point else 255.0
        rows = [[full * value for value in self.mean], [1.0 / (full * value) for value in self.std]]
        mean, scale = send(torch.tensor(rows, dtype=torch.float32, device="cpu"), images.device)[..., None, None]
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        centred = torch.empty(images.shape, dtype=torch.float32, device=images.device, memory_format=layout)
        result = centred if self.dtype is torch.float32 else torch.empty_like(centred, dtype=self.dtype)
        # Not one addcmul: a GPU would round it once and a CPU twice, so that they differed in the last bit.
        return torch.mul(torch.sub(images, mean, out=centred), scale, out=result)

    @override
    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}, dtype={self.dtype}, channels_last={self.channels_last}"
