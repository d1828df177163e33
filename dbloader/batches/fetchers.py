"""Choose how the batches of a dataset are made, and make them by collating samples."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset
from typing_extensions import override

from dbloader.batches.base import BatchFetcher, OuterBatchFetcher, row_for_each, split
from dbloader.batches.collate import Collate, collate
from dbloader.batches.tensors import TensorBatchFetcher
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import apply_transform, random_numbers_for
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.masks import changes_size, refuse_masks
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit


def create_fetcher(
    dataset: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    *,
    transform: Callable[..., Any] | None = None,
    pin_memory: bool = False,
) -> BatchFetcher:
    """Return the fetcher that makes the batches of a map-style dataset with the fewest copies.

    With ``pin_memory``, images that are decoded into one tensor are in pinned memory, which a GPU copies from.
    """
    if type(dataset) is Subset:  # a subclass may choose its samples in another way
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


class SubsetBatchFetcher(OuterBatchFetcher):
    """Makes the batches of a Subset with the fetcher of the whole dataset."""

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        chosen = [self.dataset.indices[index] for index in indices]
        if isinstance(indices, SeededIndices):
            chosen = SeededIndices(chosen, indices.seed, indices.epoch, indices.positions)
        return self._begin_inner(chosen, submit, size)


class SampleBatchFetcher(BatchFetcher):
    """Collates the samples of any map-style dataset, with ``collate_fn``, or with ``collate.collate`` if it is None.

    ``transform`` is applied to the first element of each sample, or to the image of a dict. None means that the dataset
    transforms its samples itself. A Decoder takes PIL images, arrays and encoded files, with random numbers.
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
        # The records of a batch are read together, before threads decode them: in one round trip to a server. From a
        # file, threads would wait for the GIL while they read.
        self._reads_records = transform is None and isinstance(dataset, StoreDataset) and not dataset.makes_own_samples

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        began = now()
        if self._reads_records:
            given, numbers = self.dataset.records(indices), self.dataset.random_numbers(indices)
        else:
            given, numbers = indices, random_numbers_for(self.transform, indices, self.transform)
        rows = row_for_each(numbers, len(indices))
        read = now() - began
        futures = [submit(self._samples, _part_of(given, part), rows[part]) for part in split(len(indices), size)]
        return functools.partial(self._finish, indices, futures, read)

    def _samples(self, given: Sequence[Any], rows: Sequence[Any]) -> tuple[Sequence[Any], float, float]:
        """Return the samples of some records or indices, and the seconds that reading and decoding them took."""
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
        return samples, read - began, now() - read

    def _finish(
        self, indices: Sequence[int], futures: list[Future[tuple[Sequence[Any], float, float]]], read: float
    ) -> TimedBatch:
        parts = [future.result() for future in futures]
        samples = [sample for part, _, _ in parts for sample in part]
        began = now()
        if self.collate_fn is None or isinstance(self.collate_fn, Collate):
            batch = collate(self.dataset, indices, samples, rule=self.collate_fn)
        else:
            batch = self.collate_fn(samples)
        work = Work(read + sum(part[1] for part in parts), sum(part[2] for part in parts), now() - began)
        return TimedBatch(batch, work, len(samples), serial=read + work.collate)

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


def _part_of(given: Sequence[Any], part: slice) -> Sequence[Any]:
    """Return some of the records or indices; SeededIndices keep their positions."""
    if not isinstance(given, SeededIndices):
        return given[part]
    return SeededIndices(given[part], given.seed, given.epoch, given.positions[part])
