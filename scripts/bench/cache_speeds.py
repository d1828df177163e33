"""Count how many shards a cache fetches again when its readers differ in speed, with the real policy and no network.

Eight ranks read one store in the order of a BlockShuffleSampler. In each row of the table, the slowest rank is the
given per cent slower than the fastest rank, and the others are between these two. So the ranks drift apart for a whole
epoch. Ranks that exchange gradients never do.
"""

from __future__ import annotations

import argparse

import numpy as np
from order import Shards

from dbloader.caching.policy import CachePolicy, needs_of
from dbloader.sampling import BlockShuffleSampler

RANKS, BATCH = 8, 200


def fetches_of(dataset: Shards, buffer: int, cache: int, spread: float) -> int:
    """Return how many shards an epoch fetches into a cache that holds ``cache`` shards."""
    policy = CachePolicy([1] * len(dataset.shard_lengths), cache)
    needs = []
    for rank in range(RANKS):
        sampler = BlockShuffleSampler(dataset, None, buffer, RANKS, rank)
        needs.append(needs_of(sampler, sampler.state_after(), dataset.shard_lengths))
        policy.expect(rank, needs[rank])
    speeds = 1 - spread * np.arange(RANKS) / (RANKS - 1)
    present: set[int] = set()
    fetches, length = 0, len(dataset) // RANKS
    for step in range(int(length / BATCH / speeds.min()) + 1):
        waited_for: dict[int, None] = {}
        for rank, speed in enumerate(speeds):
            position = int(step * BATCH * speed)
            for need in needs[rank]:
                if need.first <= position <= need.last:
                    policy.ask(rank, need.shard)
                    waited_for[need.shard] = None
        for shard in waited_for:
            if shard not in present:
                fetches += fetch(policy, present, [shard])
        while fetch(policy, present, []):
            fetches += 1
    return fetches


def fetch(policy: CachePolicy, present: set[int], waited_for: list[int]) -> bool:
    step = policy.next(present, waited_for)
    if step is not None:
        present.difference_update(step.remove)
        present.add(step.shard)
    return step is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--buffer", type=int, default=32, help="number of shards that are shuffled together")
    options = parser.parse_args()
    dataset = Shards([400] * options.shards)
    caches = [times * options.buffer for times in (2, 3, 4, 6)]
    print("| slowest rank | " + " | ".join(f"cache of {cache} shards" for cache in caches) + " |")
    for spread in (0, 0.05, 0.1, 0.2):
        found = [fetches_of(dataset, options.buffer, cache, spread) / options.shards for cache in caches]
        print(f"| {100 * spread:.0f} % slower | " + " | ".join(f"{times:.2f}" for times in found) + " |", flush=True)


if __name__ == "__main__":
    main()
