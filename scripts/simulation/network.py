"""Simulate the network and the store with a virtual clock. Transfers share the available bandwidth."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.ext.remote.bucket import PART_BYTES

if TYPE_CHECKING:
    from simulation.cluster import Cluster

Array = np.ndarray[Any, Any]

_IDLE, _REFUSED, _ASKED, _COMING = range(4)
# First and longest wait before a refused request is repeated. As in dbloader.ext.remote, the wait doubles each time,
# and half of the wait is random.
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.1, 10.0
_PARTS_AT_ONCE = 4  # parts of a shard requested at the same time, as in dbloader.ext.remote


class Network:
    """Requests of all nodes to one store.

    A fetch requests the size of a shard, and then its parts, as many at a time as can be transferred in a second.
    In each second, the store accepts requests up to its limit, and answers 503 to the others. Refused requests are
    repeated after growing pauses. The node, the store and the fetch limit the speed of transfers.

    Attributes:
        now: The time in seconds.
        refused: Number of requests that were answered 503.
        longest_s: The longest time in which all requests of a fetch were refused. dbloader gives up after three times
            PATIENCE_S (dbloader.ext.remote.bucket).
    """

    def __init__(self, cluster: Cluster, rng: np.random.Generator) -> None:
        self._cluster, self._rng = cluster, rng
        shape = (cluster.nodes, cluster.streams)
        self._node_speed = cluster.nic_mbs * 1e6 * rng.lognormal(0, cluster.nic_spread, cluster.nodes)
        self.now = 0.0
        self._phase = np.full(shape, _IDLE)
        self._at = np.full(shape, np.inf)  # when the phase ends; infinite if this depends on other transfers
        self._left = np.zeros(shape)
        self._size = np.zeros(shape)
        self._attempt = np.zeros(shape, int)
        self._shard = np.zeros(shape, np.int64)
        self._rate: Array | None = None
        self._asked: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._requests = np.zeros(shape, np.int64)  # number of requests that are not accepted yet
        self._is_new = np.zeros(shape, bool)  # whether no request is accepted yet
        self._since = np.zeros(shape)
        self._at_once = max(_PARTS_AT_ONCE, int(min(cluster.stream_mbs, cluster.nic_mbs) * 1e6 / PART_BYTES))
        self._total_speed = cluster.store_mbs * 1e6 or inf
        self.refused = 0
        self.longest_s = 0.0
        # Requests that end within this time are handled together: 1 % of the time of a shard at full speed.
        self._tick = 1e-2 * cluster.shard_mb / min(cluster.stream_mbs, cluster.nic_mbs)

    @property
    def most_requests(self) -> float:
        """The most requests in a second, including refused requests."""
        return max(self._asked.values())

    def idle(self, node: int) -> list[int]:
        """Return the numbers of the node's idle streams."""
        found: list[int] = np.flatnonzero(self._phase[node] == _IDLE).tolist()
        return found

    def fetch(self, node: int, stream: int, shard: int, nbytes: int) -> None:
        """Start to fetch a shard in an idle stream of a node."""
        slot = node, stream
        self._shard[slot], self._size[slot], self._left[slot] = shard, nbytes, 0
        self._requests[slot] = 1 + -(-nbytes // PART_BYTES)
        self._is_new[slot] = True
        self._begin(slot)

    def _begin(self, slot: tuple[int, int]) -> None:
        self._attempt[slot], self._since[slot] = 0, self.now
        self._ask(slot)

    def stop(self) -> None:
        """Forget all running requests."""
        self._phase[:], self._at[:], self._rate = _IDLE, np.inf, None

    def _ask(self, slot: tuple[int, int]) -> None:
        cluster, second = self._cluster, int(self.now)
        wanted = min(int(self._requests[slot]), self._at_once)
        limit = max(1.0, cluster.store_requests) if cluster.store_requests else inf
        room = max(0, int(min(limit - self._accepted[second], wanted)))
        accepted = min(wanted, room)
        refused = min(wanted - accepted, _PARTS_AT_ONCE)
        self._asked[second] += accepted + refused
        self._accepted[second] += accepted
        self._requests[slot] -= accepted
        delay = 0.0
        if self._is_new[slot] or refused:
            delay = cluster.latency_ms / 1e3 * float(self._rng.lognormal(0, cluster.latency_spread, 2).sum())
        self._phase[slot] = _ASKED
        if accepted:
            delay += cluster.fetch_ms / 1e3 * bool(self._is_new[slot])
            self._is_new[slot], self._since[slot] = False, self.now
            last = self._requests[slot] == 0
            self._left[slot] = self._size[slot] if last else min(self._size[slot], accepted * PART_BYTES)
            self._size[slot] -= self._left[slot]
        if refused:
            self.refused += refused
            self.longest_s = max(self.longest_s, self.now - float(self._since[slot]))
        if not accepted:
            longest = min(_LONGEST_BACK_OFF_S, _BACK_OFF_S * 2.0 ** self._attempt[slot])
            delay += longest * self._rng.uniform(0.5, 1)
            self._attempt[slot] += 1
            self._phase[slot] = _REFUSED
        self._at[slot] = self.now + delay

    def next_event(self) -> float:
        """Return when the next event happens, or infinity if no request is running."""
        ends = float(self._at.min())
        coming = self._phase == _COMING
        if coming.any():
            ends = min(ends, self.now + float((self._left[coming] / self._rates()[coming]).min()))
        return ends

    def advance(self, until: float) -> list[tuple[int, int]]:
        """Move the clock, and return the nodes and shards of the transfers that ended."""
        coming = self._phase == _COMING
        if coming.any():
            self._left -= np.where(coming, self._rates() * (until - self.now), 0)
            self._at[coming & (self._left <= self._rates() * self._tick)] = until
        self.now = until
        done = []
        for node, stream in np.argwhere(self._at <= until + self._tick).tolist():
            slot = node, stream
            self._at[slot] = np.inf
            if self._phase[slot] == _REFUSED:
                self._ask(slot)
            elif self._phase[slot] == _ASKED:
                self._phase[slot], self._rate = _COMING, None
            elif self._phase[slot] == _COMING:
                self._phase[slot], self._rate = _IDLE, None
                if self._requests[slot]:
                    self._begin(slot)
                else:
                    done.append((node, int(self._shard[slot])))
        return done

    def _rates(self) -> Array:
        """Return the bytes/s of each transferring stream. All streams share the bandwidth of the store."""
        if self._rate is None:
            cluster, coming = self._cluster, self._phase == _COMING
            count = coming.sum(axis=1)
            speed = np.minimum(self._node_speed / np.maximum(count, 1), cluster.stream_mbs * 1e6)
            if self._total_speed < float((speed * count).sum()):
                speed = np.minimum(speed, _level(speed, count, self._total_speed))
            self._rate = np.broadcast_to(speed[:, None], coming.shape)
        return self._rate


def _level(speed: Array, count: Array, total: float) -> float:
    """Return the limit per stream at which all streams together reach ``total`` bytes/s. Slower streams stay slower."""
    order = np.argsort(speed)
    speed, count = speed[order], count[order]
    below = np.cumsum(speed * count) - speed * count  # bandwidth that the slower streams take
    above = np.cumsum(count[::-1])[::-1]
    levels = (total - below) / np.maximum(above, 1)
    return float(levels[np.argmax(levels < speed)])
