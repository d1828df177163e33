"""Datasets that the loader tests load, and functions that read loaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, Dataset, SequentialSampler
from typing_extensions import override

from dbloader.batches.fetchers import create_fetcher
from dbloader.loading.processes import ProcessLoader
from dbloader.loading.threads import ThreadLoader

T = TypeVar("T")


class Numbers(Dataset[Any]):
    """A dataset of indices, or of a function's results for them. Counts the requested samples."""

    def __init__(self, length: int = 20, function: Callable[[int], Any] = int) -> None:
        self.length = length
        self.function = function
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return self.function(index)


def fail_at_7(index: int) -> int:
    if index == 7:
        raise KeyError("no record 7")
    return index


def numbers(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def _loader(
    kind: Callable[..., T],
    dataset: Any,
    batch_size: int = 1,
    *,
    num_workers: int = 0,
    batch_sampler: Any = None,
    prefetch_factor: int = 2,
    **options: Any,
) -> T:
    if batch_sampler is None:
        batch_sampler = BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
    fetcher = create_fetcher(dataset, **options)
    return kind(fetcher, batch_sampler, num_workers, dataset=dataset, prefetch_factor=prefetch_factor)


def process_loader(dataset: Any, *arguments: Any, **options: Any) -> ProcessLoader:
    """Return create_loader's loader with worker processes. Other options go to create_fetcher."""
    return _loader(ProcessLoader, dataset, *arguments, **options)


def thread_loader(dataset: Any, *arguments: Any, **options: Any) -> ThreadLoader:
    """Return create_loader's loader with worker threads. Other options go to create_fetcher."""
    return _loader(ThreadLoader, dataset, *arguments, **options)


def batches_of(loader: Any) -> list[Any]:
    """Return the batches of a loader of TimedBatches, which has no PrefetchLoader around it."""
    return [made.batch for made in loader]
