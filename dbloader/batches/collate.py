"""Make batches by collating the samples of a dataset."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from dbloader.batches.base import BatchFetcher, split
from dbloader.batches.collate_fields import Collate, collate
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.transforms import apply_transform, random_numbers_for
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.masks import changes_size, refuse_masks
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit
    from dbloader.datasets.store import StoreDataset
    from dbloader.records.record import Record

# Some samples, and the seconds that reading and decoding them took.
Part: TypeAlias = "tuple[list[Any], float, float]"


class _CollatingFetcher(BatchFetcher):
    """Collates samples with a function; with None as ``collate_fields.collate`` does."""

    collate_fn: Callable[[list[Any]], Any] | None

    def _finish(self, indices: Sequence[int], futures: list[Future[Part]], read: float) -> TimedBatch:
        parts = [future.result() for future in futures]
        samples = [sample for part, _, _ in parts for sample in part]
        began = now()
        if self.collate_fn is None or isinstance(self.collate_fn, Collate):
            batch = collate(self.dataset, indices, samples, rule=self.collate_fn)
        else:
            batch = self.collate_fn(samples)
        work = Work(read + sum(part[1] for part in parts), sum(part[2] for part in parts), now() - began)
        return TimedBatch(batch, work, len(samples), serial=read + work.collate)


class RecordBatchFetcher(_CollatingFetcher):
    """Collates the samples of a dataset that makes them as StoreDataset does, of records that are read together."""

    def __init__(self, dataset: StoreDataset, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset: StoreDataset = dataset
        self.collate_fn = collate_fn

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        began = now()
        records = self.dataset.records(indices)
        random_numbers = self.dataset.random_numbers(indices)
        read = now() - began
        futures = [
            submit(self._samples, records[part], None if random_numbers is None else random_numbers[part])
            for part in split(len(records), size)
        ]
        return functools.partial(self._finish, indices, futures, read)

    def _samples(self, records: list[Record], random_numbers: np.ndarray[Any, Any] | None) -> Part:
        began = now()
        rows = [None] * len(records) if random_numbers is None else random_numbers
        samples = [self.dataset.sample(record, row) for record, row in zip(records, rows, strict=True)]
        return samples, 0.0, now() - began


class SampleBatchFetcher(_CollatingFetcher):
    """Collates the samples of any map-style dataset.

    The transform is applied to the first element of each sample, or to the image of a dict; it is None if the dataset
    transforms it itself. A Decoder takes PIL images, arrays and encoded files, and gets its random numbers here.
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

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        random_numbers = random_numbers_for(self.transform, indices, self.transform)
        futures = [
            submit(self._samples, _part_of(indices, part), None if random_numbers is None else random_numbers[part])
            for part in split(len(indices), size)
        ]
        return functools.partial(self._finish, indices, futures, 0.0)

    def _samples(self, indices: Sequence[int], random_numbers: np.ndarray[Any, Any] | None) -> Part:
        began = now()
        if callable(getattr(self.dataset, "__getitems__", None)):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        read = now()
        if self.transform is not None:
            rows = [None] * len(samples) if random_numbers is None else random_numbers
            samples = [self._transformed(sample, row) for sample, row in zip(samples, rows, strict=True)]
        return samples, read - began, now() - read

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


def _part_of(indices: Sequence[int], part: slice) -> Sequence[int]:
    """Return some of the indices; of SeededIndices with their positions."""
    if not isinstance(indices, SeededIndices):
        return indices[part]
    return SeededIndices(indices[part], indices.seed, indices.epoch, indices.positions[part])
