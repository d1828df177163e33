"""The samples of a sampler in batches."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from torch.utils.data import BatchSampler, Sampler
from typing_extensions import override

from dbloader.keys import KeyedIndices
from dbloader.options import checked_flag, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        TypeError: The sampler is another one, ``batch_size`` no int or ``drop_last`` no bool.
        OptionError: ``batch_size`` is below 1.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int, drop_last: bool = False) -> None:
        if not hasattr(sampler, "positions"):
            raise TypeError(f"sampler must be one of dbloader's, such as ShuffleSampler, got {type(sampler).__name__}")
        self.sampler = sampler
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.drop_last = checked_flag("drop_last", drop_last)

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


class CountedBatchSampler(BatchSampler):
    """The indices of any other sampler in batches that know their keys, as torch's BatchSampler gives them.

    Nobody knows what the sampler's order depends on. But what is random in the samples is a function of the seed, of
    how often a batch has been the first of an iteration, and of the place in that: the same for whoever makes them.

    Args:
        sampler: Gives indices.
        batch_size: As in BatchSampler.
        drop_last: As in BatchSampler.
        seed: Of what is random.
        rank: Of the process, so that those which share an epoch do not draw the same.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool, *, seed: int, rank: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.seed = seed
        self.rank = rank
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = whole_number("epoch", epoch) - 1

    @override
    def __iter__(self) -> Iterator[list[int]]:
        at = epoch = 0
        for batch in super().__iter__():
            if not at:
                # Not with iter(): torch calls that twice where it has workers.
                self.epoch = epoch = self.epoch + 1
            positions = range(at, at + len(batch))
            at += len(batch)
            yield KeyedIndices(batch, self.seed + (self.rank << 32), epoch, positions)
