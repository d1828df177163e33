"""The samples of a sampler in batches."""

from __future__ import annotations

from itertools import islice
from operator import index as as_index
from typing import TYPE_CHECKING

from torch.utils.data import Sampler
from typing_extensions import override

from dbloader.errors import OptionError
from dbloader.keys import KeyedIndices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.sampling.base import ResumableSampler


class KeyedBatchSampler(Sampler[list[int]]):
    """The indices of a sampler in batches that know their keys, in place of torch's BatchSampler.

    Give it to a DataLoader as ``batch_sampler``. What is random in LMDBDataset's and MongoDataset's decoding is then a
    pure function of seed, epoch and position, whatever process does it.

    ``iter()`` takes the epoch as it is then, and begins where the sampler does. ``len()`` is the number of batches in a
    whole epoch.

    Args:
        sampler: One of dbloader's samplers.
        batch_size: Samples in a batch, of this rank.
        drop_last: Leave out the last batch if it has fewer.

    Raises:
        TypeError: The sampler is another one.
        OptionError: ``batch_size`` is below 1.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int, drop_last: bool = False) -> None:
        if not hasattr(sampler, "positions"):
            raise TypeError(f"sampler must be one of dbloader's, such as ShuffleSampler, got {type(sampler).__name__}")
        self.sampler = sampler
        self.batch_size = as_index(batch_size)
        self.drop_last = drop_last
        if self.batch_size < 1:
            raise OptionError(f"batch_size must be at least 1, got {batch_size}")

    @override
    def __iter__(self) -> Iterator[list[int]]:
        positions = self.sampler.positions()
        seed, epoch = self.sampler.seed, self.sampler.epoch
        return self._batches(iter(self.sampler), positions, seed, epoch)

    def _batches(self, indices: Iterator[int], positions: range, seed: int, epoch: int) -> Iterator[list[int]]:
        for begin in range(0, len(positions), self.batch_size):
            part = positions[begin : begin + self.batch_size]
            if len(part) == self.batch_size or not self.drop_last:
                yield KeyedIndices(islice(indices, len(part)), seed, epoch, part)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sampler!r}, batch_size={self.batch_size}, drop_last={self.drop_last})"
