"""Shuffle records in blocks, for disks with slow random access, and for nodes that read only some of the shards.

Imagine all records in one sequence, with the blocks in a random order. A place is a number in this sequence. `Blocks`
maps places to indices of the dataset. The sequence is cut into lanes. Each lane is cut into buffers. The places in each
buffer are shuffled. `BlockOrder` maps positions of an epoch to places, and the places to indices.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

import numpy as np
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import checked_flag, whole_number
from dbloader.errors import OptionError
from dbloader.sampling.base import ResumableSampler, length_of
from dbloader.sampling.permutation import Permutation
from dbloader.sampling.rng import bits, derive_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

    from dbloader.sampling.rng import Array

BLOCK_SIZE = 256
_EXAMINED = 8  # number of blocks to examine for labels, and number of records to examine in each block


class BlockShuffleSampler(ResumableSampler):
    """Shuffles all indices of a dataset, but reads only a few parts of the store at a time.

    The dataset is divided into blocks of consecutive indices: the shards of a sharded store, else ``block_size``
    records each. The sampler shuffles the blocks, then joins every ``buffer_blocks`` blocks to one buffer, and
    shuffles the indices in each buffer. The blocks of one buffer should fit into the page cache together. Records of
    one class stay together if they are stored together. If a folder is sorted by class, convert it in a random order.

    **Lanes.** Without lanes the ranks share the samples of all blocks, so each machine reads all blocks. With L lanes,
    the shuffled blocks are cut into L lanes with equal numbers of samples. Position p of the order is the next sample
    of lane p mod L. If the number of ranks divides L, each rank reads L / ranks lanes of its own. All machines
    together then read a block once, or twice if it is at the border of two lanes. So there should be many more
    blocks than lanes. Each lane is shuffled within buffers of ``buffer_blocks / lanes`` blocks, at least one. The
    global batch has samples of all lanes. Set ``lanes`` to the number of ranks. A state can be resumed only with the
    same ``lanes``. To resume with other numbers of ranks, set ``lanes`` to a common multiple, such as 24 for 8 or 12.

    If the blocks are shards, the first buffer of a lane is half a shard. Each further buffer is as long as all earlier
    buffers together, up to ``buffer_blocks / lanes`` blocks. So training can start when a cache has the first shard of
    each lane. In earlier versions of dbloader, buffers did not grow. A run that resumes an old state keeps its order.

    The index at any position is computed directly. Only the lengths of blocks are in memory. See ResumableSampler for
    resuming.

    Args:
        dataset: Any object with a length. Its ``shard_lengths`` are used if their sum is this length.
        block_size: Records in a block; the last block of the dataset may have fewer. None means the shards of the
            store, or 256 records if the store has no shards.
        buffer_blocks: Blocks in a buffer; the last buffer of the epoch may have fewer.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler.
        lanes: Number of lanes, usually one for each rank; None for an order without lanes.
        stick_to_shard: Whether a lane has the same samples in all epochs. Only their order changes. If the cache of a
            machine has room for all shards of its lanes, each shard is downloaded once. But a rank trains only on its
            own lanes. NVIDIA DALI has an option of this name. The number of ranks must divide ``lanes``.

    Raises:
        OptionError: An option is wrong, as in ShuffleSampler. ``stick_to_shard`` is given without lanes or shards.

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
        stick_to_shard: bool = False,
    ) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank, seed=seed, drop_last=drop_last)
        shards = getattr(dataset, "shard_lengths", None) if block_size is None else None
        # If the lengths of the shards do not add up, a subclass or wrapper has other samples than the store.
        self.shard_lengths: Sequence[int] | None = shards if shards is None or sum(shards) == length else None
        if self.shard_lengths is not None:
            self.block_size = max(1, -(-length // max(1, len(self.shard_lengths))))  # the mean of the shards
        else:
            self.block_size = BLOCK_SIZE if block_size is None else whole_number("block_size", block_size, 1)
        self.buffer_blocks = whole_number("buffer_blocks", buffer_blocks, 1)
        self.lanes = whole_number("lanes", lanes, 1, none=True)
        self.stick_to_shard = checked_flag("stick_to_shard", stick_to_shard)
        # Whether the buffers of a lane grow. They did not in earlier versions, whose states have no entry ``version``.
        self._grows = self._deals_shards = self.lanes is not None and self.shard_lengths is not None
        if self.stick_to_shard:
            if not self._grows:
                what = "lanes" if lanes is None else "all records of a store with shards"
                raise OptionError(f"stick_to_shard=True needs {what}, got lanes={lanes} and {short_repr(dataset)}")
            self.period = self.lanes or 1  # so a rank's padding repeats samples of its own lanes
        labels_at = getattr(dataset, "labels_at", None)
        if labels_at is not None and os.environ.get("RANK", "0") == "0":
            with suppress(IndexError):
                self._warn_of_classes(labels_at)

    def blocks_ahead(
        self, ranks: Iterable[int] | None = None, *, since: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield pairs (position, blocks): from this position of the global order on, the ranks read these blocks.

        Up to the position of the next pair, the samples of these blocks are mixed. Blocks are numbered by their order
        in the dataset; the blocks of a sharded store are its shards. A block may be in two pairs,
        because a buffer may end inside a block. If the order is padded, the last pair has the blocks of the padding.

        Args:
            ranks: Numbers of ranks, for example all ranks of a machine; None for the rank of this process.
            since: The state where the iteration starts, as in ``state_after``; None for the next ``iter()``.

        Raises:
            OptionError: ``since`` is of another sampler, or a rank is not 0 to ``num_replicas - 1``.
            TypeError: A rank is not an int.
        """
        seed, epoch, position = self.next_start() if since is None else self.start_of(since)
        world_size = self.num_replicas
        chosen = {whole_number("rank", rank, 0, world_size - 1) for rank in ([self.rank] if ranks is None else ranks)}
        order = self.order(seed, epoch)
        if chosen and position < self.length:
            yield from order.ahead(position, [position + rank for rank in chosen], world_size)
            padding = range(self.length, self.end_of(position))
            again = [place for place in padding if (place - position) % world_size in chosen]
            if again:
                indices = order(self.unpadded(np.array(again)))
                yield self.length, np.unique(order.blocks.blocks_at(order.blocks.places(indices))).tolist()

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        before = self._grows
        if self._deals_shards and not self.stick_to_shard and isinstance(state_dict, Mapping):
            self._grows = "version" in state_dict
        try:
            super().load_state_dict(state_dict)
        except (OptionError, TypeError):
            self._grows = before
            raise

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
        # If nearly all records are of one class, most blocks have one class in any order. Then there is no warning.
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
        blocks = Blocks.shuffled(self._block_lengths(), seed, 0 if self.stick_to_shard else epoch)
        if self.lanes is None:
            offsets = np.append(blocks.starts[: -1 : self.buffer_blocks], self.length)
            return BlockOrder(blocks, np.array([0, self.length]), offsets, seed, epoch, "buffer")
        short, longer = divmod(self.length, self.lanes)  # the first ``longer`` lanes have ``short + 1`` places
        borders = short * np.arange(self.lanes + 1) + np.minimum(np.arange(self.lanes + 1), longer)
        size = self.block_size * max(1, self.buffer_blocks // self.lanes)
        offsets = np.arange(0, short + 1 + size, size)
        if self._grows:
            key = derive_keys(2, "stick to shard", seed, epoch) if self.stick_to_shard else None
            blocks = blocks.cut(borders, key)
            growing = [0, -(-self.block_size // 2)]
            while growing[-1] <= short:
                growing.append(growing[-1] + min(growing[-1], size))
            offsets = np.array(growing)
        return BlockOrder(blocks, borders, offsets, seed, epoch, "lanes", self.lanes, size)

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
            # The digest of a store, which a loader checks, does not depend on the shards. So these facts describe them.
            shards_crc32 = crc32(np.array(self.shard_lengths, "<i8").tobytes())
            facts |= {"shards": len(self.shard_lengths), "shards_crc32": shards_crc32}
        facts["buffer_blocks"] = self.buffer_blocks
        if self.lanes is not None:
            facts["lanes"] = self.lanes
        if self._grows:
            facts["version"] = 2
        if self.stick_to_shard:
            facts["stick_to_shard"] = True
        return facts


class Blocks:
    """Blocks of consecutive indices, or parts of blocks, in some order. A part takes 24 bytes of memory.

    The parts in this order form a sequence of all records. A place is a number in this sequence. In the methods,
    ``numbers`` count parts in this order, and ``blocks`` count blocks in the order of the dataset. Both start at 0. A
    method takes an int64 array, and returns an int64 array of the same shape.

    Attributes:
        blocks: The block of each part: int64, shape (parts,).
        starts: The first place of each part, and the end of all places. A part may be empty.
    """

    def __init__(self, blocks: Array, first_indices: Array, lengths: Array) -> None:
        self.blocks = blocks
        self.starts = np.concatenate([[0], np.cumsum(lengths)])
        self._first_indices = first_indices

    @classmethod
    def shuffled(cls, lengths: Array, seed: int, epoch: int) -> Self:
        """Return whole blocks with these lengths, in a random order."""
        order = Permutation(len(lengths), seed, epoch, "blocks")(np.arange(len(lengths)))
        return cls(order, (np.cumsum(lengths) - lengths)[order], lengths[order])

    def cut(self, borders: Array, key: Array | None) -> Self:
        """Cut these blocks where lanes begin, and return the parts lane by lane.

        Args:
            borders: The first place of each lane, and the end of all places.
            key: Key of a random order of the parts in each lane. With None, whole blocks keep their order. If a lane
                begins inside a block, the rest of this block moves to the end of the lane.
        """
        starts = np.unique(np.concatenate([self.starts, borders]))
        begins = starts[:-1]
        rank = np.isin(begins, self.starts, invert=True) if key is None else bits(np.arange(len(begins)), key)
        order = np.lexsort((rank, last_before(borders, begins)))  # stable
        return type(self)(self.blocks_at(begins[order]), self.indices(begins[order]), np.diff(starts)[order])

    def blocks_at(self, places: Array) -> Array:
        """Return the blocks that contain these places."""
        return self.blocks[last_before(self.starts, places)]

    def indices(self, places: Array) -> Array:
        """Return the indices at these places."""
        numbers = last_before(self.starts, places)
        indices: Array = self._first_indices[numbers] + places - self.starts[numbers]
        return indices

    def places(self, indices: Array) -> Array:
        """Return the places of these indices."""
        by_index = np.lexsort((np.diff(self.starts), self._first_indices))  # at equal indices, empty parts come first
        numbers = by_index[last_before(self._first_indices[by_index], indices)]
        places: Array = self.starts[numbers] + indices - self._first_indices[numbers]
        return places


class BlockOrder:
    """The function from positions to indices.

    With L lanes, position p belongs to lane p mod L. All lanes have the same length, or differ by one sample.
    So a lane may begin inside a block, and two lanes then read this block. A buffer is a part of one lane.

    Args:
        blocks: The blocks, or their parts lane by lane.
        borders: The first place of each lane, and the end of all places.
        offsets: Where the buffers of a lane begin, and where the last buffer ends, counted from the start of the lane.
            In a shorter lane, the last buffers are shorter or empty.
        seed, epoch, purpose: As in `Permutation`.
    """

    def __init__(
        self, blocks: Blocks, borders: Array, offsets: Array, seed: int, epoch: int, *purpose: int | str
    ) -> None:
        self.blocks = blocks
        self._lanes, self._borders, self._offsets = len(borders) - 1, borders, offsets
        self._seed, self._epoch, self._purpose = seed, epoch, purpose
        self._permutations: dict[int, Permutation] = {}  # kept after a call, because the next call often needs them

    def __call__(self, positions: Array) -> Array:
        """Return the indices at these positions: int64, shape (positions,)."""
        places = self._borders[positions % self._lanes] + positions // self._lanes
        return self.blocks.indices(self._shuffle(places))

    def inverse(self, indices: Array) -> Array:
        """Return the positions of these indices: int64, shape (indices,)."""
        places = self._shuffle(self.blocks.places(indices), inverse=True)
        lanes = last_before(self._borders, places)
        positions: Array = (places - self._borders[lanes]) * self._lanes + lanes
        return positions

    def ahead(self, position: int, chosen: Iterable[int], world_size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (position, blocks) as ``BlockShuffleSampler.blocks_ahead`` does, without padding.

        ``chosen`` are the first positions of one or more ranks.
        """
        step = int(np.gcd(world_size, self._lanes))  # a rank reads every step-th lane
        lanes = np.array(sorted({lane for first in chosen for lane in range(first % step, self._lanes, step)}))
        for number in range(int(last_before(self._offsets, position // self._lanes)), len(self._offsets) - 1):
            begins, ends = self._bounds(lanes, number)
            left = begins < ends
            if left.any():
                pairs = zip(*(last_before(self.blocks.starts, at[left]) for at in (begins, ends - 1)), strict=True)
                numbers = [part for begin, end in pairs for part in range(begin, end + 1)]
                blocks = dict.fromkeys(self.blocks.blocks[numbers].tolist())
                yield max(position, int(self._offsets[number]) * self._lanes), [*blocks]

    def _bounds(self, lanes: Array, number: int) -> tuple[Array, Array]:
        """Return the first place of a buffer in each lane, and the first place after the buffer."""
        begins, ends = (self._borders[lanes] + self._offsets[at] for at in (number, number + 1))
        return begins, np.minimum(ends, self._borders[lanes + 1])

    def _shuffle(self, places: Array, *, inverse: bool = False) -> Array:
        lanes, count = last_before(self._borders, places), len(self._offsets) - 1
        buffers = lanes * count + last_before(self._offsets, places - self._borders[lanes])
        grouped = np.argsort(buffers, kind="stable")
        result = np.empty_like(places)
        used = {}
        for part in np.split(grouped, np.flatnonzero(np.diff(buffers[grouped])) + 1) if places.size else ():
            buffer = int(buffers[part[0]])
            lane, number = divmod(buffer, count)
            (begin,), (end,) = self._bounds(np.array([lane]), number)
            permutation = used[buffer] = self._permutations.get(buffer) or Permutation(
                int(end - begin), self._seed, self._epoch, *self._purpose, buffer
            )
            step = permutation.inverse if inverse else permutation
            result[part] = step(places[part] - begin) + begin
        self._permutations = used
        return result


def last_before(begins: Array, places: Any) -> Array:
    """Return the number of the last part that begins at or before each place."""
    numbers: Array = np.searchsorted(begins, places, side="right") - 1
    return numbers
