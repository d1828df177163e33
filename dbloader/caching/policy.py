"""Which shard a cache fetches next, and which ones it removes for it.

The order of an epoch is computed, so the future is known: the shard that is needed next is fetched first, and the one
whose next use is farthest away is removed first, which no order of removal can beat (L. Belady, IBM Systems Journal
5(2), 1966). Nothing here reads a file or a clock, so a simulation runs the same code.
"""

from __future__ import annotations

import heapq
from itertools import accumulate, chain
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence


# Farther away than any use.
_NEVER = 2**62


class Need(NamedTuple):
    """A stretch of a reader's order in which it reads a shard: the positions of the first and last such record."""

    shard: int
    first: int
    last: int


class Fetch(NamedTuple):
    """The shard to fetch, and the shards to remove before that."""

    shard: int
    remove: list[int]


class CachePolicy:
    """Decides for one cache, whose readers share its shards; not thread-safe.

    A reader is a rank, or any program that reads. The readers of one training advance at one speed, each from its own
    position. A reader whose order is not known only asks; then the shard asked for longest ago is removed first.

    Args:
        nbytes: Bytes of each shard, which may change while it decides.
        limit: Most bytes of all shards in the cache; None for no limit.
    """

    def __init__(self, nbytes: list[int], limit: int | None = None) -> None:
        self.nbytes = nbytes
        self.limit = limit
        self._readers: dict[Hashable, _Reader] = {}
        self._asked: dict[int, int] = {}  # when each shard was last asked for, counted in questions

    def expect(self, reader: Hashable, needs: Iterable[Need]) -> None:
        """Take over the order in which a reader will need shards, from where it is now, in place of an earlier one."""
        self._readers[reader] = _Reader(sorted(needs, key=lambda need: need.first))

    def forget(self, reader: Hashable) -> None:
        """Forget the order of a reader that has ended."""
        self._readers.pop(reader, None)

    def ask(self, reader: Hashable, shard: int) -> None:
        """Note that a reader has come to a shard: what it needs before that one is done."""
        self._asked.pop(shard, None)
        self._asked[shard] = 1 + next(reversed(self._asked.values()), 0)
        if reader in self._readers:
            self._readers[reader].advance(shard)

    def least_bytes(self) -> int:
        """Return how large the cache must be for the orders of all readers, so that no shard is fetched twice in a row.

        It is the most bytes of all shards that are in use at one time.
        """
        changes: dict[int, list[tuple[int, int]]] = {}
        for reader in self._readers.values():
            for need in reader.coming:
                changes.setdefault(max(0, need.first - reader.position), []).append((need.shard, 1))
                changes.setdefault(need.last + 1 - reader.position, []).append((need.shard, -1))
        users: dict[int, int] = {}
        used = []
        for time in sorted(changes):
            change = 0
            for shard, step in changes[time]:
                before = users.get(shard, 0)
                users[shard] = before + step
                change += self.nbytes[shard] * (bool(before + step) - bool(before))
            used.append(change)
        return max(accumulate(used), default=0)

    def next(
        self,
        present: Collection[int],
        waited_for: Sequence[int] = (),
        fixed: Collection[int] = (),
        skip: Collection[int] = (),
    ) -> Fetch | None:
        """Return what to do next; None if nothing can be done, or the next shard has no room yet.

        Args:
            present: The shards in the cache, and those that are being fetched.
            waited_for: Shards that somebody waits for, the one to serve first being the first.
            fixed: Shards that must not be removed now, such as those that are being fetched.
            skip: Shards that cannot be fetched now.
        """
        if len(present) == len(self.nbytes):  # spares 50 ms with 2,000 shards and 8 readers
            return None
        ahead = heapq.merge(*(reader.distances() for reader in self._readers.values()))
        in_use = following = 0
        for distance, shard in chain(((-1, shard) for shard in waited_for), ahead):
            in_use += distance == 0
            following += distance > 0
            if shard not in present and shard not in skip:
                # In place of shards that are needed later still come only the next ones, as many as are in use:
                # with more, a cache of half of the data would fetch three quarters of it in each epoch.
                remove = self._make_room(shard, distance if following <= in_use else _NEVER, present, fixed)
                return None if remove is None else Fetch(shard, remove)
        return None

    def _make_room(
        self, shard: int, distance: float, present: Collection[int], fixed: Collection[int]
    ) -> list[int] | None:
        """Return what to remove for a shard, of what is farther away than a distance; None if that is not enough."""
        if self.limit is None:
            return []
        excess = sum(self.nbytes[other] for other in present) + self.nbytes[shard] - self.limit
        remove: list[int] = []
        for farther, other in self._removable(present, fixed) if excess > 0 else ():
            if excess <= 0 or farther <= distance:
                break
            remove.append(other)
            excess -= self.nbytes[other]
        return remove if excess <= 0 else None

    def _removable(self, present: Collection[int], fixed: Collection[int]) -> list[tuple[float, int]]:
        """Return how far away the next use of each shard is that may be removed, and the shard, the farthest first.

        The distance is in positions of a reader, 0 for a shard in use, infinite if no use is known.
        """
        found = [(self._distance(shard), shard) for shard in present if shard not in fixed]
        return sorted(found, key=lambda item: (-item[0], self._asked.get(item[1], 0), item[1]))

    def _distance(self, shard: int) -> float:
        return min((reader.distance(shard) for reader in self._readers.values()), default=inf)


class _Reader:
    """The order of one reader, and where it is."""

    def __init__(self, needs: Sequence[Need]) -> None:
        self.position = needs[0].first if needs else 0
        self.coming = needs  # those that are not done
        self._of_shard: dict[int, list[Need]] = {}
        for need in needs:
            self._of_shard.setdefault(need.shard, []).append(need)

    def distances(self) -> Iterator[tuple[int, int]]:
        """Yield how many positions away each need is that is not done, and its shard, the nearest first."""
        for need in self.coming:
            yield max(0, need.first - self.position), need.shard

    def distance(self, shard: int) -> float:
        """Return how many positions away the next use of a shard is; infinite without one."""
        for need in self._of_shard.get(shard, ()):
            if need.last >= self.position:
                return max(0, need.first - self.position)
        return inf

    def advance(self, shard: int) -> None:
        """Go to the next use of a shard, unless it is in use already."""
        distance = self.distance(shard)
        if 0 < distance < inf:
            self.position += int(distance)
            self.coming = [need for need in self.coming if need.last >= self.position]
