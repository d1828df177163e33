"""Choose how the batches of a dataset are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset
from typing_extensions import override

from dbloader.batches.base import OuterBatchFetcher
from dbloader.batches.collate import RecordBatchFetcher, SampleBatchFetcher
from dbloader.batches.collate_fields import Collate
from dbloader.batches.tensors import TensorBatchFetcher
from dbloader.datasets.store import StoreDataset
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.batches.base import BatchFetcher, Finish, Submit


def create_fetcher(
    dataset: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    *,
    transform: Callable[..., Any] | None = None,
) -> BatchFetcher:
    """Return the fetcher that makes the batches of a map-style dataset with the fewest copies.

    A torch Subset is made like the dataset inside.
    """
    if type(dataset) is Subset:  # a subclass may choose its samples in another way
        return SubsetBatchFetcher(dataset, create_fetcher(dataset.dataset, collate_fn, transform=transform))
    if transform is None and isinstance(dataset, StoreDataset) and not dataset.makes_own_samples:
        if isinstance(collate_fn, Collate) and "image" not in collate_fn.lists and TensorBatchFetcher.suits(dataset):
            return TensorBatchFetcher(dataset, collate_fn)
        if collate_fn is None and TensorBatchFetcher.suits(dataset):
            return TensorBatchFetcher(dataset)
        return RecordBatchFetcher(dataset, collate_fn)
    return SampleBatchFetcher(dataset, transform, collate_fn)


class SubsetBatchFetcher(OuterBatchFetcher):
    """Makes the batches of a Subset with the fetcher of the whole dataset, and the Subset's positions."""

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        chosen = [self.dataset.indices[index] for index in indices]
        if isinstance(indices, SeededIndices):
            chosen = SeededIndices(chosen, indices.seed, indices.epoch, indices.positions)
        return self._begin(chosen, submit, size)
