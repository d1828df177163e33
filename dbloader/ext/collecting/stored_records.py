"""Find datasets that return records of a store, to copy these records without encoding images again.

Types are looked up in ``sys.modules``. Importing ``dbloader.datasets`` would import torch, which nothing here needs.
"""

from __future__ import annotations

import sys
import warnings
from bisect import bisect_right
from collections.abc import Mapping
from itertools import groupby, islice
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import OptionError
from dbloader.ext.publishing.common_source import common_source
from dbloader.ext.sources.voc import find_classes as find_voc_classes
from dbloader.records.record import STANDARD_FIELDS, Record
from dbloader.stores.base import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Number of records in one read. It is small, because images may be large.
_READ_AT_ONCE = 16
# Fields that describe the image, and are copied together with the image.
_IMAGE_FIELDS = ("width", "height", "format", "damaged", "resized_from")


def is_loaded(value: Any, module: str, name: str) -> bool:
    """Return whether a value is an instance of ``module.name``, without importing the module."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


def gives_records(dataset: Any) -> bool:
    """Return whether each sample is an unchanged record of a store. Only `decode_pil` may have decoded its image."""
    if isinstance(dataset, Store) or not is_loaded(dataset, "dbloader.datasets.store", "StoreDataset"):
        return isinstance(dataset, Store)
    return (
        dataset.transform is dataset.target_transform is dataset.transforms is None
        and (dataset.decode is None or dataset.decode is sys.modules["dbloader.decoding.open"].decode_pil)
        and not isinstance(dataset.fields, dict)  # a dict renames fields
        and "index" not in (dataset.fields or ())
        and not dataset.makes_own_samples
        and not hasattr(dataset, "__iter__")
    )


def is_divisible(samples: Any) -> bool:
    """Return whether `divide` can find stored records behind the samples."""
    return gives_records(samples) or is_exactly(samples, "Subset") or is_exactly(samples, "ConcatDataset")


def contains_store(samples: Any) -> bool:
    """Return whether some of the samples are read from a Store directly, not through a dataset."""
    return any(isinstance(part, Store) for part in _parts(samples))


def find_stores(samples: Any) -> Iterator[Store]:
    """Yield the stores behind a dataset, or behind the datasets in a DataLoader, Subset or ConcatDataset."""
    store = samples if isinstance(samples, Store) else getattr(samples, "store", None)
    if isinstance(store, Store):
        yield store
    else:
        for part in _inner(samples):
            yield from find_stores(part)


def _inner(samples: Any) -> list[Any]:
    """Return the datasets in a ConcatDataset, or the dataset in a DataLoader, a Subset or the like; otherwise []."""
    if is_loaded(samples, "torch.utils.data", "ConcatDataset"):
        return list(samples.datasets)
    dataset = getattr(samples, "dataset", None)
    return [] if dataset is None else [dataset]


def divide(samples: Any) -> Iterator[Any]:
    """Yield the samples of a dataset, Subset or ConcatDataset in order. A stored record is yielded as a Record."""
    located = (_locate(samples, position) for position in range(len(samples)))
    for _, run in groupby(located, lambda pair: id(pair[0])):
        while block := list(islice(run, _READ_AT_ONCE)):
            dataset, indices = block[0][0], [index for _, index in block]
            if isinstance(dataset, Store):
                yield from dataset.read(indices)
            elif gives_records(dataset):
                for record in dataset.records(indices):
                    yield _select_fields(record, dataset.fields)
            else:
                for index in indices:
                    yield dataset[index]


def source_of(samples: Any) -> dict[str, Any]:
    """Return where the samples come from. The manifest of the new store keeps this as ``source``."""
    parts = list(_parts(samples))
    if not all(map(gives_records, parts)):
        return {"kind": "samples"}
    return {**common_source([part.manifest for part in parts]), "kind": "records"}


def find_classes(samples: Any) -> tuple[str, ...]:
    """Return the class names of a store, a dataset, or the dataset in a DataLoader, Subset or ConcatDataset."""
    if isinstance(samples, Store):
        return samples.manifest.classes
    if is_loaded(samples, "torchvision.datasets.voc", "VOCDetection") and samples.target_transform is None:
        return find_voc_classes(map(Path, samples.annotations))
    names = samples.manifest.classes if gives_records(samples) else getattr(samples, "classes", None)
    if [*getattr(samples, "_target_types", ())] == ["binary-category"]:  # OxfordIIITPet's cats and dogs
        names = samples.bin_classes
    names = names.tolist() if isinstance(names, np.ndarray) else names
    numbers: Any = getattr(samples, "class_to_idx", None)
    if names is None and isinstance(numbers, Mapping) and all(type(number) is int for number in numbers.values()):
        in_order = sorted(numbers, key=numbers.__getitem__)
        names = in_order if [numbers[name] for name in in_order] == [*range(len(in_order))] else None
    if isinstance(names, (tuple, list)) and names and all(isinstance(name, str) for name in names):
        is_clear = isinstance(numbers, Mapping) and len({*names}) == len(names)
        if other := [name for at, name in enumerate(names) if is_clear and numbers.get(name, at) != at]:
            raise OptionError(
                f"class_to_idx of the dataset gives {other[0]!r} the label {numbers[other[0]]}, but its "
                f"position in classes is {names.index(other[0])}: pass the names in the order of the labels as classes="
            )
        if getattr(samples, "target_transform", None) is not None:
            way = "pass the right names as classes=, or classes=() for labels without names"
            warnings.warn(
                f"the dataset has a target_transform, so its classes may not name its labels: {way}", stacklevel=3
            )
        return tuple(names)
    first, *others = [*map(find_classes, _inner(samples))] or [()]
    for second in others:
        if second != first:
            raise OptionError(
                f"the concatenated datasets have different classes, {short_repr(first)} and {short_repr(second)}: give "
                "names that are right for all datasets as classes=, or classes=() for labels without names"
            )
    return first


def is_exactly(samples: Any, name: str) -> bool:
    """Return whether the type of a value is the class ``name`` of torch.utils.data, and not a subclass."""
    return type(samples) is getattr(sys.modules.get("torch.utils.data"), name, None)


def _parts(samples: Any) -> Iterator[Any]:
    if is_exactly(samples, "Subset"):
        yield from _parts(samples.dataset)
    elif is_exactly(samples, "ConcatDataset"):
        for part in samples.datasets:
            yield from _parts(part)
    else:
        yield samples


def _locate(samples: Any, index: int) -> tuple[Any, int]:
    """Return the innermost dataset of a sample, and the sample's index there."""
    while True:
        if is_exactly(samples, "Subset"):
            samples, index = samples.dataset, as_index(samples.indices[index])
        elif is_exactly(samples, "ConcatDataset"):
            index = range(len(samples))[index]  # makes a negative index positive
            part = bisect_right(samples.cumulative_sizes, index)
            index -= samples.cumulative_sizes[part - 1] if part else 0
            samples = samples.datasets[part]
        else:
            return samples, index


def _select_fields(record: Record, fields: Sequence[str] | None) -> Record:
    """Return a record with only these fields; None keeps all. ``image`` also keeps the image's size and format."""
    if fields is None:
        return record
    names = {*fields, *(_IMAGE_FIELDS if "image" in fields else ())}
    selected = Record(fields={name: value for name, value in record.fields.items() if name in names})
    for name in names.intersection(STANDARD_FIELDS):
        setattr(selected, name, getattr(record, name))
    return selected
