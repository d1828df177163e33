"""The functions from positions to indices of the block shuffle, with lanes and without.

The blocks in their random order, put one behind the other, make one sequence of places. The places are cut into
buffers, and each buffer is permuted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dbloader.sampling.rng import Array


class Blocks(ABC):
    """Blocks of consecutive indices, numbered from 0 in their random order.

    All methods take and return int64 arrays of one shape.
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self.count = count
        self.order = Permutation(count, seed, epoch, "blocks")

    @abstractmethod
    def number(self, places: Array) -> Array:
        """Return the numbers of the blocks at some places."""

    @abstractmethod
    def start(self, numbers: Array) -> Array:
        """Return the first places of blocks; the number ``count`` is the end of all."""

    @abstractmethod
    def _first(self, blocks: Array) -> Array:
        """Return the first indices of blocks, which are counted as they lie in the dataset."""

    @abstractmethod
    def of(self, indices: Array) -> Array:
        """Return the blocks of some indices, counted as they lie in the dataset."""

    def indices(self, places: Array) -> Array:
        """Return the indices at some places."""
        numbers = self.number(places)
        return self._first(self.order(numbers)) + places - self.start(numbers)

    def places(self, indices: Array) -> Array:
        """Return the places of some indices."""
        blocks = self.of(indices)
        return self.start(self.order.inverse(blocks)) + indices - self._first(blocks)


class EqualBlocks(Blocks):
    """Blocks of one size, except for the last one of the dataset, which may be short. Nothing is stored."""

    def __init__(self, length: int, size: int, seed: int, epoch: int) -> None:
        super().__init__(-(-length // size), seed, epoch)
        self._size = size
        self._missing = self.count * size - length
        self._short = int(self.order.inverse(np.array([self.count - 1]))[0]) if length else 0
        self._short_end = (self._short + 1) * size - self._missing

    @override
    def number(self, places: Array) -> Array:
        return np.where(places < self._short_end, places, places + self._missing) // self._size

    @override
    def start(self, numbers: Array) -> Array:
        starts: Array = numbers * self._size - self._missing * (numbers > self._short)
        return starts

    @override
    def _first(self, blocks: Array) -> Array:
        return blocks * self._size

    @override
    def of(self, indices: Array) -> Array:
        return indices // self._size


class ShardBlocks(Blocks):
    """Blocks of given lengths, which may be 0. Takes 24 bytes for each block."""

    def __init__(self, lengths: Sequence[int], seed: int, epoch: int) -> None:
        super().__init__(len(lengths), seed, epoch)
        shuffled = np.array(lengths, np.int64)[self.order(np.arange(self.count))]
        self._starts = np.concatenate([[0], np.cumsum(shuffled)])
        self._firsts = np.concatenate([[0], np.cumsum(lengths)])

    @override
    def number(self, places: Array) -> Array:
        return np.searchsorted(self._starts, places, side="right") - 1

    @override
    def start(self, numbers: Array) -> Array:
        return self._starts[numbers]

    @override
    def _first(self, blocks: Array) -> Array:
        return self._firsts[blocks]

    @override
    def of(self, indices: Array) -> Array:
        return np.searchsorted(self._firsts, indices, side="right") - 1


class BlockOrder:
    """The order without lanes: a buffer is so many whole blocks, and the buffers come one after the other."""

    def __init__(self, blocks: Blocks, buffer_blocks: int, seed: int, epoch: int) -> None:
        self.blocks = blocks
        self._buffer_blocks = buffer_blocks
        self._key: tuple[int | str, ...] = ("buffer",)
        self._seed, self._epoch = seed, epoch
        self._permutations: dict[int, Permutation] = {}  # those of the last call, which the next one often needs too

    def __call__(self, positions: Array) -> Array:
        """Return the indices at some positions: int64, shape (positions,)."""
        return self.blocks.indices(self._shuffle(self._places(positions)))

    def inverse(self, indices: Array) -> Array:
        """Return the positions of some indices: int64, shape (indices,)."""
        return self._positions(self._shuffle(self.blocks.places(indices), inverse=True))

    def ahead(self, position: int, chosen: Iterable[int], world_size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield from which position on which blocks are read; see ``BlockShuffleSampler.blocks_ahead``.

        Args:
            position: Where to begin, below the length of the order.
            chosen: The positions that some ranks take first.
            world_size: How far apart the positions of one rank are.
        """
        del chosen, world_size  # each rank reads of all blocks
        count, each = self.blocks.count, self._buffer_blocks
        for buffer in range(int(self._buffer(np.array([position]))[0]), -(-count // each)):
            begin, end = self._bounds(buffer)
            if begin < end:  # else all its blocks are empty
                numbers = np.arange(buffer * each, min((buffer + 1) * each, count))
                yield max(position, begin), self.blocks.order(numbers).tolist()

    def _places(self, positions: Array) -> Array:
        """Return the places that positions would have if no buffer were permuted."""
        return positions

    def _positions(self, places: Array) -> Array:
        """Return the inverse of ``_places``."""
        return places

    def _buffer(self, places: Array) -> Array:
        """Return the numbers of the buffers at some places."""
        return self.blocks.number(places) // self._buffer_blocks

    def _bounds(self, buffer: int) -> tuple[int, int]:
        """Return the first place of a buffer, and the one after its last."""
        ends = np.array([buffer, buffer + 1]) * self._buffer_blocks
        begin, end = self.blocks.start(np.minimum(ends, self.blocks.count)).tolist()
        return begin, end

    def _shuffle(self, places: Array, *, inverse: bool = False) -> Array:
        numbers = self._buffer(places)
        grouped = np.argsort(numbers, kind="stable")
        result = np.empty_like(places)
        used = {}
        for part in np.split(grouped, np.flatnonzero(np.diff(numbers[grouped])) + 1) if places.size else ():
            number = int(numbers[part[0]])
            begin, behind = self._bounds(number)
            permutation = used[number] = self._permutations.get(number) or Permutation(
                behind - begin, self._seed, self._epoch, *self._key, number
            )
            step = permutation.inverse if inverse else permutation
            result[part] = step(places[part] - begin) + begin
        self._permutations = used
        return result


class LaneOrder(BlockOrder):
    """The order with lanes: position p belongs to lane p mod L, and each lane has a piece of the places of its own.

    The pieces follow each other and have exactly the lengths of the lanes, so shards on a border are read by two lanes.
    A buffer is so many places of one lane.
    """

    def __init__(self, blocks: Blocks, length: int, lanes: int, buffer_size: int, seed: int, epoch: int) -> None:
        super().__init__(blocks, 1, seed, epoch)
        self._key = ("lanes", lanes, buffer_size)
        self._lanes = lanes
        self._buffer_size = buffer_size
        self._short, self._long_lanes = divmod(length, lanes)  # the first lanes have one place more
        self._buffers = -(-(self._short + 1) // buffer_size)  # numbers of buffers in each lane

    def _lane_start(self, lanes: Array) -> Array:
        return lanes * self._short + np.minimum(lanes, self._long_lanes)

    def _lane(self, places: Array) -> Array:
        border = self._long_lanes * (self._short + 1)
        behind = self._long_lanes + (places - border) // max(self._short, 1)
        return np.where(places < border, places // (self._short + 1), behind)

    @override
    def _places(self, positions: Array) -> Array:
        places: Array = self._lane_start(positions % self._lanes) + positions // self._lanes
        return places

    @override
    def _positions(self, places: Array) -> Array:
        lanes = self._lane(places)
        return (places - self._lane_start(lanes)) * self._lanes + lanes

    @override
    def _buffer(self, places: Array) -> Array:
        lanes = self._lane(places)
        buffers: Array = lanes * self._buffers + (places - self._lane_start(lanes)) // self._buffer_size
        return buffers

    @override
    def _bounds(self, buffer: int) -> tuple[int, int]:
        lane, number = divmod(buffer, self._buffers)
        begin, end = self._lane_start(np.array([lane, lane + 1])).tolist()
        begin += number * self._buffer_size
        return begin, min(begin + self._buffer_size, end)

    @override
    def ahead(self, position: int, chosen: Iterable[int], world_size: int) -> Iterator[tuple[int, list[int]]]:
        # The lanes of all positions that are so many ranks apart.
        step = int(np.gcd(world_size, self._lanes))
        lanes = np.unique([lane for first in chosen for lane in range(first % step, self._lanes, step)])
        starts, ends = self._lane_start(lanes), self._lane_start(lanes + 1)
        for number in range(position // self._lanes // self._buffer_size, self._buffers):
            begins = starts + number * self._buffer_size
            left = begins < ends
            if not left.any():
                break
            last = np.minimum(begins + self._buffer_size, ends)[left] - 1
            pairs = zip(self.blocks.number(begins[left]).tolist(), self.blocks.number(last).tolist(), strict=True)
            numbers = dict.fromkeys(block for begin, end in pairs for block in range(begin, end + 1))
            first = max(position, number * self._buffer_size * self._lanes)
            yield first, self.blocks.order(np.array([*numbers])).tolist()
