"""Let the worker processes of a DataLoader make whole batches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.batches.base import BatchFetcher
    from dbloader.batches.timed import TimedBatch


class BatchDataset(Dataset[Any]):
    """A dataset whose ``__getitems__`` returns a whole batch; its DataLoader needs ``collate_fn=pass_batch``."""

    def __init__(self, fetcher: BatchFetcher) -> None:
        self.fetcher = fetcher

    @property
    def dataset(self) -> Any:
        """The dataset whose samples are in the batches."""
        return self.fetcher.dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> TimedBatch:
        """Return the batch of some indices."""
        return dataclasses.replace(self.fetcher.make(indices), serial=0.0)  # each worker reads and collates for itself


def pass_batch(batch: Any) -> Any:
    """Return the batch unchanged: a ``collate_fn`` for a DataLoader whose dataset makes batches."""
    return batch
