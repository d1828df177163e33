"""Turn the last steps of a transform into modules for a whole batch. These steps make floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import override

from dbloader.device.memory import BatchMemory
from dbloader.errors import OptionError
from dbloader.ext.device.erasing import RandomErasing
from dbloader.ext.fusing.steps import find_step, is_conversion, makes_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class ToFloat(nn.Module):
    """Computes what ToTensor and Normalize make of each image, by the same operations. So the bits are the same.

    Args:
        divides: Whether to divide by 255, as ToTensor does. torchvision v2 multiplies by 1 / 255 instead.
        dtype: Data type of the floats; None for torch's default.
    """

    def __init__(self, *, divides: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.divides = divides
        self.dtype = dtype
        self.normalized: list[tuple[list[float], list[float]]] = []  # mean and std of each Normalize
        self._memory = BatchMemory()

    @override
    def forward(self, images: Any) -> torch.Tensor:
        if not isinstance(images, torch.Tensor) or images.dtype is not torch.uint8:
            got = getattr(images, "dtype", type(images).__name__)
            raise OptionError(f"the steps of the transform should make uint8 images, got {got}: pass fuse=False")
        dtype = self.dtype or torch.get_default_dtype()

        def tensor(value: float, *shape: int) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=images.device)

        # Divide by a tensor. To divide by a number, a GPU would multiply by the number's inverse, with other bits.
        scale = tensor(255.0 if self.divides else 1.0 / 255)
        numbers = [[torch.stack([tensor(one, 1, 1) for one in values]) for values in pair] for pair in self.normalized]

        def compute(some: torch.Tensor, out: torch.Tensor) -> None:
            torch.div(some, scale, out=out) if self.divides else torch.mul(some, scale, out=out)
            for mean, std in numbers:
                out.sub_(mean).div_(std)

        return self._memory.compute(images, compute, dtype)


def read_tail(steps: Sequence[Any], *, on_tensors: bool) -> list[nn.Module] | None:
    """Return modules that do the same as the last steps of a transform; None if there are no such modules.

    With ``on_tensors``, the steps get uint8 tensors, otherwise PIL images.
    """
    modules: list[nn.Module] = []
    floats: ToFloat | None = None
    for step in steps:
        library, name = find_step(step)
        scales = (
            name in ("ConvertImageDtype", "ToDtype") and step.dtype is torch.float32 and getattr(step, "scale", True)
        )
        if (floats is None and is_conversion(step)) or name in ("ToPureTensor", "ToImage"):
            on_tensors = on_tensors or makes_tensor(step)
        elif floats is None and ((scales and on_tensors) or (name in ("ToTensor", "MaybeToTensor") and not on_tensors)):
            floats = ToFloat(divides=library != "v2" or not scales, dtype=torch.float32 if scales else None)
            modules.append(floats)
        elif name == "Normalize" and floats is not None and modules[-1] is floats:
            mean, std = (torch.as_tensor(values).flatten().tolist() for values in (step.mean, step.std))
            floats.normalized.append((mean, std))
            if not all(std) or {len(mean), len(std)} - {1, 3}:
                return None  # torchvision raises an error
        elif name == "RandomErasing" and floats is not None and (erasing := _read_erasing(step)) is not None:
            modules.append(erasing)
        else:
            return None
    return modules if on_tensors or floats is not None else None


def _read_erasing(step: Any) -> RandomErasing | None:
    mode: Any = {"0": "const", "[0.0]": "const", "random": "pixel", "None": "pixel"}.get(str(step.value))
    try:
        (least, most), (low, high) = step.scale, step.ratio
        return RandomErasing(step.p, least, most, low, high, mode)
    except (TypeError, ValueError):  # RandomErasing does not allow these values
        return None
