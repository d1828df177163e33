"""Collate the fields of samples: boxes and other ragged fields to lists, lists of numbers to one tensor."""

from __future__ import annotations

import functools
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from dbloader._describe import short_repr
from dbloader.datasets.fields import has_row_for_each_box, names_of
from dbloader.datasets.noted_errors import describe_record
from dbloader.datasets.store import StoreDataset
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# The elements of a sample that is a tuple.
ELEMENTS = ("image", "label", "index")


class Collate:
    """Makes a batch of samples that are dicts or tuples: torch's default_collate, but for fields of any length.

    The loaders collate the samples of an LMDBDataset or MongoDataset so by themselves. Pass it as ``collate_fn`` to
    torch's DataLoader, or to choose ``lists``. The rules, which look at no counts, so that a field always has the same
    type:

    - A field in ``lists`` becomes a list with one element for each sample: a tensor of its array or numbers, anything
      else as it is. So do ``boxes``, all fields whose name begins with ``box_``, and ``iscrowd``, ``difficult`` and
      ``truncated`` where these are arrays: they have as many rows as their image has objects.
    - A list of numbers in each sample, such as ``[1, 0, 1]`` for several classes, becomes one tensor of the shape
      (batch, length), as an array does. default_collate would give ``length`` tensors of the shape (batch,).
    - A list with a text in it stays one list for each sample.
    - default_collate makes a batch of everything else.

    Args:
        lists: Names in the samples of further fields whose lengths or shapes differ, such as ``("tokens",)``; also
            ``"image"``.

    Raises:
        TypeError: ``lists`` has something else than names.
        OptionError: ``lists`` is one str. From a call: lists of numbers, or arrays, differ in length or shape, and
            their field is not in ``lists``.
    """

    def __init__(self, lists: Iterable[str] = ()) -> None:
        if isinstance(lists, str):
            raise OptionError(f"lists must be several names, such as ({lists!r},), got the one str {lists!r}")
        self.lists = frozenset(lists)
        if not all(isinstance(name, str) for name in self.lists):
            raise TypeError(f"lists must be names of fields, such as ('tokens',), got {short_repr(lists)}")

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch of samples."""
        return self.collate(samples, {}, ELEMENTS)

    def collate(self, samples: list[Any], fields: Mapping[str, str], names: Sequence[str]) -> Any:
        """Return the batch of samples.

        ``fields`` says which field of a store a name in dicts shows, if another one; ``names`` are those of a tuple's
        elements.
        """
        first = samples[0]
        if type(first) is dict:
            return {name: self._field(name, fields.get(name, name), [each[name] for each in samples]) for name in first}
        if type(first) is tuple:
            columns = zip_longest(names, zip(*samples, strict=True), fillvalue="")
            return [self._field(name, name, [*column]) for name, column in columns if column]
        return default_collate(samples)

    def _field(self, name: str, field: str, values: list[Any]) -> Any:
        """Return the batch of one field of the samples."""
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
    names: Sequence[str] = ELEMENTS,
    rule: Collate | None = None,
) -> Any:
    """Return the batch of some samples: by the rules of `Collate` if they are a store's, else default_collate's.

    ``names`` are those of a tuple's elements.

    Raises:
        OptionError: A sample has None or a PIL image in a field, or fields differ in length or shape. It names them.
    """
    function: Any = default_collate
    if rule is not None or isinstance(dataset, StoreDataset):
        fields = names_of(dataset.fields) if isinstance(dataset, StoreDataset) else {}
        function = functools.partial((rule or Collate()).collate, fields=fields, names=names)
    try:
        return function(samples)
    except (TypeError, ValueError, RuntimeError) as error:  # torch's message has neither the sample nor the field
        if not all(isinstance(sample, (dict, tuple, list)) for sample in samples):
            raise
        missing = next(_find_missing(samples, names), None)
        if missing is not None:
            raise OptionError(_describe_missing(dataset, indices[missing[0]], missing[1])) from error
        picture = next(_find_picture(samples, names), None)
        if picture is not None:
            raise OptionError(
                f"{picture[1]!r} of {_describe_sample(dataset, indices[picture[0]])} is a PIL image, which torch "
                "cannot collate: pass a transform or a decode that returns tensors, such as RandomResizedCrop(224), or "
                "a collate_fn that takes PIL images"
            ) from error
        ragged = next(_find_ragged(samples, names, function), None)
        if ragged is None:
            raise
        raise OptionError(_describe_ragged(dataset, indices, *ragged)) from error


def _find_missing(samples: list[Any], names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the position and the field of each None in samples."""
    named = [sample if isinstance(sample, dict) else dict(zip(names, sample, strict=False)) for sample in samples]
    # If the first value is a text, torch makes a list, which may contain None.
    texts = {name for name, value in named[0].items() if isinstance(value, str)}
    for position, sample in enumerate(named):
        yield from ((position, name) for name, value in sample.items() if value is None and name not in texts)


def _find_picture(samples: list[Any], names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the position and the field of each PIL image in samples."""
    for position, sample in enumerate(samples):
        named = sample if isinstance(sample, dict) else dict(zip(names, sample, strict=False))
        yield from ((position, name) for name, value in named.items() if isinstance(value, Image.Image))


def _describe_sample(dataset: Any, index: int) -> str:
    if isinstance(dataset, StoreDataset):
        return describe_record(dataset.records([index])[0], dataset.root)
    return f"sample {index} of {type(dataset).__name__}"


def _describe_missing(dataset: Any, index: int, name: str) -> str:
    fields = "('image',)" if name != "image" else "('name', 'label')"
    choose = f"choose fields without it, as fields={fields}, " if isinstance(dataset, StoreDataset) else ""
    return (
        f"{_describe_sample(dataset, index)} has no {name}, which torch cannot collate: {choose}"
        "leave it out with a Subset, or pass a collate_fn that takes None"
    )


def _find_ragged(
    samples: list[Any], names: Sequence[str], function: Callable[[list[Any]], Any]
) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield each field that has no batch: its name, the position of the first other shape, that, and the first one."""
    named = [sample if isinstance(sample, dict) else dict(zip(names, sample, strict=False)) for sample in samples]
    for name, value in named[0].items():
        with suppress(TypeError, ValueError, RuntimeError):
            function([{name: sample[name]} for sample in named])
            continue
        shapes = [_shape(sample.get(name)) for sample in named]
        others = [position for position, shape in enumerate(shapes) if shape != shapes[0]]
        if others:
            yield name, others[0], shapes[others[0]], _shape(value)


def _shape(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape)
    return (len(value),) if isinstance(value, (list, tuple)) else None


def _describe_ragged(dataset: Any, indices: Sequence[int], name: str, position: int, shape: Any, first: Any) -> str:
    where = [_describe_sample(dataset, index) for index in (indices[0], indices[position])]
    decoder = "pass transform=RandomResizedCrop(224) or another Decoder with a size, or " if name == "image" else ""
    return (
        f"{name!r} of {where[1]} has the shape {shape}, and that of {where[0]} {first}, so they cannot be one tensor: "
        f"{decoder}pass collate_fn=Collate(lists=({name!r},)) of dbloader for a list of them"
    )
