"""Apply modules to the images of a batch, one after another."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from typing_extensions import override

from dbloader.device.transfer import rebuild

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.rng import SampleRNG

Batch: TypeAlias = Any


class Preparation(nn.Module):
    """Applies modules, one after another, to the images of a batch.

    A batch has one of the types below. The result has the same type, and the batch itself is not changed.

    - a tensor: the images;
    - a tuple, named tuple or list: the images first, then the targets, if any;
    - a mapping: the images under the name ``image``, the targets, if any, under ``label``.

    A module is any callable that takes images of shape (N, C, H, W) and returns new images. If the images are a list of
    tensors (see `MultiCrop`), the module is called with each tensor. These parameters of a module get their values by
    name:

    - ``rng``: the SampleRNG of the batch, or None if the caller passes none. Each module, and each tensor of a list,
      gets its own stream of random numbers.
    - ``targets``: the targets of the batch. The module must return (images, targets). Three kinds of modules get the
      targets under other names: torchvision transforms (``*inputs``), timm's Mixup (``target``), and kornia modules
      with two ``data_keys``, such as ``RandomMixUpV2(data_keys=["input", "class"])``. Only torchvision transforms also
      work without targets.

    PrefetchLoader calls ``preparation(batch, rng=SampleRNG(seed, epoch, positions))``.

    Args:
        *modules: Modules and callables, applied in this order. None is left out. A Preparation stands for its modules.
        image: Name of the images in a mapping.
        label: Name of the targets in a mapping.

    Raises:
        TypeError: A module is not callable. From a call: the batch has another type; a module takes targets and the
            batch has none; or such a module does not return (images, targets).
        KeyError: From a call: a mapping has no ``image``.
    """

    def __init__(self, *modules: Callable[..., Any] | None, image: str = "image", label: str = "label") -> None:
        super().__init__()
        for module in modules:
            if module is not None and not callable(module):
                raise TypeError(
                    f"a preparation must be a module or another callable that takes the images, got {module!r}"
                )
        self.steps = nn.ModuleList()
        for module in modules:
            if isinstance(module, Preparation):  # otherwise, the random streams of its modules would start at 0 again
                self.steps.extend(module.steps)
            elif module is not None:
                self.steps.append(module if isinstance(module, nn.Module) else _Function(module))
        self.image = image
        self.label = label

    @override
    def forward(self, batch: Batch, rng: SampleRNG | None = None) -> Batch:
        if isinstance(batch, Mapping):
            if self.image not in batch:
                got = ", ".join(map(str, batch))
                raise KeyError(
                    f"the batch has no {self.image!r}, got {got}: name the images with Preparation(image=...), or add "
                    "'image' to the fields= of the dataset"
                )
            image: Any = self.image
            label: Any = self.label
            values: dict[Any, Any] = dict(batch)
        elif isinstance(batch, (tuple, list)) and batch:
            image, label = 0, 1
            values = dict(enumerate(batch))
        elif isinstance(batch, torch.Tensor):
            return self._apply_steps(batch, None, rng)[0]
        else:
            raise TypeError(
                f"a batch must be a tensor of images, or a tuple, list or dict with such a tensor, got {_name(batch)}"
            )
        values[image], targets = self._apply_steps(values[image], values.get(label), rng)
        if label in values:
            values[label] = targets
        return rebuild(batch, values)

    def _apply_steps(self, images: Any, targets: Any, rng: SampleRNG | None) -> tuple[Any, Any]:
        streams = itertools.count(0 if rng is None else rng.stream)

        def options(wanted: set[str]) -> dict[str, Any]:
            if "rng" not in wanted:
                return {}
            return {"rng": None if rng is None else rng.with_stream(next(streams))}

        for module in self.steps:
            wanted = _parameters(module)
            if _are_crops(images):
                if {"targets", "target"} & wanted:
                    raise TypeError(f"{_name(module)} takes targets, which a batch of several crops cannot share")
                images = [module(crop, **options(wanted)) for crop in images]
                continue
            keys = getattr(module, "data_keys", None)
            if isinstance(keys, (list, tuple)):  # a module of kornia: the keys are the kinds of its arguments
                takes_both = len(keys) == 2
            else:
                takes_both = "*inputs" in wanted and targets is not None
            if not takes_both and not {"targets", "target"} & wanted:
                images = module(images, **options(wanted))
                continue
            if targets is None:
                raise TypeError(f"{_name(module)} takes the targets of a batch, got a batch without targets")
            if "targets" in wanted:
                result = module(images, targets=targets, **options(wanted))
            elif "target" in wanted:
                # timm's Mixup changes its input, which may belong to the caller.
                result = module(images.clone(), target=targets, **options(wanted))
            else:
                result = module(images, targets, **options(wanted))
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise TypeError(
                    f"{_name(module)} takes targets and so must return (images, targets), got {_name(result)}"
                )
            images, targets = result
        return images, targets


def _are_crops(images: Any) -> bool:
    """Return whether ``images`` is a list of tensors of images or clips, with one tensor for each crop."""
    return isinstance(images, (list, tuple)) and all(isinstance(one, torch.Tensor) and one.ndim > 3 for one in images)


class _Function(nn.Module):
    """Wraps a callable, because a ModuleList accepts only modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    @override
    def forward(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)

    @override
    def extra_repr(self) -> str:
        return repr(self.function)


def _parameters(module: nn.Module) -> set[str]:
    """Return the names of the arguments of a module's ``forward``. The name of ``*inputs`` includes the star.

    A ``target`` with a default value is left out: it is an option of the module, not the batch's targets.
    """
    module = getattr(module, "_orig_mod", module)  # torch.compile hides the names of the parameters
    try:
        function = module.function if isinstance(module, _Function) else module.forward
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return set()
    names = {str(each).partition(":")[0].partition("=")[0] for each in parameters.values()}
    if "target" in names and parameters["target"].default is not inspect.Parameter.empty:
        names.remove("target")
    return names


def _name(value: Any) -> str:
    return repr(value.function) if isinstance(value, _Function) else type(value).__name__
