"""A shuffle for disks that read neighbors faster than scattered records, and for nodes that each read some shards."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import suppress
from math import gcd
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from typing_extensions import override

from dbloader._options import number_from_environment, whole_number
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.block_order import BlockOrder, EqualBlocks, ShardBlocks
from dbloader.sampling.shuffle import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized

BLOCK_SIZE = 256
_LOOKED_AT = 8  # blocks, and records of each, whose labels are looked at


class BlockShuffleSampler(ResumableSampler):
    """All indices of a dataset, shuffled so that only a few parts of the store are read at a time.

    The dataset is divided into blocks of consecutive indices: the shards of a store that has shards, else
    ``block_size`` records each. The blocks come in a random order, and the indices of each ``buffer_blocks`` of them
    are shuffled together. So the samples of a buffer come from only ``buffer_blocks`` blocks, each read completely;
    these should fit into the page cache. Records that were stored in the order of their classes stay together;
    convert such a folder shuffled.

    **Lanes.** Without lanes the ranks share the samples of all blocks, so each machine reads all blocks. With L lanes
    the blocks in their random order are cut into L pieces of equal numbers of samples, and position p of the order is
    the next sample of piece p mod L. So if the number of ranks divides L, each rank reads L / ranks pieces of its own,
    and all machines together read the data once, except for blocks at the border of two pieces, which are read for
    both: have many more blocks than lanes. Each piece is shuffled within buffers of ``buffer_blocks / lanes`` blocks,
    at least one. A batch of all ranks has samples of all pieces. Pass the number of ranks, or a number that all numbers
    of ranks divide with which the training will go on; a state can only be resumed with the lanes that it was saved
    with.

    Any position is found at once, and nothing is stored but the lengths of shards. See ResumableSampler for resuming.

    Args:
        dataset: Anything that has a length. What else is used: ``shard_lengths``, if it has that and its sum is the
            length.
        block_size: Records in a block; the last block of the dataset may have fewer. None for the shards of the store,
            or 256 if it has none.
        buffer_blocks: Blocks that are shuffled together; the last ones of the epoch may be fewer.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler.
        lanes: Pieces of the order that different ranks can read; None for an order without lanes.

    Raises:
        OptionError: ``block_size``, ``buffer_blocks`` or ``lanes`` is below 1. All other errors are those of
            ShuffleSampler.

    Attributes:
        shard_lengths: Records in each block, where the blocks are the shards of a store; else None.
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
        # A subclass or wrapper of a store's dataset may have other samples.
        self.shard_lengths: Sequence[int] | None = shards if shards is None or sum(shards) == length else None
        if self.shard_lengths is not None:
            self.block_size = max(1, -(-length // max(1, len(self.shard_lengths))))  # their mean
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
        """Yield which blocks some ranks read from which position on, in the order of the epoch.

        Blocks are counted as they lie in the dataset, so they are the shards of a sharded store. The blocks of an entry
        are read in a mixed order, from the entry's position of the global order until the position of the next entry. A
        block may come in two entries. The last entry has the blocks of the samples that fill up the ranks' shares.

        Args:
            ranks: Numbers of ranks, such as those of one machine; None for this one.
            since: The state where the iteration starts, as in ``state_after``; None for the next ``iter()``.

        Raises:
            OptionError: ``since`` is of another sampler, or a rank not 0 to ``num_replicas - 1``.
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
                yield self.length, np.unique(order.blocks.of(order(np.array(again)))).tolist()

    def _warn_of_classes(self, labels_at: Callable[[list[int]], list[int]]) -> None:
        """Warn if most blocks have records of one class only, judged by a few records of a few blocks."""
        sizes = self.shard_lengths or [self.block_size] * (self.length // self.block_size)
        if len(sizes) < 2 * _LOOKED_AT:
            return
        ends = np.cumsum(sizes)
        chosen = np.linspace(0, len(sizes) - 1, _LOOKED_AT).astype(int).tolist()
        classes: list[int] = []
        for block in chosen:
            places = np.linspace(ends[block] - sizes[block], ends[block] - 1, _LOOKED_AT).astype(int)
            found = set(labels_at(places.tolist())) if sizes[block] else set()
            classes += found if len(found) == 1 else []
        # If nearly all records are of one class, most blocks would have one class in any order.
        if len(classes) >= _LOOKED_AT / 2 and max(Counter(classes).values()) <= 0.75 * len(classes):
            what = "shards" if self.shard_lengths is not None else f"blocks of {self.block_size} records"
            warnings.warn(
                f"most {what} have records of one class only, so batches of a block shuffle have few classes: "
                "store the records in a random order (dbloader convert --shuffle-seed)",
                UserWarning,
                stacklevel=3,
            )

    @override
    def __iter__(self) -> Iterator[int]:
        if self.lanes is not None and self.rank == 0:
            _warn_of_reading(self.lanes, self.num_replicas)
        return super().__iter__()

    @override
    def order(self, seed: int, epoch: int) -> BlockOrder:
        blocks = (
            EqualBlocks(self.length, self.block_size, seed, epoch)
            if self.shard_lengths is None
            else ShardBlocks(self.shard_lengths, seed, epoch)
        )
        buffer = self.buffer_blocks
        if self.lanes is not None:
            buffer = self.block_size * max(1, self.buffer_blocks // self.lanes)
        return BlockOrder(blocks, self.length, self.lanes, buffer, seed, epoch)

    @override
    def _options(self) -> dict[str, int]:
        blocks = {"block_size": self.block_size} if self.shard_lengths is None else {"shards": len(self.shard_lengths)}
        return {
            **blocks, "buffer_blocks": self.buffer_blocks, **({} if self.lanes is None else {"lanes": self.lanes})
        }  # fmt: skip

    @override
    def facts(self) -> dict[str, Any]:
        if self.shard_lengths is None:
            return super().facts()
        # The digest of a store, which a loader checks, is the same for any number of shards.
        return {**super().facts(), "shards_crc32": crc32(np.array(self.shard_lengths, "<i8").tobytes())}


def _warn_of_reading(lanes: int, world_size: int) -> None:
    """Warn if machines share lanes, so that together they read the data several times."""
    step = gcd(lanes, world_size)  # ranks that are so far apart read the same lanes
    local = max(1, number_from_environment("LOCAL_WORLD_SIZE", 1))  # of torchrun
    unknown = "" if "LOCAL_WORLD_SIZE" in os.environ else " (set LOCAL_WORLD_SIZE to the ranks of a node)"
    nodes = -(-world_size // local)
    times = nodes * min(local, step) / step
    if times > 1:
        warnings.warn(
            f"{world_size} ranks do not divide {lanes} lanes, so {nodes} nodes of {local}{unknown} together read the "
            f"data {times:g} x in an epoch: use a number of ranks that divides {lanes}; or begin the training with "
            f"lanes={world_size}, or another multiple of all its numbers of ranks",
            UserWarning,
            stacklevel=3,
        )
