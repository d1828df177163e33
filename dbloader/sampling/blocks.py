"""A shuffle for disks that read neighbors faster than scattered records, and for nodes that each read some shards.

Imagine all records in one sequence, with the blocks in a random order. A place is a number in this sequence. `Blocks`
maps places to indices of the dataset. The sequence is cut into buffers, and the places in each buffer are shuffled.
`BlockOrder` maps positions of an epoch to places, and the places to indices.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.sampling.base import ResumableSampler, length_of
from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized

    from dbloader.sampling.rng import Array

BLOCK_SIZE = 256
_EXAMINED = 8  # number of blocks whose labels are examined, and number of examined records in each of these blocks


class BlockShuffleSampler(ResumableSampler):
    """All indices of a dataset, shuffled in a way that reads only a few parts of the store at a time.

    The dataset is divided into blocks of consecutive indices: the shards of a sharded store, else ``block_size``
    records each. The sampler shuffles the blocks. It then joins every ``buffer_blocks`` blocks to one buffer, and
    shuffles the indices in each buffer. The blocks of one buffer should fit into the page cache together. Records of
    one class stay together if they are stored together. If a folder is sorted by class, convert it in a random order.

    **Lanes.** Without lanes the ranks share the samples of all blocks, so each machine reads all blocks. With L lanes,
    the shuffled blocks are cut into L pieces with equal numbers of samples. Position p of the order is the next sample
    of piece p mod L. If the number of ranks divides L, each rank reads L / ranks pieces of its own, and all machines
    together read the data once. Only blocks at the border of two pieces are read twice. So there should be many more
    blocks than lanes. Each piece is shuffled within buffers of ``buffer_blocks / lanes`` blocks, at least one. A batch
    of all ranks has samples of all pieces. Pass the number of ranks as ``lanes``, or a multiple of all numbers of ranks
    that the training will use. A state can be resumed only with the lanes that it was saved with.

    The index at any position is computed directly. Only the lengths of blocks are in memory. See ResumableSampler for
    resuming.

    Args:
        dataset: Anything that has a length. Its ``shard_lengths`` are used if their sum is the length.
        block_size: Records in a block; the last block of the dataset may have fewer. None means the shards of the
            store, or 256 records if the store has no shards.
        buffer_blocks: Blocks in a buffer; the last buffer of the epoch may have fewer.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler.
        lanes: Number of pieces of the order that different ranks can read; None for an order without lanes.

    Raises:
        OptionError: As in ShuffleSampler; or ``block_size``, ``buffer_blocks`` or ``lanes`` is below 1.

    Attributes:
        shard_lengths: Records in each block if the blocks are the shards of a store, else None.
    """

    def __init__(
        self,
        dataset: Sized,
        block_size: int | None = None,
        buffer_blocks: int = 32,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
        lanes: int | None = None,
    ) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank, seed=seed, drop_last=drop_last)
        shards = getattr(dataset, "shard_lengths", None) if block_size is None else None
        # The sum differs if a subclass or wrapper of a store's dataset has other samples than the store.
        self.shard_lengths: Sequence[int] | None = shards if shards is None or sum(shards) == length else None
        if self.shard_lengths is not None:
            self.block_size = max(1, -(-length // max(1, len(self.shard_lengths))))  # the mean of the shards
        else:
            self.block_size = BLOCK_SIZE if block_size is None else whole_number("block_size", block_size, 1)
        self.buffer_blocks = whole_number("buffer_blocks", buffer_blocks, 1)
        self.lanes = whole_number("lanes", lanes, 1, none=True)
        labels_at = getattr(dataset, "labels_at", None)
        if labels_at is not None and os.environ.get("RANK", "0") == "0":
            with suppress(IndexError):
                self._warn_of_classes(labels_at)

    def blocks_ahead(
        self, ranks: Iterable[int] | None = None, *, since: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield pairs (position, blocks): the blocks that some ranks read from this position of the global order on.

        The ranks read the blocks of a pair in a mixed order, before the position of the next pair. Blocks are numbered
        by their order in the dataset; the blocks of a sharded store are its shards. A block may be in two pairs. If the
        order is padded, the last pair contains the blocks of the padding.

        Args:
            ranks: Numbers of ranks, for example all ranks of a machine; None for the rank of this process.
            since: The state where the iteration starts, as in ``state_after``; None for the next ``iter()``.

        Raises:
            OptionError: ``since`` is of another sampler, or a rank is not 0 to ``num_replicas - 1``.
            TypeError: A rank is not an int.
        """
        seed, epoch, position = self._next() if since is None else self._read(since)
        world_size = self.num_replicas
        chosen = {whole_number("rank", rank, 0, world_size - 1) for rank in ([self.rank] if ranks is None else ranks)}
        order = self.order(seed, epoch)
        if chosen and position < self.length:
            yield from order.ahead(position, [position + rank for rank in chosen], world_size)
            padding = range(self.length, self._end(position))
            again = [place % self.length for place in padding if (place - position) % world_size in chosen]
            if again:
                yield self.length, np.unique(order.blocks.blocks_of(order(np.array(again)))).tolist()

    def _warn_of_classes(self, labels_at: Callable[[list[int]], list[int]]) -> None:
        """Warn if most blocks seem to have records of one class only. Examine a few records of a few blocks."""
        sizes = self._block_lengths()
        if len(sizes) < 2 * _EXAMINED:
            return
        ends = np.cumsum(sizes)
        chosen = np.linspace(0, len(sizes) - 1, _EXAMINED).astype(int).tolist()
        classes: list[int] = []
        for block in chosen:
            places = np.linspace(ends[block] - sizes[block], ends[block] - 1, _EXAMINED).astype(int)
            found = set(labels_at(places.tolist())) if sizes[block] else set()
            classes += found if len(found) == 1 else []
        # No warning if nearly all records are of one class, because most blocks would then have one class in any order.
        if len(classes) >= _EXAMINED / 2 and max(Counter(classes).values()) <= 0.75 * len(classes):
            what = "shards" if self.shard_lengths is not None else f"blocks of {self.block_size} records"
            warnings.warn(
                f"most {what} have records of one class only, so batches of a block shuffle have few classes: "
                "store the records in a random order (dbloader convert --shuffle-seed)",
                UserWarning,
                stacklevel=3,
            )

    @override
    def order(self, seed: int, epoch: int) -> BlockOrder:
        blocks = Blocks(self._block_lengths(), seed, epoch)
        buffer = self.buffer_blocks
        if self.lanes is not None:
            buffer = self.block_size * max(1, self.buffer_blocks // self.lanes)
        return BlockOrder(blocks, self.length, self.lanes, buffer, seed, epoch)

    def _block_lengths(self) -> Array:
        if self.shard_lengths is not None:
            return np.array(self.shard_lengths, np.int64)
        first_indices = np.arange(0, self.length, self.block_size)
        return np.minimum(self.block_size, self.length - first_indices)

    @override
    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        if self.shard_lengths is None:
            facts["block_size"] = self.block_size
        else:
            # A loader checks the digest of the store. But the digest is the same for any division into shards.
            shards_crc32 = crc32(np.array(self.shard_lengths, "<i8").tobytes())
            facts |= {"shards": len(self.shard_lengths), "shards_crc32": shards_crc32}
        facts["buffer_blocks"] = self.buffer_blocks
        if self.lanes is not None:
            facts["lanes"] = self.lanes
        return facts


class Blocks:
    """Blocks of consecutive indices, in a random order. A block takes 24 bytes of memory.

    A place is a number in the sequence of all records that has its blocks in the random order. A block has two numbers,
    each from 0. In the methods, ``numbers`` count blocks in the random order, and ``blocks`` count them in the order of
    the dataset. A method takes an int64 array, and returns an int64 array of the same shape.

    Args:
        lengths: Number of indices in each block; a block may be empty.
        seed, epoch: As in `Permutation`.
    """

    def __init__(self, lengths: Array, seed: int, epoch: int) -> None:
        self.count = len(lengths)
        self.order = Permutation(self.count, seed, epoch, "blocks")
        shuffled = lengths[self.order(np.arange(self.count))]
        self._starts = np.concatenate([[0], np.cumsum(shuffled)])
        self._first_indices = np.concatenate([[0], np.cumsum(lengths)])

    def numbers(self, places: Array) -> Array:
        """Return the numbers of the blocks that contain these places."""
        return np.searchsorted(self._starts, places, side="right") - 1

    def starts(self, numbers: Array) -> Array:
        """Return the first place of each block with these numbers; for the number ``count``, the end of all places."""
        return self._starts[numbers]

    def blocks_of(self, indices: Array) -> Array:
        """Return the blocks that contain these indices."""
        return np.searchsorted(self._first_indices, indices, side="right") - 1

    def indices(self, places: Array) -> Array:
        """Return the indices at these places."""
        numbers = self.numbers(places)
        indices: Array = self._first_indices[self.order(numbers)] + places - self._starts[numbers]
        return indices

    def places(self, indices: Array) -> Array:
        """Return the places of these indices."""
        blocks = self.blocks_of(indices)
        places: Array = self._starts[self.order.inverse(blocks)] + indices - self._first_indices[blocks]
        return places


class BlockOrder:
    """The function from positions to indices.

    With L lanes, position p belongs to lane p mod L. The places are cut into one piece for each lane. A piece has
    exactly one place for each position of its lane. So the border of two pieces may be within a block, which both lanes
    then read. A buffer is a part of one piece. Without lanes there is one piece, and a buffer is some whole blocks.
    ``buffer`` is the size of a buffer: with lanes in places, without lanes in blocks.
    """

    def __init__(self, blocks: Blocks, length: int, lanes: int | None, buffer: int, seed: int, epoch: int) -> None:
        self.blocks = blocks
        self._lanes = lanes or 1
        self._short, self._long_lanes = divmod(length, self._lanes)  # the first lanes have one place more
        self._of_blocks, self._size = lanes is None, buffer
        self._buffers = -(-(blocks.count if lanes is None else self._short + 1) // buffer)  # number in each lane
        self._key: tuple[int | str, ...] = ("buffer",) if lanes is None else ("lanes", lanes, buffer)
        self._seed, self._epoch = seed, epoch
        self._permutations: dict[int, Permutation] = {}  # of the last call; the next call often needs them

    def __call__(self, positions: Array) -> Array:
        """Return the indices at these positions: int64, shape (positions,)."""
        places = self._lane_start(positions % self._lanes) + positions // self._lanes
        return self.blocks.indices(self._shuffle(places))

    def inverse(self, indices: Array) -> Array:
        """Return the positions of these indices: int64, shape (indices,)."""
        places = self._shuffle(self.blocks.places(indices), inverse=True)
        lanes = self._lane(places)
        positions: Array = (places - self._lane_start(lanes)) * self._lanes + lanes
        return positions

    def ahead(self, position: int, chosen: Iterable[int], world_size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (position, blocks) as ``BlockShuffleSampler.blocks_ahead`` does, without padding.

        ``chosen`` are the first positions of some ranks, at least one.
        """
        step = int(np.gcd(world_size, self._lanes))  # a rank reads every step-th lane
        lanes = np.array(sorted({lane for first in chosen for lane in range(first % step, self._lanes, step)}))
        place = np.array([position // self._lanes])  # in the first lane, which is the longest
        for number in range(int(self._buffer(place)[0]), self._buffers):
            begins, ends = self._bounds(lanes, number)
            left = begins < ends
            if left.any():
                pairs = zip(self.blocks.numbers(begins[left]), self.blocks.numbers(ends[left] - 1), strict=True)
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
        """Return the numbers of the buffers that contain these places. Buffers are counted lane by lane."""
        if self._of_blocks:
            return self.blocks.numbers(places) // self._size
        lanes = self._lane(places)
        buffers: Array = lanes * self._buffers + (places - self._lane_start(lanes)) // self._size
        return buffers

    def _bounds(self, lanes: Array, number: int) -> tuple[Array, Array]:
        """Return the first place of a buffer in each lane, and the first place after the buffer."""
        if self._of_blocks:
            first, behind = np.minimum(np.array([[number], [number + 1]]) * self._size, self.blocks.count)
            return self.blocks.starts(first), self.blocks.starts(behind)
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
