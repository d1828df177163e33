"""Choose the fetcher that makes the batches of a dataset. A SampleBatchFetcher makes the batches of any dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset
from typing_extensions import override

from dbloader.batches.base import DatasetBatchFetcher, OuterBatchFetcher, part_of, row_for_each
from dbloader.batches.collate import Collate, collate
from dbloader.batches.tensors import TensorBatchFetcher
from dbloader.batches.timed import Work, now
from dbloader.datasets.base import CompositeDataset
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import apply_transform, random_numbers_for
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.masks_and_boxes import changes_size, refuse_masks
from dbloader.sampling.rng import seed_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from dbloader.batches.base import BatchFetcher, Finish, Slot, Submit


def create_fetcher(
    dataset: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    *,
    transform: Any = None,
    pin_memory: bool = False,
) -> BatchFetcher:
    """Return the fetcher that makes the batches of a map-style dataset with the fewest copies of the images.

    Args:
        dataset: The dataset.
        collate_fn: As in SampleBatchFetcher.
        transform: As in SampleBatchFetcher; for a CompositeDataset, a list with the transform for each dataset.
        pin_memory: Whether to decode images into pinned memory, for fast copies to a GPU.
    """
    if isinstance(dataset, CompositeDataset):
        fetcher: BatchFetcher = dataset.fetcher(_create_parts(dataset, collate_fn, transform, pin_memory), collate_fn)
        return fetcher
    if type(dataset) is Subset:  # a subclass of Subset may choose its samples differently
        inner = create_fetcher(dataset.dataset, collate_fn, transform=transform, pin_memory=pin_memory)
        return SubsetBatchFetcher(dataset, inner)
    rule = Collate() if collate_fn is None else collate_fn
    if (
        transform is None
        and isinstance(rule, Collate)
        and "image" not in rule.lists
        and TensorBatchFetcher.suits(dataset)
    ):
        return TensorBatchFetcher(dataset, rule, pin_memory=pin_memory)
    return SampleBatchFetcher(dataset, transform, collate_fn)


def _create_parts(
    composite: CompositeDataset, collate_fn: Any, transforms: list[Any] | None, pin_memory: bool
) -> list[DatasetBatchFetcher]:
    """Return a fetcher for each dataset of a CompositeDataset: either all decode into tensors, or none does."""
    pairs = [*zip(composite.datasets, transforms or [None] * len(composite.datasets), strict=True)]
    parts: list[Any] = [
        create_fetcher(part, collate_fn, transform=transform, pin_memory=pin_memory) for part, transform in pairs
    ]
    return parts if len({*map(type, parts)}) == 1 else [SampleBatchFetcher(*pair) for pair in pairs]


class SubsetBatchFetcher(OuterBatchFetcher):
    """Makes the batches of a Subset with the fetcher of the whole dataset."""

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        chosen = [self.dataset.indices[index] for index in indices]
        return self.inner.begin(seed_like(indices, chosen), submit, size, read, slot)


class SampleBatchFetcher(DatasetBatchFetcher):
    """Makes the batches of any map-style dataset, with ``collate_fn``, or with ``collate.collate`` by default.

    ``transform`` is applied to the first element of each sample, or to the image of a dict. None means that the dataset
    transforms its samples itself. If ``transform`` is a Decoder, images may be PIL images, arrays or encoded files.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[..., Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.collate_fn = collate_fn
        self._image_name = image_and_label(dataset)["image"]
        # All records of a batch are read together, before threads decode the images. From a server, this takes one
        # round trip. From a file, several reading threads would wait for the GIL.
        self._reads_records = transform is None and isinstance(dataset, StoreDataset) and not dataset.makes_own_samples

    @override
    def read(self, indices: Sequence[int], rows: Sequence[Any] | None = None) -> tuple[Sequence[Any], Sequence[Any]]:
        if not self._reads_records:
            numbers = random_numbers_for(self.transform, indices, self.transform)
            return indices, row_for_each(numbers, len(indices))
        if rows is None:
            rows = row_for_each(self.dataset.random_numbers(indices), len(indices))
        return self.dataset.records(indices), rows

    @override
    def make(self, given: Any, part: slice, pixels: Sequence[Any] = ()) -> tuple[list[Any], Work]:
        given, rows = part_of(given[0], part), given[1][part]
        began = now()
        make: Callable[[Any, Any], Any] = self._transformed
        if self._reads_records:
            samples, make = given, self.dataset.sample
        elif callable(getattr(self.dataset, "__getitems__", None)):
            samples = self.dataset.__getitems__(given)
        else:
            samples = [self.dataset[index] for index in given]
        read = now()
        if self._reads_records or self.transform is not None:
            samples = [make(sample, row) for sample, row in zip(samples, rows, strict=True)]
        take_seconds = getattr(getattr(self.dataset, "transform", None), "take_seconds", None)  # time of unfused steps
        steps = take_seconds() if take_seconds else 0.0
        return samples, Work(read - began, now() - read - steps, steps=steps)

    @override
    def collate(self, indices: Sequence[int], images: Any, samples: list[Any]) -> Any:
        return collate(self.dataset, indices, samples, self.collate_fn)

    def _transformed(self, sample: Any, random_numbers: np.ndarray[Any, Any] | None) -> Any:
        if isinstance(sample, dict):
            image = self._image_name
            if changes_size(self.transform):
                refuse_masks(sample[image], {name: sample[name] for name in sample if name != image}, "a sample")
            return {**sample, image: self._image(sample[image], random_numbers)}
        if isinstance(sample, (tuple, list)):
            if changes_size(self.transform):
                rest = {f"element {position}": value for position, value in enumerate(sample[1:], 1)}
                refuse_masks(sample[0], rest, "a sample")
            return (self._image(sample[0], random_numbers), *sample[1:])
        return self._image(sample, random_numbers)

    def _image(self, image: Any, random_numbers: np.ndarray[Any, Any] | None) -> Any:
        transform: Any = self.transform
        if isinstance(transform, Decoder):
            return transform(image, random_numbers)
        return apply_transform(transform, image, random_numbers)
