"""The function from positions to indices of the block shuffle, with lanes and without.

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
    """The function from positions to indices.

    With L lanes, position p belongs to lane p mod L, and each lane has a piece of the places of its own. The pieces
    follow each other and have exactly the lengths of the lanes, so blocks on a border are read by two lanes. A buffer
    is so many places of one lane. Without lanes there is one piece, and a buffer is so many whole blocks.

    Args:
        blocks: What the places are of.
        length: The number of places.
        lanes: The number of lanes; None for an order without lanes.
        buffer: The size of a buffer: places with lanes, blocks without.
        seed, epoch: Of the permutations of the buffers.
    """

    def __init__(self, blocks: Blocks, length: int, lanes: int | None, buffer: int, seed: int, epoch: int) -> None:
        self.blocks = blocks
        self._lanes = lanes or 1
        self._short, self._long_lanes = divmod(length, self._lanes)  # the first lanes have one place more
        self._of_blocks, self._size = lanes is None, buffer
        self._buffers = -(-(blocks.count if lanes is None else self._short + 1) // buffer)  # in each lane
        self._key: tuple[int | str, ...] = ("buffer",) if lanes is None else ("lanes", lanes, buffer)
        self._seed, self._epoch = seed, epoch
        self._permutations: dict[int, Permutation] = {}  # those of the last call, which the next one often needs too

    def __call__(self, positions: Array) -> Array:
        """Return the indices at some positions: int64, shape (positions,)."""
        places = self._lane_start(positions % self._lanes) + positions // self._lanes
        return self.blocks.indices(self._shuffle(places))

    def inverse(self, indices: Array) -> Array:
        """Return the positions of some indices: int64, shape (indices,)."""
        places = self._shuffle(self.blocks.places(indices), inverse=True)
        lanes = self._lane(places)
        positions: Array = (places - self._lane_start(lanes)) * self._lanes + lanes
        return positions

    def ahead(self, position: int, chosen: Iterable[int], world_size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield from which position on which blocks are read; see ``BlockShuffleSampler.blocks_ahead``.

        Args:
            position: Where to begin, below the length of the order.
            chosen: The positions that some ranks take first, at least one.
            world_size: How far apart the positions of one rank are.
        """
        step = int(np.gcd(world_size, self._lanes))  # positions that are so far apart are in the lanes of one rank
        lanes = np.array(sorted({lane for first in chosen for lane in range(first % step, self._lanes, step)}))
        place = np.array([position // self._lanes])  # in the first lane, which is the longest
        for number in range(int(self._buffer(place)[0]), self._buffers):
            begins, ends = self._bounds(lanes, number)
            left = begins < ends
            if left.any():
                pairs = zip(self.blocks.number(begins[left]), self.blocks.number(ends[left] - 1), strict=True)
                numbers = dict.fromkeys(block for begin, end in pairs for block in range(begin, end + 1))
                first = int((begins - self._lane_start(lanes))[left][0]) * self._lanes
                yield max(position, first), self.blocks.order(np.array([*numbers])).tolist()

    def _lane_start(self, lanes: Array) -> Array:
        return lanes * self._short + np.minimum(lanes, self._long_lanes)

    def _lane(self, places: Array) -> Array:
        border = self._long_lanes * (self._short + 1)
        behind = self._long_lanes + (places - border) // max(self._short, 1)
        return np.where(places < border, places // (self._short + 1), behind)

    def _buffer(self, places: Array) -> Array:
        """Return the numbers of the buffers at some places: those of the first lane come first."""
        if self._of_blocks:
            return self.blocks.number(places) // self._size
        lanes = self._lane(places)
        buffers: Array = lanes * self._buffers + (places - self._lane_start(lanes)) // self._size
        return buffers

    def _bounds(self, lanes: Array, number: int) -> tuple[Array, Array]:
        """Return the first places of a buffer of each lane, and the ones after their last."""
        if self._of_blocks:
            first, behind = np.minimum(np.array([[number], [number + 1]]) * self._size, self.blocks.count)
            return self.blocks.start(first), self.blocks.start(behind)
        begins = self._lane_start(lanes) + number * self._size
        return begins, np.minimum(begins + self._size, self._lane_start(lanes + 1))

    def _shuffle(self, places: Array, *, inverse: bool = False) -> Array:
        buffers = self._buffer(places)
        grouped = np.argsort(buffers, kind="stable")
        result = np.empty_like(places)
        used = {}
        for part in np.split(grouped, np.flatnonzero(np.diff(buffers[grouped])) + 1) if places.size else ():
            buffer = int(buffers[part[0]])
            lane, number = divmod(buffer, self._buffers)
            (begin,), (end,) = self._bounds(np.array([lane]), number)
            permutation = used[buffer] = self._permutations.get(buffer) or Permutation(
                int(end - begin), self._seed, self._epoch, *self._key, buffer
            )
            step = permutation.inverse if inverse else permutation
            result[part] = step(places[part] - begin) + begin
        self._permutations = used
        return result
