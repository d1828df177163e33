"""Batches made in the processes of a DataLoader."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.batches.base import part_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.batches.base import BatchFetcher
    from dbloader.batches.timed import TimedBatch


class BatchDataset(Dataset[Any]):
    """What a DataLoader takes for its dataset, so that its workers make whole batches, each by a number of threads.

    Args:
        maker: Makes the batches.
        threads: Threads in each worker; 1 for the worker's own.

    Raises:
        OptionError: ``threads`` is below 1.
    """

    def __init__(self, maker: BatchFetcher, threads: int = 1) -> None:
        self.maker = maker
        self.threads = whole_number("threads", threads, 1)
        self._pool: ThreadPoolExecutor | None = None

    @property
    def dataset(self) -> Any:
        """The dataset that the batches are made of."""
        return self.maker.dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> TimedBatch:
        """Make a batch; the DataLoader must pass it on as it is, with ``pass_batch`` for its ``collate_fn``."""
        if self.threads == 1:
            batch = self.maker.make(indices)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, "dbloader-decoding")
            batch = self.maker.begin(indices, self._pool.submit, part_size(len(indices), self.threads))()
        return dataclasses.replace(batch, serial=0.0)  # each worker process does that for its own batches

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


def pass_batch(batch: Any) -> Any:
    """Return the batch back: for the ``collate_fn`` of a DataLoader whose batches are made already."""
    return batch
