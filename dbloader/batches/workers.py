"""Batches made in the processes of a DataLoader."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import override

from dbloader.batches.base import part_size
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from dbloader.batches.base import BatchMaker
    from dbloader.timing import TimedBatch


# Bytes of a tensor that are sent through a pipe, which is as fast then as sending shared memory for them.
_SMALL = 2**16
_OF_NUMPY = (torch.int64, torch.int32, torch.float64, torch.float32, torch.uint8, torch.bool)


class MadeBatches(Dataset[Any]):
    """What a DataLoader takes for its dataset, so that its workers make whole batches, each by a number of threads.

    Args:
        maker: Makes the batches.
        threads: Threads in each worker; 1 for the worker's own.

    Raises:
        OptionError: ``threads`` is below 1.
    """

    def __init__(self, maker: BatchMaker, threads: int = 1) -> None:
        self.maker = maker
        self.threads = as_index(threads)
        if self.threads < 1:
            raise OptionError(f"threads must be at least 1, got {threads}")
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
        """Makes a batch; the DataLoader must pass it on as it is, with ``as_made`` for its ``collate_fn``."""
        if self.threads == 1:
            batch = self.maker.make(indices)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, "dbloader-decoding")
            batch = self.maker.begin(indices, self._pool.submit, part_size(len(indices), self.threads))()
        made = batch.batch if get_worker_info() is None else _small_by_value(batch.batch)
        # What is serial, each worker process does for its own batches.
        return dataclasses.replace(batch, batch=made, serial=0.0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


def _small_by_value(batch: Any) -> Any:
    """Gives a batch whose small tensors, such as the labels, are sent by value, not as shared memory of their own."""
    if type(batch) is dict:
        return {key: _small_by_value(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(map(_small_by_value, batch))
    if type(batch) is torch.Tensor and batch.dtype in _OF_NUMPY and batch.nbytes <= _SMALL:
        return _ByValue(batch)
    return batch


class _ByValue:
    """A tensor that arrives as one with the same values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._array = tensor.numpy()

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _tensor_of, (self._array,)


def _tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array)


def as_made(batch: Any) -> Any:
    """Gives the batch back: for the ``collate_fn`` of a DataLoader whose batches are made already."""
    return batch
