"""Read a transform of torchvision or timm, and run what it means: in a Decoder, for each sample, and for each batch.

::

    RandomResizedCrop, RandomHorizontalFlip     ColorJitter               ToTensor, Normalize
    head: a Decoder, while it decodes       ->  middle: each sample   ->  tail: each batch, on the device
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import Subset

from dbloader.datasets.base import CompositeDataset
from dbloader.datasets.fields import has_fields_to_crop, has_image
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import is_albumentations
from dbloader.decoding.decoder import DecodeTensor
from dbloader.decoding.open import decode_pil
from dbloader.errors import OptionError
from dbloader.ext.fusing.head import Head, read_head
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
    """How a transform is run: in the dataset, a Decoder and then a callable; for each batch, the tail."""

    transforms: list[Any]
    tail: list[Any]
    text: str


def make_plan(dataset: Any, transform: Any) -> Plan | None:
    """Return how to run a transform on the samples of a dataset; None if no step of it can be fused."""
    stores = _stores_of(dataset)
    resizes = {getattr(store, "resize", None) for store in stores}
    if not all(map(_suits, stores)) or len(resizes) > 1 or is_albumentations(transform):
        return None
    steps = flatten(transform)
    head, first = read_head(steps, *resizes)
    tail, at, kind = None, first, _kind(steps[:first])
    while tail is None and at < len(steps):
        on_tensors = any(map(makes_tensor, steps[:at]))
        tail = read_tail(steps[at:], on_tensors=on_tensors)
        if tail is None and (makes_floats(steps[at]) or not (any(find_step(steps[at])) or keeps_pil(steps[at]))):
            break
        at += tail is None
    if tail is None:
        at = len(steps)
        if _kind(steps) == "PIL" and not makes_floats(transform):
            return None  # nobody can collate PIL images, and collate explains the remedy
    elif head is None and at == 0:
        head = Head(DecodeTensor(), 0, *resizes, on_tensors=True)
    if head is None and not tail:
        return None
    left = steps[first:at]
    middle = [Middle(left, kind, to_tensor=tail is not None and not on_tensors)] if left else []
    floats = [step for step in steps[at:] if not is_conversion(step)]
    places = {"while decoding": steps[:first], "each sample": left, "each batch, on the device": floats}
    text = "".join(f"\n  {place}: {', '.join(map(_name, some))}" for place, some in places.items() if some)
    heads = [] if head is None else [head]
    owners = [(store, _functions_of(store)) for store in stores if store.transform is transform]
    check = partial(_check_unchanged, transform=transform, known=fingerprint(transform), owners=owners)
    return Plan([*heads, *middle], [check, *(tail or [])], text)


def _kind(steps: list[Any]) -> str:
    """Return what some steps make of a PIL image, if they keep its values: "PIL", "tensor" or "Image"."""
    made = [find_step(step)[1] for step in steps if makes_tensor(step)]
    return "PIL" if not made else "Image" if made[-1] == "ToImage" else "tensor"


def _name(step: Any) -> str:
    return getattr(step, "__name__", type(step).__name__)


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
    """Return the images. Raise OptionError if the transform, or a dataset that owns it, is no longer as planned."""
    if fingerprint(transform) != known or any(_functions_of(owner) != functions for owner, functions in owners):
        raise OptionError(
            "the transform was changed after create_loader, which has fused its steps: call create_loader again, "
            "or pass fuse=False"
        )
    return images


def _functions_of(dataset: Any) -> list[int]:
    return [id(getattr(dataset, name)) for name in ("transform", "target_transform", "transforms", "decode")]
