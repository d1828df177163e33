"""Functions that make a sampler of each kind, and functions for orders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dbloader.sampling import BlockShuffleSampler, OrderedSampler, ResumableSampler, ShuffleSampler, WeightedSampler

LENGTH = 11
HUGE = 2**50  # a length that allows computing only a few indices
WORLDS = (1, 2, 3)


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
PADDED: list[Callable[..., ResumableSampler]] = [ShuffleSampler, weighted, blocks, lanes, shards, growing]
EACH = [*PADDED, OrderedSampler, sticking]
of_each_kind = pytest.mark.parametrize("make", EACH, ids=lambda make: make.__name__)
of_each_padded_kind = pytest.mark.parametrize("make", PADDED, ids=lambda make: make.__name__)


def global_order(make: Callable[..., ResumableSampler], length: int = LENGTH, epoch: int = 0) -> list[int]:
    sampler = make(range(length), 1, 0)
    sampler.set_epoch(epoch)
    return list(sampler)


def deviations(counts: Any, expected: Any = None) -> float:
    """Return how many standard deviations the chi-square of ``counts`` is from its mean. Default: equal counts."""
    counts = np.asarray(counts, float)
    expected = counts.mean() if expected is None else expected
    freedom = counts.size - 1
    return float(abs(((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def interleaved(shares: list[list[int]]) -> list[int]:
    """Return the samples of all ranks in their global order."""
    turns = itertools.zip_longest(*shares, fillvalue=None)
    return [index for turn in turns for index in turn if index is not None]
