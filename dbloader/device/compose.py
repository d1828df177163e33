"""Modules one after another on the images of a batch."""

from __future__ import annotations

import inspect
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
    """Applies modules, one after another, to the images of a batch; all else in the batch stays as it is.

    A batch is one of these; it comes back as the same type, and the one that was given is not changed:

    - a tensor: the images;
    - a tuple, named tuple or list: first the images, second, where there are two, the targets;
    - a mapping: the images under the name that ``image`` says, the targets under the one that ``label`` says.

    A module is any callable that takes the images, (N, C, H, W), and gives the new ones. It may want more, and says so
    by the names of its parameters:

    - ``rng``: the SampleRNG of the batch, by that name, each module with a stream of its own; None where the caller
      has none. For modules that draw random numbers.
    - ``targets``: the targets of the batch, by that name; it then gives both, as (images, targets). So do those that
      take both as torchvision's transforms do (``*inputs``) or timm's Mixup (``target``): where the batch has targets,
      torchvision's get them, and most give them back as they are.

    Whoever has the batches calls ``preparation(batch, rng=SampleRNG(seed, epoch, indices))``.

    Args:
        *modules: Modules and callables, in their order; None among them is left out, and another Preparation stands
            for its modules.
        image: Where the images are in a mapping.
        label: Where the targets are in a mapping.

    Raises:
        TypeError: A module is not callable. From a call: the batch is none of those above; a module wants targets
            and there are none, or gives something else than (images, targets) for them.
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
            if isinstance(module, Preparation):  # as if its modules stood here: else streams would come twice
                self.steps.extend(module.steps)
            elif module is not None:
                self.steps.append(module if isinstance(module, nn.Module) else _Called(module))
        self.image = image
        self.label = label

    @override
    def forward(self, batch: Batch, rng: SampleRNG | None = None) -> Batch:
        if isinstance(batch, Mapping):
            if self.image not in batch:
                raise KeyError(f"the batch has no {self.image!r}, got {', '.join(map(str, batch))}: say image=")
            places: tuple[Any, Any] = (self.image, self.label)
            values: dict[Any, Any] = dict(batch)
        elif isinstance(batch, (tuple, list)) and batch:
            places = (0, 1)
            values = dict(enumerate(batch))
        elif isinstance(batch, torch.Tensor):
            return self._prepared(batch, None, rng)[0]
        else:
            raise TypeError(
                f"a batch must be a tensor of images, or a tuple, list or dict with one in it, got {_kind(batch)}"
            )
        images, targets = self._prepared(values[places[0]], values.get(places[1]), rng)
        values[places[0]] = images
        if places[1] in values:
            values[places[1]] = targets
        return rebuild(batch, values)

    def _prepared(self, images: Any, targets: Any, rng: SampleRNG | None) -> tuple[Any, Any]:
        stream = 0 if rng is None else rng.stream
        for module in self.steps:
            wanted = _parameters(module)
            options: dict[str, Any] = {}
            if "rng" in wanted:
                options["rng"] = None if rng is None else rng.with_stream(stream)
                stream += 1
            if not {"targets", "target"} & wanted and ("*inputs" not in wanted or targets is None):
                images = module(images, **options)
                continue
            if targets is None:
                raise TypeError(f"{_kind(module)} wants the targets of a batch, got a batch without")
            if "targets" in wanted:
                result = module(images, targets=targets, **options)
            elif "target" in wanted:
                # timm's Mixup works in place, and the images may be the caller's.
                result = module(images.clone(), target=targets, **options)
            else:
                result = module(images, targets, **options)
            if not isinstance(result, tuple) or len(result) != 2:
                raise TypeError(
                    f"{_kind(module)} wants targets and so must give (images, targets), got {_kind(result)}"
                )
            images, targets = result
        return images, targets


class _Called(nn.Module):
    """A callable that is no module, for the list of those."""

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
    """Return the names of the parameters with which a module is called, with a star before that of ``*inputs``.

    A ``target`` with a default is an option of the module's own, such as a brightness.
    """
    module = getattr(module, "_orig_mod", module)  # torch.compile's hides them
    try:
        called = module.function if isinstance(module, _Called) else module.forward
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # some functions written in C have none to tell
        return set()
    names = {str(each).partition(":")[0].partition("=")[0] for each in parameters.values()}
    if "target" in names and parameters["target"].default is not inspect.Parameter.empty:
        names.remove("target")
    return names


def _kind(value: Any) -> str:
    return repr(value.function) if isinstance(value, _Called) else type(value).__name__
