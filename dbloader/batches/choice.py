"""Which way the batches of a dataset are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.batches.samples import RecordBatchMaker, SampleBatchMaker
from dbloader.batches.tensors import TensorBatchMaker
from dbloader.datasets.base import StoreDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.batches.base import BatchMaker


def choose_maker(
    dataset: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    *,
    transform: Callable[..., Any] | None = None,
    pin_memory: bool = False,
) -> BatchMaker:
    """Gives what makes the batches of a dataset with the fewest copies.

    Args:
        dataset: A map-style dataset.
        collate_fn: Makes a batch of a list of samples; torch's if None.
        transform: Applied to the images of a dataset that is no store's.
        pin_memory: Make the batches in pinned memory, where they are made in this process.
    """
    if transform is None and isinstance(dataset, StoreDataset) and not dataset.makes_its_own_samples:
        if collate_fn is None and TensorBatchMaker.suits(dataset):
            return TensorBatchMaker(dataset, pin_memory=pin_memory)
        return RecordBatchMaker(dataset, collate_fn)
    return SampleBatchMaker(dataset, transform, collate_fn)
