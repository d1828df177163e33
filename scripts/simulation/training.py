"""Simulate a training: caches with dbloader's policy, steps that wait for the slowest rank, and lost nodes."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from dbloader.ext.caching.policy import CachePolicy
from simulation.needs import Order, make_table
from simulation.network import Network

if TYPE_CHECKING:
    from dbloader.ext.caching.policy import Need
    from simulation.cluster import Cluster

# The manifest and the index, which are fetched first, are one transfer with this number instead of a shard's number.
_INDEX = -1
# Name of the only reader of a cache. The ranks of a node advance together, so they count as one reader.
_RANKS = 0


class _Node:
    """The cache of one machine, and the shards that the machine's ranks wait for."""

    def __init__(self, number: int, network: Network, nbytes: list[int], limit: int, index_bytes: int) -> None:
        self._number, self._network, self._nbytes, self._limit = number, network, nbytes, limit
        self._index_bytes = index_bytes
        self.present: set[int] = set()
        self.peak = self.read = 0  # bytes

    def begin(self, needs: list[Need], batch: int) -> None:
        """Announce which shards the ranks need from now on. Shards in the cache are kept."""
        self._policy = CachePolicy(self._nbytes, self._limit)
        self._policy.expect(_RANKS, needs)
        least = self._policy.least_bytes()
        if least > self._limit:
            raise ValueError(
                f"--cache-gb {self._limit / 1e9:g} is too small: {least / 1e9:.3g} GB of shards are in use at one time"
            )
        self._begins: defaultdict[int, list[Need]] = defaultdict(list)
        for need in needs:
            self._begins[need.first // batch].append(need)
        self._coming: set[int] = set()
        self._used = sum(self._nbytes[shard] for shard in self.present - {_INDEX})
        self.missing: list[int] = []

    def come_to(self, step: int) -> None:
        """Ask for the shards of a step. Ranks do this before they read the batch."""
        new = [need.shard for need in self._begins.pop(step, [])]
        for shard in new:
            self._policy.ask(_RANKS, shard)
        # A batch is read shard by shard. So a shard that is removed while the node waits for others was already read.
        self.missing = [shard for shard in dict.fromkeys(new) if shard not in self.present]

    def fetched(self, shard: int) -> None:
        """Count a shard as present."""
        self._coming.discard(shard)
        self.present.add(shard)
        if shard in self.missing:
            self.missing.remove(shard)

    def fetch(self) -> None:
        """Start fetches on idle streams."""
        for stream in self._network.idle(self._number):
            if _INDEX not in self.present:
                if not self._coming:
                    self._coming.add(_INDEX)
                    self._network.fetch(self._number, stream, _INDEX, self._index_bytes)
                return
            shards = (self.present | self._coming) - {_INDEX}
            chosen = self._policy.next(shards, self.missing, self._coming)
            if chosen is None:
                return
            self.present.difference_update(chosen.remove)
            self._coming.add(chosen.shard)
            self._used += self._nbytes[chosen.shard] - sum(self._nbytes[shard] for shard in chosen.remove)
            self.peak = max(self.peak, self._used)
            self.read += self._nbytes[chosen.shard]
            self._network.fetch(self._number, stream, chosen.shard, self._nbytes[chosen.shard])


class Training:
    """Simulates epochs, and reports how long they took and how many bytes they read.

    Args:
        cluster: The simulated cluster.
        fail_at: The times at which a node fails, in seconds.
    """

    def __init__(self, cluster: Cluster, fail_at: list[float]) -> None:
        rng = np.random.default_rng(cluster.seed)
        self._cluster, self._fail_at = cluster, sorted(fail_at)
        table, manifest_bytes = make_table(cluster)
        self._lengths = [shard.length for shard in table.shards]
        self.network = Network(cluster, rng)
        nbytes = [shard.nbytes for shard in table.shards]
        self.index_bytes = int(cluster.length * cluster.index_bytes) and manifest_bytes
        self.index_bytes += int(cluster.length * cluster.index_bytes)
        limit = int(cluster.cache_gb * 1e9)
        self.nodes = [_Node(n, self.network, nbytes, limit, self.index_bytes) for n in range(cluster.nodes)]
        self._rng = rng
        slowest = float(rng.lognormal(0, cluster.step_spread, cluster.nodes).max())
        self._useful_s = cluster.step_ms / 1e3 * slowest
        self._step_s = max(self._useful_s, cluster.decode_s)  # during a step, the images of the next step are decoded
        self.lost_nodes = 0

    def run(self) -> list[dict[str, float]]:
        """Return the measures of each epoch."""
        return [self._epoch(epoch) for epoch in range(self._cluster.epochs)]

    def _epoch(self, epoch: int) -> dict[str, float]:
        cluster, network = self._cluster, self.network
        order = Order(cluster, self._lengths, epoch)
        begun, before = network.now, [node.read for node in self.nodes]
        if epoch == 0:
            network.now += cluster.start_s
        nodes, position, first, useful = cluster.nodes, 0, None, 0.0
        needs = order.needs(nodes)
        shards = sum(len({need.shard for need in uses}) for uses in needs) / nodes
        while True:
            world = nodes * cluster.ranks
            steps = -((position - cluster.length) // (world * cluster.batch))
            done, started = self._segment(needs, steps)
            first = first if started is None or first is not None else started
            kept = done if done == steps else done // cluster.checkpoint_steps * cluster.checkpoint_steps
            useful += kept * self._useful_s
            if done == steps:
                break
            position += kept * cluster.batch * world
            nodes = self._restart() or nodes
            needs = order.needs(nodes, position)
        seconds, read = network.now - begun, [node.read - of for node, of in zip(self.nodes, before, strict=True)]
        data = cluster.shards * cluster.shard_bytes
        return {
            "first_batch_s": (first or begun) - begun,
            "seconds": seconds,
            "stall_percent": 100 * (1 - useful / seconds),
            "read_per_data": sum(read) / data,
            "most_read_by_a_node_per_share": max(read) * cluster.nodes / data,
            "shards_per_node": shards,
        }

    def _segment(self, needs: list[list[Need]], steps: int) -> tuple[int, float | None]:
        """Train until the epoch ends or a node fails. Return the number of steps, and when the first step began."""
        network, used = self.network, self.nodes[: len(needs)]
        fail = self._fail_at[0] if self._fail_at else inf
        for node, uses in zip(used, needs, strict=True):
            node.begin(uses, self._cluster.batch)
            node.come_to(0)
            node.fetch()
        step, free, first = 0, network.now, None
        is_decoded = False
        waiting = {n for n, node in enumerate(used) if node.missing}
        while step < steps or network.now < free:
            if not waiting and not is_decoded and step < steps:
                is_decoded, free = True, network.now + self._cluster.decode_s  # the first step must wait for decoding
            if not waiting and step < steps and network.now >= free:
                first = network.now if first is None else first
                free, step = network.now + self._step_s, step + 1
                for n, node in enumerate(used if step < steps else ()):
                    node.come_to(step)
                    node.fetch()
                    if node.missing:
                        waiting.add(n)
            until = min(network.next_event(), free if free > network.now else inf, fail)
            assert until < inf, f"nothing more will happen in step {step} of {steps}"
            for n, shard in network.advance(until):
                used[n].fetched(shard)
                used[n].fetch()
                if not used[n].missing:
                    waiting.discard(n)
            if until >= fail:
                return max(0, step - 1), first
        return steps, first

    def _restart(self) -> int:
        """Lose a node. Return the number of nodes after the restart: 0 if the lost node returns with an empty cache."""
        self._fail_at.pop(0)
        self.lost_nodes += 1
        self.network.stop()
        self.network.now += self._cluster.restart_s
        self.nodes[int(self._rng.integers(len(self.nodes)))].present.clear()
        return self._cluster.restart_nodes
