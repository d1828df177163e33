"""Compute when a node needs each shard, with dbloader's sampler and the table of shards of a real manifest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from dbloader.ext.caching.policy import Need
from dbloader.records.manifest import Summary, Totals
from dbloader.sampling import BlockShuffleSampler
from dbloader.stores.lmdb.shard_table import Shard, ShardTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulation.cluster import Cluster

_MOST_NEEDS = 5_000_000


class Records:
    """The part of a dataset that a sampler uses: its length and the lengths of its shards."""

    def __init__(self, shard_lengths: Sequence[int]) -> None:
        self.shard_lengths = shard_lengths
        self._length = sum(shard_lengths)

    def __len__(self) -> int:
        return self._length


def make_table(cluster: Cluster) -> tuple[ShardTable, int]:
    """Return the table of shards as dbloader encodes and decodes it, and the size of its manifest in bytes."""
    manifest = Totals().manifest("simulated", Summary(), salt=0, classes=(), source=None, created=None)
    shards = [
        Shard(f"{number:06}.lmdb", cluster.records, cluster.shard_bytes, f"{number:064x}")
        for number in range(cluster.shards)
    ]
    data = ShardTable(replace(manifest, length=cluster.length), "index.lmdb", shards).encode()
    return ShardTable.decode(data, "simulated"), len(data)


class Order:
    """The order of one epoch, which is the same for any number of ranks.

    Args:
        cluster: The simulated cluster.
        lengths: Number of records in each shard.
        epoch: Number of the epoch, from 0.
    """

    def __init__(self, cluster: Cluster, lengths: Sequence[int], epoch: int) -> None:
        self._cluster, self._epoch = cluster, epoch
        self._records = Records(lengths)
        self.length = len(self._records)

    def needs(self, nodes: int, position: int = 0) -> list[list[Need]]:
        """Return the needs of each node in the rest of the epoch. All ranks of a node have the same position.

        Raises:
            ValueError: There are too many needs to simulate.
        """
        world, ranks = nodes * self._cluster.ranks, self._cluster.ranks
        sampler = self.sampler(world, 0)
        sampler.order = cache(sampler.order)  # type: ignore[method-assign] # otherwise computed again for each node
        since = {**sampler.state_after(0), "epoch": self._epoch, "position": position}
        found: list[list[Need]] = []
        for node in range(nodes):
            entries = list(sampler.blocks_ahead(range(node * ranks, (node + 1) * ranks), since=since))
            begins = [(place - position) // world for place, _ in entries] + [-(-(self.length - position) // world)]
            found.append(
                [
                    Need(shard, first, max(first, behind - 1))
                    for (first, behind), (_, shards) in zip(pairwise(begins), entries, strict=True)
                    for shard in shards
                ]
            )
            if len(found[0]) * nodes > _MOST_NEEDS:
                raise ValueError(
                    f"{nodes:,} nodes of {ranks} ranks with {self._lanes() or 'no'} lanes: each node needs "
                    f"{len({need.shard for need in found[0]}):,} of {self._cluster.shards:,} shards, but at most "
                    f"{_MOST_NEEDS:,} in all can be simulated. Give fewer nodes or shards, or as lanes a multiple of "
                    f"{world:,}, the number of ranks on all nodes"
                )
        return found

    def _lanes(self) -> int | None:
        return None if self._cluster.order == "blocks" else self._cluster.lanes or self._cluster.world

    def sampler(self, world: int, rank: int) -> BlockShuffleSampler:
        """Return the sampler of a rank."""
        lanes = self._lanes()
        buffer = self._cluster.buffer_shards * (lanes or 1)
        seed, stick = self._cluster.seed, self._cluster.order == "stick_to_shard"
        return BlockShuffleSampler(
            self._records, None, buffer, world, rank, seed=seed, lanes=lanes, stick_to_shard=stick
        )
