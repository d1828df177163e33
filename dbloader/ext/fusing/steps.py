"""Recognize steps of torchvision and timm by their exact type and the names of their options."""

from __future__ import annotations

import sys
from typing import Any

_LIBRARIES = {
    "torchvision.transforms": "v1",
    "torchvision.transforms.v2": "v2",
    "timm.data.transforms": "timm",
}
_TO_TENSOR = ("ToImage", "PILToTensor", "MaybePILToTensor")
_TO_FLOAT = ("ToTensor", "MaybeToTensor", "ToDtype", "ConvertImageDtype")
# The options of each step. A step with other options is of an unknown version, or was modified by the user.
_OPTIONS = {
    "Compose": "transforms",
    "RandomResizedCrop": "size scale ratio interpolation antialias",
    "RandomResizedCropAndInterpolation": "size scale ratio interpolation",
    "RandomCrop": "size padding pad_if_needed fill padding_mode",
    "Resize": "size interpolation max_size antialias",
    "CenterCrop": "size",
    "RandomHorizontalFlip": "p",
    "ConvertImageDtype": "dtype",
    "ToDtype": "dtype scale",
    "Normalize": "mean std inplace",
    "RandomErasing": "p scale ratio value inplace",
    **dict.fromkeys((*_TO_TENSOR, "RGB", "ToTensor", "MaybeToTensor", "ToPureTensor"), ""),
}  # fmt: skip
_NOT_PLAIN = ("Lambda", "FiveCrop", "TenCrop", "ToPILImage")  # these may return several images, or anything


def find_step(step: Any) -> tuple[str, str]:
    """Return the library and the name of a known step, or two empty strings."""
    name = type(step).__name__
    for module, library in _LIBRARIES.items():
        if getattr(sys.modules.get(module), name, None) is type(step):
            wanted = _OPTIONS.get(name)
            if wanted is not None and _options_of(step).keys() == {*wanted.split()}:
                return library, name
    return "", ""


def _options_of(step: Any) -> dict[str, Any]:
    """Return the options of a step, and the hooks that the user has added to it."""
    values = vars(step) if hasattr(step, "__dict__") else {}
    public = {name: value for name, value in values.items() if not name.startswith("_") and name != "training"}
    return public | {name: value for name, value in values.items() if name.endswith("_hooks") and value}


def flatten(transform: Any) -> list[Any]:
    """Return the steps of a transform in order. The steps of a Compose replace the Compose."""
    if find_step(transform)[1] == "Compose":
        return [step for part in transform.transforms for step in flatten(part)]
    return [transform]


def fingerprint(transform: Any) -> list[Any]:
    """Return a value that changes if a step is replaced or an option of a known step changes."""
    return [(id(step), str(_options_of(step)) if any(find_step(step)) else "") for step in flatten(transform)]


def is_conversion(step: Any) -> bool:
    """Return whether a step leaves the 8-bit values of an RGB image as they are."""
    name = find_step(step)[1]
    return name in (*_TO_TENSOR, "RGB", "ToPureTensor") or (name in _TO_FLOAT[2:] and str(step.dtype) == "torch.uint8")


def makes_tensor(step: Any) -> bool:
    """Return whether a step makes a uint8 tensor of a PIL image."""
    return find_step(step)[1] in _TO_TENSOR


def makes_floats(transform: Any) -> bool:
    """Return whether a known step turns images into floats."""
    return any(find_step(step)[1] in _TO_FLOAT and not is_conversion(step) for step in flatten(transform))


def keeps_pil(step: Any) -> bool:
    """Return whether a step is defined by torchvision or timm, and turns a PIL image into one PIL image."""
    own = type(step).__module__.partition(".")[0] in ("torchvision", "timm") and type(step).__name__ not in _NOT_PLAIN
    return own and all(map(keeps_pil, getattr(step, "transforms", ())))
