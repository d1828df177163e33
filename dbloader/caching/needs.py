"""From the order of a sampler to the shards that a rank needs, and from when until when."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.caching.policy import Need

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dbloader.sampling.base import ResumableSampler
    from dbloader.sampling.rng import Array

_COMPUTED = 8192  # indices at a time


def needs_of(
    sampler: ResumableSampler,
    since: Mapping[str, Any],
    lengths: Sequence[int],
    chosen: Array | None = None,
    *,
    margin: int = 0,
) -> list[Need]:
    """Return when a rank needs which shard, counted in its samples from the beginning of the iteration.

    With a BlockShuffleSampler whose blocks are the shards this takes a moment. With any other sampler, the order is
    computed from both ends until every shard was seen.

    Args:
        sampler: One of dbloader's, for this rank.
        since: The state where the iteration begins.
        lengths: Records in each shard.
        chosen: The store's indices of the samples: int64, shape (samples,); None if the samples are all its records.
        margin: Samples for which a shard stays after its last use, since a worker may be so far behind another one.
    """
    share = sampler.positions(since)
    whole = range(share.start, min(share.stop, sampler.length), share.step)  # what follows in the share is padding
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
        """Yield each shard when it is first seen, and how many samples come before that."""
        unseen = np.array(lengths) > 0
        order = sampler.order(since["seed"], since["epoch"])
        for at in range(0, len(positions), _COMPUTED):
            part = positions[at : at + _COMPUTED]
            indices = order(np.arange(part.start, part.stop, part.step, dtype=np.int64) % sampler.length)
            shards = np.searchsorted(ends, indices if chosen is None else chosen[indices], side="right")
            new = np.flatnonzero(unseen[shards])
            for shard, place in zip(*np.unique(shards[new], return_index=True), strict=True):
                yield int(shard), at + int(new[place])
            unseen[shards[new]] = False
            if not unseen.any():
                return

    lasts = {shard: len(whole) - 1 - before for shard, before in seen(whole[::-1])}
    needs = [Need(shard, first, lasts[shard] + margin) for shard, first in seen(whole)]
    padding = seen(share[len(whole) :])
    return needs + [Need(shard, len(whole) + first, len(share) + margin) for shard, first in padding]
