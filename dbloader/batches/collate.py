"""The samples of a dataset, collated to batches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from dbloader.batches.base import BatchFetcher, collate, parts
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.masks import changes_size, refuse_masks
from dbloader.sampling.rng import SampleRNG, SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit
    from dbloader.datasets.store import StoreDataset
    from dbloader.records.record import Record

# Some samples, and the seconds that reading and decoding them took.
Part: TypeAlias = "tuple[list[Any], float, float]"


class RecordBatchFetcher(BatchFetcher):
    """Makes the samples of a store's dataset as it makes them itself, of records that are read together, and collates.

    Args:
        dataset: It must make its samples as StoreDataset does.
        collate_fn: Makes a batch of a list of samples; torch's, if None.
    """

    def __init__(self, dataset: StoreDataset, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset: StoreDataset = dataset
        self.collate_fn = collate_fn

    @override
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        began = now()
        records = self.dataset.records(indices)
        numbers = self.dataset._numbers(indices)
        read = now() - began
        futures = [
            submit(self._samples, records[some], None if numbers is None else numbers[some])
            for some in parts(len(records), part)
        ]
        return functools.partial(_collated, _collating(self, indices), futures, read)

    def _samples(self, records: list[Record], numbers: np.ndarray[Any, Any] | None) -> Part:
        began = now()
        rows = [None] * len(records) if numbers is None else numbers
        samples = [self.dataset._sample(record, row) for record, row in zip(records, rows, strict=True)]
        return samples, 0.0, now() - began


class SampleBatchFetcher(BatchFetcher):
    """Collates the samples of any map-style dataset.

    Args:
        dataset: What has ``__getitem__`` and ``__len__``, and perhaps ``__getitems__``.
        transform: Applied to the first element of each sample, or to its ``"image"``; None where the dataset transforms
            it itself. A Decoder takes PIL images, arrays and encoded files, and is given its random numbers here.
        collate_fn: Makes a batch of a list of samples; torch's, if None.
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

    @override
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        numbers = None
        if isinstance(self.transform, Decoder) and self.transform.draws:
            rng = indices.rng if isinstance(indices, SeededIndices) else SampleRNG.from_torch(len(indices))
            numbers = rng.uniform(self.transform.draws, "decode")
        futures = [
            submit(self._samples, _some_of(indices, some), None if numbers is None else numbers[some])
            for some in parts(len(indices), part)
        ]
        return functools.partial(_collated, _collating(self, indices), futures, 0.0)

    def _samples(self, indices: Sequence[int], numbers: np.ndarray[Any, Any] | None) -> Part:
        began = now()
        if callable(getattr(self.dataset, "__getitems__", None)):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        read = now()
        if self.transform is not None:
            rows = [None] * len(samples) if numbers is None else numbers
            samples = [self._transformed(sample, row) for sample, row in zip(samples, rows, strict=True)]
        return samples, read - began, now() - read

    def _transformed(self, sample: Any, numbers: np.ndarray[Any, Any] | None) -> Any:
        if changes_size(self.transform):
            if isinstance(sample, dict):
                refuse_masks(sample["image"], {name: sample[name] for name in sample if name != "image"}, "a sample")
            elif isinstance(sample, (tuple, list)):
                rest = {f"element {at}": value for at, value in enumerate(sample[1:], 1)}
                refuse_masks(sample[0], rest, "a sample")
        if isinstance(sample, dict):
            return {**sample, "image": self._image(sample["image"], numbers)}
        if isinstance(sample, (tuple, list)):
            return (self._image(sample[0], numbers), *sample[1:])
        return self._image(sample, numbers)

    def _image(self, image: Any, numbers: np.ndarray[Any, Any] | None) -> Any:
        transform: Any = self.transform
        return transform(image, numbers) if isinstance(transform, Decoder) else transform(image)


def _collating(maker: RecordBatchFetcher | SampleBatchFetcher, indices: Sequence[int]) -> Callable[[list[Any]], Any]:
    """Return what makes a batch of samples."""
    return functools.partial(collate, maker.dataset, indices) if maker.collate_fn is None else maker.collate_fn


def _collated(collate_fn: Callable[[list[Any]], Any], futures: list[Future[Part]], begun: float) -> TimedBatch:
    done = [future.result() for future in futures]
    samples = [sample for some, _, _ in done for sample in some]
    began = now()
    batch = collate_fn(samples)
    collate = now() - began
    read = begun + sum(seconds for _, seconds, _ in done)
    decode = sum(seconds for _, _, seconds in done)
    return TimedBatch(batch, Work(read, decode, collate), len(samples), serial=begun + collate)


def _some_of(indices: Sequence[int], some: slice) -> Sequence[int]:
    """Return some of the indices, which know their positions if those did."""
    if not isinstance(indices, SeededIndices):
        return indices[some]
    return SeededIndices(indices[some], indices.seed, indices.epoch, indices.positions[some])
