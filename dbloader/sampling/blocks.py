"""A shuffle for disks that read neighbors faster than scattered records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.permutation import Permutation
from dbloader.sampling.shuffle import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from dbloader.sampling.rng import Array


class BlockShuffleSampler(ResumableSampler):
    """All indices of a dataset, shuffled so that only a few parts of the store are read at a time.

    The dataset is divided into blocks of consecutive indices. The blocks come in a random order, and the indices of
    each ``buffer_blocks`` of them are shuffled together. So ``block_size * buffer_blocks`` samples come from only
    ``buffer_blocks`` blocks, each read completely; these should fit into the page cache. The ranks share the samples
    of all blocks, so each machine reads all blocks. Records that were stored in the order of their classes stay
    together; convert such a folder shuffled.

    Nothing is stored, and any position is found at once. See ResumableSampler for resuming.

    Args:
        dataset: Anything that has a length; only the length is used.
        block_size: Records in a block; the last block of the dataset may have fewer.
        buffer_blocks: Blocks that are shuffled together; the last ones of the epoch may be fewer.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler.

    Raises:
        OptionError: ``block_size`` or ``buffer_blocks`` is below 1. All other errors are those of ShuffleSampler.
    """

    def __init__(
        self,
        dataset: Sized,
        block_size: int = 256,
        buffer_blocks: int = 32,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank, seed=seed, drop_last=drop_last)
        self.block_size = whole_number("block_size", block_size, 1)
        self.buffer_blocks = whole_number("buffer_blocks", buffer_blocks, 1)

    @override
    def _order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return _BlockOrder(self.length, self.block_size, self.buffer_blocks, seed, epoch)

    @override
    def _options(self) -> dict[str, int]:
        return {"block_size": self.block_size, "buffer_blocks": self.buffer_blocks}


class _BlockOrder:
    """The function from positions to indices.

    The last block of the dataset may be short, and stands anywhere in the order of the blocks. So positions are first
    turned into slots: the positions if that block were full.
    """

    def __init__(self, length: int, block_size: int, buffer_blocks: int, seed: int, epoch: int) -> None:
        self._block_size = block_size
        self._buffer_size = block_size * buffer_blocks
        self._key = (seed, epoch)
        count = -(-length // block_size)
        self._slots = count * block_size
        self._missing = self._slots - length
        self._blocks = Permutation(count, seed, epoch, "blocks")
        short = int(self._blocks.inverse(np.array([count - 1]))[0]) if count else 0
        self._first_missing = (short + 1) * block_size - self._missing
        self._short_buffer = self._first_missing // self._buffer_size

    def __call__(self, positions: Array) -> Array:
        buffers = self._buffers(positions)
        slots = np.empty_like(positions)
        # Neighbors in one buffer are computed together; positions ascend, except for the padding.
        ends = [*(np.flatnonzero(np.diff(buffers)) + 1).tolist(), positions.size]
        begin = 0
        for end in ends:
            slots[begin:end] = self._shuffle(int(buffers[begin]), positions[begin:end])
            begin = end
        indices = self._blocks(slots // self._block_size)
        indices *= self._block_size
        indices += slots % self._block_size
        return indices

    def inverse(self, values: Array) -> Array:
        """Return the positions of some indices: int64, shape (values,)."""
        buffers = self._blocks.inverse(values // self._block_size) * self._block_size // self._buffer_size
        found = []
        for value, buffer in zip(values, buffers.tolist(), strict=True):
            positions = np.arange(self._start(buffer), self._start(buffer + 1))
            found.append(positions[self(positions) == value][0])
        return np.array(found, np.int64)

    def _buffers(self, positions: Array) -> Array:
        end = self._start(self._short_buffer + 1)
        slots: Array = np.where(positions < end, positions, positions + self._missing)
        return slots // self._buffer_size

    def _start(self, buffer: int) -> int:
        slot = min(buffer * self._buffer_size, self._slots)
        return slot - self._missing if buffer > self._short_buffer else slot

    def _shuffle(self, buffer: int, positions: Array) -> Array:
        start = self._start(buffer)
        order = Permutation(self._start(buffer + 1) - start, *self._key, "buffer", buffer)
        slots = order(positions - start) + buffer * self._buffer_size
        if buffer == self._short_buffer:
            slots[slots >= self._first_missing] += self._missing
        return slots
