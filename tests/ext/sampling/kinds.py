"""Functions that make a sampler of each kind around the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dbloader.sampling import BlockShuffleSampler, ResumableSampler, WeightedSampler
from tests.sampling.kinds import LENGTH


class Sharded:
    """A dataset whose shards have these lengths."""

    def __init__(self, *shard_lengths: int) -> None:
        self.shard_lengths = shard_lengths

    def __len__(self) -> int:
        return sum(self.shard_lengths)


def weighted(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return WeightedSampler([1 + index % 3 for index in range(LENGTH)], len(dataset), *ranks, **options)


def blocks(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return BlockShuffleSampler(dataset, 2, 3, *ranks, **options)


def lanes(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return BlockShuffleSampler(dataset, 2, 3, *ranks, lanes=6, **options)


def shards(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    fifth, half = len(dataset) // 5, len(dataset) // 2
    unequal = Sharded(fifth, 0, half, len(dataset) - fifth - half, 0)
    return BlockShuffleSampler(unequal, None, 2, *ranks, **options)


def growing(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    fifth, half = len(dataset) // 5, len(dataset) // 2
    unequal = Sharded(fifth, 0, half, len(dataset) - fifth - half, 0)
    return BlockShuffleSampler(unequal, None, 12, *ranks, lanes=2, **options)


def sticking(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return growing(dataset, *ranks, stick_to_shard=True, **options)


# Each function makes a sampler from (dataset, num_replicas, rank). The padding of sticking() is of another kind.
PADDED: list[Callable[..., ResumableSampler]] = [weighted, blocks, lanes, shards, growing]
EACH = [*PADDED, sticking]
