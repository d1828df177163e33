"""Make batches of samples."""

from __future__ import annotations

import functools
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, default_collate

from dbloader._describe import short_repr
from dbloader.datasets.base import CompositeDataset, describe_record, find_origin
from dbloader.datasets.fields import has_row_for_each_box, names_of
from dbloader.datasets.store import StoreDataset
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Names of the elements of a sample that is a tuple.
ELEMENTS = ("image", "label", "index")


class Collate:
    """Makes a batch of samples (dicts or tuples), like torch's default_collate, but a field's length may vary.

    `create_loader` uses a Collate for an LMDBDataset or MongoDataset. Pass a Collate as ``collate_fn`` to torch's
    DataLoader, or to `create_loader` if you need ``lists``. These rules do not depend on lengths, so a field has the
    same type in every batch:

    - A field in ``lists`` becomes a list with one element for each sample. In this list, arrays and lists of numbers
      become tensors, and other values do not change. Fields with one row for each object in an image become lists too:
      ``boxes``, fields whose names begin with ``box_``, and arrays in ``iscrowd``, ``difficult`` and ``truncated``.
    - If the targets are floats, they become one float32 tensor. default_collate would give float64.
    - Lists of numbers, such as ``[1, 0, 1]`` for several classes, become one tensor of shape (batch, length), like
      arrays. default_collate would give ``length`` tensors of shape (batch,).
    - Lists that contain texts become a list of lists.
    - default_collate makes a batch of everything else.

    Args:
        lists: Names of fields whose lengths or shapes differ, such as ``("tokens",)``. ``"image"`` is allowed.

    Raises:
        TypeError: ``lists`` contains something other than names.
        OptionError: ``lists`` is one str. Or a call gets arrays or lists of different shapes or lengths in a field that
            is not in ``lists``.
    """

    def __init__(self, lists: Iterable[str] = ()) -> None:
        if isinstance(lists, str):
            raise OptionError(f"lists must be several names, such as ({lists!r},), got the one str {lists!r}")
        self.lists = frozenset(lists)
        if not all(isinstance(name, str) for name in self.lists):
            raise TypeError(f"lists must be names of fields, such as ('tokens',), got {short_repr(lists)}")

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch of samples."""
        return collate(None, range(len(samples)), samples, self)

    def collate(
        self, samples: list[Any], fields: Mapping[str, str], names: Sequence[str], target: str | None = None
    ) -> Any:
        """Return the batch of samples.

        ``fields`` maps names in the samples to fields of the store; equal names may be left out. For tuples, ``names``
        are the names of the elements. For dicts, ``target`` is the store's field that is the target.
        """
        first = samples[0]
        if type(first) is dict:
            pairs = [(name, [each[name] for each in samples]) for name in first]
            return {name: self._field(name, fields.get(name, name), values, target) for name, values in pairs}
        if type(first) is tuple:
            columns = zip_longest(names, zip(*samples, strict=True), fillvalue="")
            target = fields.get("label", "label")
            return [self._field(name, fields.get(name, name), [*column], target) for name, column in columns if column]
        return default_collate(samples)

    def _field(self, name: str, field: str, values: list[Any], target: str | None) -> Any:
        """Return the batch of one field of the samples."""
        if field == target and all(isinstance(value, float) for value in values):
            return torch.tensor(values, dtype=torch.float32)
        of_boxes = has_row_for_each_box(field) and any(isinstance(value, (np.ndarray, list)) for value in values)
        if name in self.lists or of_boxes:
            return [_as_tensor(value) for value in values]
        if not all(isinstance(value, list) for value in values):
            return default_collate(values)
        items = [item for value in values for item in value]
        if any(isinstance(item, str) for item in items):
            return values
        if not all(isinstance(item, (int, float)) for item in items) or len({*map(len, values)}) > 1:
            return default_collate(values)
        return torch.from_numpy(np.array(values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lists={sorted(self.lists)})"


def _as_tensor(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        value = np.array(value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value


def collate(
    dataset: Any,
    indices: Sequence[int],
    samples: list[Any],
    collate_fn: Callable[[list[Any]], Any] | None,
    names: Sequence[str] = ELEMENTS,
) -> Any:
    """Return the batch of some samples. ``dataset`` is None if the dataset is unknown.

    Without ``collate_fn``, the rules of `Collate` apply to a store's dataset, and default_collate to other datasets.
    For samples that are tuples, ``names`` are the names of the elements.

    Raises:
        OptionError: A sample has None or a PIL image in a field, or fields differ in length or shape. The message names
            the sample and the field.
    """
    ours = _first_of_ours(dataset)
    function: Any = collate_fn
    if function is None:
        function = default_collate if ours is None else Collate()
    if isinstance(function, Collate):
        options = {} if ours is None else {"fields": names_of(ours.fields, ours.target), "target": ours.target}
        function = functools.partial(function.collate, **{"fields": {}, **options}, names=names)
    elif collate_fn is not None:
        return collate_fn(samples)
    try:
        return function(samples)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:  # torch does not name the sample and the field
        if not all(isinstance(sample, (dict, tuple, list)) for sample in samples):
            raise
        named = [sample if isinstance(sample, dict) else dict(zip(names, sample, strict=False)) for sample in samples]
        reason = _explain(dataset, indices, named, function)
        if reason is None:
            raise
        raise OptionError(reason) from error


def _first_of_ours(dataset: Any) -> Any:
    """Return the first StoreDataset or CompositeDataset inside a dataset; None if any part is of another class."""
    if type(dataset) is ConcatDataset:
        found = [*map(_first_of_ours, dataset.datasets)]
        return None if None in found else found[0]
    if type(dataset) is Subset:
        return _first_of_ours(dataset.dataset)
    return dataset if isinstance(dataset, (StoreDataset, CompositeDataset)) else None


def _explain(
    dataset: Any, indices: Sequence[int], samples: list[dict[str, Any]], function: Callable[[list[Any]], Any]
) -> str | None:
    """Return which field of which sample cannot be collated, why, and the remedy. Return None if no cause is known."""
    for name in samples[0]:
        with suppress(TypeError, ValueError, RuntimeError, KeyError):
            function([{name: sample[name]} for sample in samples])
            continue
        values = [sample.get(name) for sample in samples]
        for index, value in zip(indices, values, strict=True):
            if value is None:
                fields = "('image',)" if name != "image" else "('name', 'label')"
                remedy = f"choose other fields, such as fields={fields}, " if isinstance(dataset, StoreDataset) else ""
                return (
                    f"{_describe_sample(dataset, index)} has no {name}, and torch cannot collate None: {remedy}"
                    "leave the sample out with a Subset, or pass a collate_fn that takes None"
                )
            if isinstance(value, Image.Image):
                return (
                    f"{name!r} of {_describe_sample(dataset, index)} is a PIL image, which torch cannot collate: pass "
                    "a transform or a decode that returns tensors, such as dbloader.decoding.RandomResizedCrop(224), "
                    "or a collate_fn that takes PIL images"
                )
        shapes = [_shape(value) for value in values]
        other = next((at for at, shape in enumerate(shapes) if shape != shapes[0]), None)
        if other is not None:
            remedy = (
                "pass transform=RandomResizedCrop(224) or another Decoder with a size, or " if name == "image" else ""
            )
            return (
                f"{name!r} has the shape {shapes[other]} in {_describe_sample(dataset, indices[other])} and "
                f"{shapes[0]} in {_describe_sample(dataset, indices[0])}, so they cannot be one tensor: {remedy}"
                f"pass collate_fn=dbloader.Collate(lists=({name!r},)) to get a list of tensors"
            )
    return None


def _describe_sample(dataset: Any, index: int) -> str:
    if dataset is None:
        return f"sample {index} of the batch"
    dataset, index = find_origin(dataset, index)
    if isinstance(dataset, StoreDataset):
        return describe_record(dataset.records([index])[0], dataset.root)
    return f"sample {index} of {type(dataset).__name__}"


def _shape(value: Any) -> tuple[int, ...] | None:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape)
    return (len(value),) if isinstance(value, (list, tuple)) else None
