"""Divide the steps of a torchvision or timm transform into a Decoder, steps for a sample, and steps for a batch.

::

    RandomResizedCrop, RandomHorizontalFlip     ColorJitter               ToTensor, Normalize
    head: a Decoder, while it decodes       ->  middle: each sample   ->  tail: each batch, on the device
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import Subset

from dbloader.datasets.base import CompositeDataset
from dbloader.datasets.fields import has_fields_to_crop, has_image
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import is_albumentations
from dbloader.decoding.decoder import Decoder, DecodeTensor
from dbloader.decoding.open import decode_pil
from dbloader.errors import OptionError
from dbloader.ext.fusing.head import Head, read_head, skip_conversions
from dbloader.ext.fusing.middle import Middle
from dbloader.ext.fusing.steps import (
    find_step,
    fingerprint,
    flatten,
    is_conversion,
    keeps_pil,
    makes_floats,
    makes_tensor,
)
from dbloader.ext.fusing.tail import read_tail


class Plan(NamedTuple):
    """How to run a transform: ``transforms`` (a Decoder, then a callable) for each sample, ``tail`` for each batch."""

    transforms: list[Any]
    tail: list[Any]
    text: str
    makes_floats: bool


def make_plan(dataset: Any, transform: Any, *, fuse: bool = True) -> Plan:
    """Return how to run a transform on the samples of a dataset. None means the dataset's own transform."""
    own = getattr(dataset.dataset if type(dataset) is Subset else dataset, "transform", None)
    given, transform = transform, own if transform is None else transform
    steps = [] if transform is None or isinstance(transform, Decoder) else flatten(transform)
    unchanged = Plan([given], [], _describe({"each sample": steps}) if fuse else "", any(map(makes_floats, steps)))
    stores = _stores_of(dataset)
    if not steps or not fuse or not all(map(_suits, stores)) or len({store.resize for store in stores}) > 1:
        return unchanged
    # A Middle seeds ``given``. albumentations needs no Middle. Without ``given``, the dataset calls its own transform.
    if given is not None and not is_albumentations(given):
        unchanged = unchanged._replace(transforms=[Middle([given], "PIL")])
    resize = stores[0].resize
    head, first = read_head(steps, resize)
    tail, at, kind = None, first, _kind(steps[:first])
    while tail is None and at < len(steps):
        on_tensors = any(map(makes_tensor, steps[:at]))
        tail = read_tail(steps[at:], on_tensors=on_tensors)
        if tail is None and (makes_floats(steps[at]) or not (any(find_step(steps[at])) or keeps_pil(steps[at]))):
            break
        at += tail is None
    if tail is None:
        at = len(steps)
        if _kind(steps) == "PIL" and not unchanged.makes_floats:
            return unchanged  # PIL images cannot be collated; the error of collate names the remedy
    elif head is None and at == 0:
        head = Head(DecodeTensor(), None, resize, on_tensors=True)
    if head is None and not tail:
        return unchanged
    left = steps[first:at]
    middle = [Middle(left, kind, to_tensor=tail is not None and not on_tensors)] if left else []
    floats = [step for step in steps[at:] if not is_conversion(step)]
    text = _describe({"while decoding": steps[:first], "each sample": left, "each batch, on the device": floats})
    heads = [] if head is None else [head]
    owners = [(store, _functions_of(store)) for store in stores if store.transform is transform]
    check = partial(_check_unchanged, transform=transform, known=fingerprint(transform), owners=owners)
    return Plan([*heads, *middle], [check, *(tail or [])], text, unchanged.makes_floats)


def with_head(dataset: Any) -> Any:
    """Return a copy of a dataset with a Decoder for the first steps; ``dataset`` itself without such a Decoder."""
    steps = flatten(dataset.transform)
    head, first = read_head(steps, dataset.resize, own=True) if _suits(dataset) else (None, 0)
    if head is None:
        return dataset
    first, dataset = skip_conversions(steps, first), copy.copy(dataset)
    # Unlike a Middle, its bound method has no ``takes_seed``. So it gets no seed, and draws as in any DataLoader.
    dataset.decode, dataset.transform = head, Middle(steps[first:], _kind(steps[:first])).__call__
    return dataset


def _kind(steps: list[Any]) -> str:
    """Return what steps that keep pixel values make of a PIL image: "PIL", "tensor" or "Image" (tv_tensor)."""
    kind = "PIL"
    for step in steps:
        name = find_step(step)[1]
        if name == "ToImage":
            kind = "Image"
        elif (makes_tensor(step) and kind == "PIL") or (name == "ToPureTensor" and kind == "Image"):
            kind = "tensor"
    return kind


def _describe(places: dict[str, list[Any]]) -> str:
    names = {where: [getattr(one, "__name__", type(one).__name__) for one in some] for where, some in places.items()}
    return "".join(f"\n  {where}: {', '.join(some)}" for where, some in names.items() if some)


def _stores_of(dataset: Any) -> list[Any]:
    """Return the datasets in a mixture or Subset."""
    if isinstance(dataset, CompositeDataset):
        return [store for part in dataset.datasets for store in _stores_of(part)]
    return _stores_of(dataset.dataset) if type(dataset) is Subset else [dataset]


def _suits(dataset: Any) -> bool:
    """Return whether a dataset reads a store, and only its ``transform`` changes its images."""
    return (
        isinstance(dataset, StoreDataset)
        and not dataset.makes_own_samples
        and dataset.decode is decode_pil
        and dataset.transforms is None
        and has_image(dataset.fields)
        and not has_fields_to_crop(dataset)
    )


def _check_unchanged(images: Any, *, transform: Any, known: Any, owners: list[tuple[Any, list[int]]]) -> Any:
    """Return the images. Raise OptionError if the transform, or a dataset that owns it, changed after `make_plan`."""
    if fingerprint(transform) != known or any(_functions_of(owner) != functions for owner, functions in owners):
        raise OptionError(
            "the transform was changed after create_loader, which has fused its steps: call create_loader again, "
            "or pass fuse=False"
        )
    return images


def _functions_of(dataset: Any) -> list[int]:
    return [id(getattr(dataset, name)) for name in ("transform", "target_transform", "transforms", "decode")]
