"""Decide which shard a cache fetches next, and which shards it removes before that.

A sampler computes the order of an epoch, so all future needs are known. ``needs_of`` computes when a rank needs each
shard. CachePolicy fetches the shard that is needed next, and removes the shard whose next use is farthest away. No
other order of removal needs fewer fetches (L. Belady, IBM Systems Journal 5(2), 1966). This module reads no files and
no clock, so a simulation can run the same code.
"""

from __future__ import annotations

import heapq
from itertools import accumulate, chain, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from dbloader.sampling.base import ResumableSampler
    from dbloader.sampling.rng import Array

_NEVER = 2**62  # an infinite distance to the next use of a shard
_COMPUTED = 8192  # number of indices computed at a time


class Need(NamedTuple):
    """A shard that a reader needs from the position ``first`` to the position ``last`` of the reader's order."""

    shard: int
    first: int
    last: int


class Fetch(NamedTuple):
    """The shard to fetch, and the shards to remove first."""

    shard: int
    remove: list[int]


class CachePolicy:
    """Decides which shards a cache fetches and removes for all its readers. Threads must not share this object.

    A reader is a rank, or any other program that reads the store. The policy assumes that all readers advance at the
    same speed, each from its own position. A reader without a known order only asks for shards. Among shards without a
    known future use, the policy first removes the shard that was asked for least recently.

    Args:
        nbytes: Bytes of each shard. The caller may change the list later.
        limit: Limit of the total bytes of all shards in the cache; None for no limit.
    """

    def __init__(self, nbytes: list[int], limit: int | None = None) -> None:
        self.nbytes = nbytes
        self.limit = limit
        self._readers: dict[Hashable, _Reader] = {}
        self._questions = 0  # number of calls of `ask`
        self._asked: dict[int, int] = {}  # {shard: number of the last call of `ask` with this shard}

    def expect(self, reader: Hashable, needs: Iterable[Need]) -> None:
        """Set which shards a reader (a rank or another program) will need, and when. Its earlier needs are dropped."""
        self._readers[reader] = _Reader(sorted(needs, key=lambda need: need.first))

    def forget(self, reader: Hashable) -> None:
        """Stop fetching and keeping shards for a reader (a rank or another program) that has ended."""
        self._readers.pop(reader, None)

    def ask(self, reader: Hashable, shard: int) -> None:
        """Note that a reader has reached a shard. Drop the needs that end before the reader's new position."""
        self._questions += 1
        self._asked[shard] = self._questions
        if reader in self._readers:
            self._readers[reader].advance(shard)

    def least_bytes(self) -> int:
        """Return the smallest sufficient size of the cache, in bytes.

        This size is the largest total of the shards that are in use at the same time. A smaller cache would have to
        remove shards in use, and fetch them again.
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
        """Return the next shard to fetch; None if no shard has to be fetched, or the next shard has no room yet.

        Args:
            present: The shards in the cache, and the shards that are being fetched.
            waited_for: Shards for which readers are waiting, the most urgent shard first.
            fixed: Shards that must not be removed now, such as shards that are being fetched.
            skip: Shards that cannot be fetched now.
        """
        if len(present) == len(self.nbytes):  # this check saves 50 ms a call with 2,000 shards and 8 readers
            return None
        ahead = heapq.merge(*(reader.distances() for reader in self._readers.values()))
        in_use = following = 0
        for distance, shard in chain(((-1, shard) for shard in waited_for), ahead):
            in_use += distance == 0
            following += distance > 0
            if shard not in present and shard not in skip:
                # With N shards in use, only the N shards needed next may replace shards that are needed again later.
                # A cache for half of the data then fetches 60 % of the data in each epoch, and 75 % without this rule.
                remove = self._make_room(shard, distance if following <= in_use else _NEVER, present, fixed)
                return None if remove is None else Fetch(shard, remove)
        return None

    def _make_room(
        self, shard: int, distance: float, present: Collection[int], fixed: Collection[int]
    ) -> list[int] | None:
        """Return the shards to remove for a new shard; None if there would still be too little room.

        Only shards whose next use is farther away than ``distance`` can be removed.
        """
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
        """Return (distance, shard) for each shard that may be removed, the largest distance first.

        The distance is the number of positions until the next use: 0 for a shard in use, infinite if no use is known.
        """
        readers = self._readers.values()
        kept = (shard for shard in present if shard not in fixed)
        found = [(min((reader.distance(shard) for reader in readers), default=inf), shard) for shard in kept]
        return sorted(found, key=lambda item: (-item[0], self._asked.get(item[1], 0), item[1]))


class _Reader:
    """The order in which a reader needs shards, and the reader's position in this order."""

    def __init__(self, needs: Sequence[Need]) -> None:
        self.position = needs[0].first if needs else 0
        self.coming = needs  # present and future needs
        self._of_shard: dict[int, list[Need]] = {}
        for need in needs:
            self._of_shard.setdefault(need.shard, []).append(need)

    def distances(self) -> Iterator[tuple[int, int]]:
        """Yield (number of positions until its next use, shard) for each use that has not ended, the nearest first."""
        for need in self.coming:
            yield max(0, need.first - self.position), need.shard

    def distance(self, shard: int) -> float:
        """Return the number of positions until a shard's next use; infinite if no use is known."""
        for need in self._of_shard.get(shard, ()):
            if need.last >= self.position:
                return max(0, need.first - self.position)
        return inf

    def advance(self, shard: int) -> None:
        """Move the position to the next use of a shard, unless the shard is in use already."""
        distance = self.distance(shard)
        if 0 < distance < inf:
            self.position += int(distance)
            self.coming = [need for need in self.coming if need.last >= self.position]


def needs_of(
    sampler: ResumableSampler,
    since: Mapping[str, Any],
    lengths: Sequence[int],
    chosen: Array | None = None,
    *,
    margin: int = 0,
) -> list[Need]:
    """Return when a rank needs each shard. Positions count the rank's samples from the beginning of the iteration.

    This function is fast for a BlockShuffleSampler whose blocks are the shards. For any other sampler, it computes the
    order from its beginning to find the first use of each shard, and from its end to find the last use.

    Args:
        sampler: dbloader's sampler for this rank. Index -1 means a sample of another store.
        since: The sampler's state at the beginning of the iteration.
        lengths: Number of records in each shard.
        chosen: For each sample, its index in the store: int64, shape (samples,); None if every record is a sample.
        margin: Keep each shard for this many samples after its last use, because a worker may be that far behind.
    """
    share = sampler.positions(since)
    whole = range(share.start, min(share.stop, sampler.length), share.step)  # positions before the padding
    blocks = getattr(sampler, "blocks_ahead", None)
    if blocks is not None and chosen is None and getattr(sampler, "shard_lengths", None) == lengths:
        begin = since["position"]
        entries = list(blocks(since=since))
        firsts = [(position - begin) // share.step for position, _ in entries]
        return [
            Need(shard, first, behind + margin)
            for (first, behind), (_, shards) in zip(pairwise([*firsts, len(share)]), entries, strict=True)
            for shard in shards
        ]
    ends = np.cumsum(lengths)

    def seen(positions: range) -> Iterator[tuple[int, int]]:
        """Yield each shard once, with the number of ``positions`` before its first sample: (shard, number)."""
        unseen = np.array(lengths) > 0
        order = sampler.order(since["seed"], since["epoch"])
        for at in range(0, len(positions), _COMPUTED):
            part = positions[at : at + _COMPUTED]
            indices = order(np.arange(part.start, part.stop, part.step, dtype=np.int64) % sampler.length)
            shards = np.searchsorted(ends, indices if chosen is None else chosen[indices], side="right")
            new = np.flatnonzero(unseen[shards] & (indices >= 0))
            for shard, place in zip(*np.unique(shards[new], return_index=True), strict=True):
                yield int(shard), at + int(new[place])
            unseen[shards[new]] = False
            if not unseen.any():
                return

    lasts = {shard: len(whole) - 1 - before for shard, before in seen(whole[::-1])}
    needs = [Need(shard, first, lasts[shard] + margin) for shard, first in seen(whole)]
    padding = seen(share[len(whole) :])
    return needs + [Need(shard, len(whole) + first, len(share) + margin) for shard, first in padding]
