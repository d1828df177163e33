"""Batches mixed with themselves, by torchvision or timm where one of them is installed."""

from __future__ import annotations

from importlib import import_module
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import nn
from typing_extensions import override

from dbloader.device import checks
from dbloader.errors import OptionError

if TYPE_CHECKING:
    import torch

Library: TypeAlias = Literal["auto", "torchvision", "timm"]
# Where each has it, and since when.
_PLACES = {
    "torchvision": ("torchvision.transforms.v2", "torchvision 0.16"),
    "timm": ("timm.data", "timm 0.3"),
}


class _BatchMixer(nn.Module):
    """Calls torchvision's or timm's class on the images and the targets of a batch."""

    # The name of torchvision's class, and the option of timm's Mixup that takes alpha.
    _torchvision: str
    _timm: str

    def __init__(self, num_classes: int, *, alpha: float = 1.0, library: Library = "auto") -> None:
        super().__init__()
        self.num_classes = as_index(num_classes)
        if self.num_classes < 2:
            raise OptionError(f"num_classes must be at least 2, got {num_classes}")
        self.alpha = checks.number("alpha", alpha, 0, above=True)
        if library != "auto" and library not in _PLACES:
            raise OptionError(f"library must be auto, {' or '.join(_PLACES)}, got {library!r}")
        self.library, found = _find({"torchvision": self._torchvision, "timm": "Mixup"}, library)
        if self.library == "torchvision":
            self._mixer = found(alpha=self.alpha, num_classes=self.num_classes)
        else:
            alphas = {"mixup_alpha": 0.0, "cutmix_alpha": 0.0, self._timm: self.alpha}
            self._mixer = found(num_classes=self.num_classes, **alphas)

    @override
    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        checks.images(images)
        if not images.dtype.is_floating_point:
            raise TypeError(f"{type(self).__name__} must come after Normalize, for float images, got {images.dtype}")
        if self.library == "timm":
            images = images.clone()  # it works in place, and the batch may be the caller's
        mixed, soft = self._mixer(images, targets)
        return mixed, soft

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_classes}, alpha={self.alpha}, library={self.library!r})"


class Mixup(_BatchMixer):
    """Blends each image, and its target, with another one of the batch (Zhang et al.: mixup, ICLR 2018).

    It is ``torchvision.transforms.v2.MixUp`` or ``timm.data.Mixup``, whichever is installed, and for a Preparation it
    wants the targets. It takes float images (N, C, H, W), so after Normalize, and targets (N,), int64; it gives both,
    the targets as shares of the classes, shape (N, num_classes), float32.

    One batch is blended by one number, drawn from the global random generator of torch (torchvision) or numpy (timm)
    in the thread that it runs in. So unlike RandomErasing it does not repeat itself after a resume; for that, leave it
    out of the loader and seed those generators at each step of the training. timm's needs an even batch.

    Args:
        num_classes: At least 2.
        alpha: Of the beta distribution, alpha and alpha, from which the shares are drawn; above 0.
        library: ``torchvision``, ``timm``, or ``auto`` for the first of them that is installed. They blend an image
            with different ones: the one before it, or the one as far from the batch's end as it is from its begin.

    Raises:
        OptionError: An option is out of its range, or no library is installed.
        TypeError: An option is no number. From a call: the images are no float tensor.
        ValueError: From a call: the images have no four axes; or what the library finds wrong.
    """

    _torchvision = "MixUp"
    _timm = "mixup_alpha"


class CutMix(_BatchMixer):
    """Puts a rectangle of another image into each, and its share into the target (Yun et al.: CutMix, ICCV 2019).

    It is ``torchvision.transforms.v2.CutMix``, or ``timm.data.Mixup`` with ``cutmix_alpha``. See Mixup for all else:
    what it takes and gives, its arguments, what it raises and where its random numbers come from.
    """

    _torchvision = "CutMix"
    _timm = "cutmix_alpha"


def _find(names: dict[str, str], library: str) -> tuple[str, Any]:
    """Return the library to use, and its class; imports it only now."""
    wanted = names if library == "auto" else {library: names[library]}
    problem: Exception | None = None
    for candidate, name in wanted.items():
        try:
            return candidate, getattr(import_module(_PLACES[candidate][0]), name)
        except (ImportError, AttributeError) as error:
            problem = error
    needed = " or ".join(_PLACES[candidate][1] for candidate in wanted)
    remedy = f"pip install {next(iter(wanted))}"
    raise OptionError(f"mixing batches needs {needed} or later, got library={library!r}: {remedy}") from problem
