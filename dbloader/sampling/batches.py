"""Batch samplers whose batches contain the positions of their samples."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Sampler
from typing_extensions import override

from dbloader._options import checked_flag, whole_number
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dbloader.sampling.base import ResumableSampler


class SeededBatchSampler(Sampler[list[int]]):
    """Yields batches of a sampler's indices and their positions in the epoch. Replaces torch's BatchSampler.

    Pass this object to a DataLoader as ``batch_sampler``. The random crops of LMDBDataset and MongoDataset are then a
    pure function of seed, epoch and position, in any process.

    Exception: in a DataLoader, torch's Subset drops the positions, so torch's generator draws the crops. In
    ``create_loader``, a Subset keeps the positions.

    ``iter()`` uses the sampler's current epoch and position. ``len()`` is the number of batches in a whole epoch.

    Args:
        sampler: One of dbloader's samplers.
        batch_size: Samples of this rank in a batch.
        drop_last: Leave out the last batch if it has fewer samples.

    Raises:
        TypeError: The sampler is not dbloader's, ``batch_size`` is not an int, or ``drop_last`` is not a bool.
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
        indices = iter(self.sampler)
        return self._batches(indices, self.sampler.state_after())

    def _batches(self, indices: Iterator[int], since: Mapping[str, Any]) -> Iterator[list[int]]:
        positions = self.sampler.positions(since)
        kept = len(positions) - (len(positions) % self.batch_size if self.drop_last else 0)
        if not kept:  # tell the sampler that its iteration has ended, so the next iteration is a whole epoch
            next(indices, None)
        for begin in range(0, kept, self.batch_size):
            part = positions[begin : begin + self.batch_size]
            yield SeededIndices(islice(indices, len(part)), since["seed"], since["epoch"], part)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sampler!r}, batch_size={self.batch_size}, drop_last={self.drop_last})"


class ForeignBatchSampler(BatchSampler):
    """Yields batches of indices with positions, from a sampler of another library.

    The sampler alone decides the order. A sample's random numbers depend on the seed, the rank, the number of
    iterations so far, and the position in the iteration.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool, *, seed: int, rank: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.seed = seed
        self.rank = rank
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = whole_number("epoch", epoch, 0) - 1

    @override
    def __iter__(self) -> Iterator[list[int]]:
        at = epoch = 0
        for batch in super().__iter__():
            if not at:
                # Count epochs here, not in iter(): a DataLoader with workers makes two iterators and uses only one.
                self.epoch = epoch = self.epoch + 1
            positions = range(at, at + len(batch))
            at += len(batch)
            yield SeededIndices(batch, self.seed + (self.rank << 32), epoch, positions)
