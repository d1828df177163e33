"""What the tests of loaders load, and how they read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Dataset
from typing_extensions import override

from dbloader.batches.create import create_fetcher
from dbloader.loading.processes import ProcessLoader

if TYPE_CHECKING:
    from collections.abc import Callable


class Numbers(Dataset[Any]):
    """The indices, or what a function makes of them; counts how many were asked for."""

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


def process_loader(
    dataset: Any,
    batch_size: int = 1,
    *,
    num_workers: int = 0,
    batch_sampler: Any = None,
    **options: Any,
) -> ProcessLoader:
    """The loader of worker processes that create_loader makes; the options are those of create_fetcher."""
    return ProcessLoader(
        create_fetcher(dataset, **options),
        BatchSampler(range(len(dataset)), batch_size, drop_last=False) if batch_sampler is None else batch_sampler,
        num_workers,
        source_dataset=dataset,
        prefetch_factor=2,
    )
