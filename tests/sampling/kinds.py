"""The samplers as the tests make them, and their orders."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from dbloader.sampling import BlockShuffleSampler, OrderedSampler, ShuffleSampler, WeightedSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling import ResumableSampler

LENGTH = 11
MUCH = 2**50  # of which only what is asked for is ever computed


def weighted(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return WeightedSampler([1 + index % 3 for index in range(LENGTH)], len(dataset), *ranks, **options)


def blocks(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return BlockShuffleSampler(dataset, 2, 3, *ranks, **options)


def lanes(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return BlockShuffleSampler(dataset, 2, 3, *ranks, lanes=6, **options)


class Sharded:
    """A dataset in shards of unequal lengths, some of them empty."""

    def __init__(self, *shard_lengths: int) -> None:
        self.shard_lengths = shard_lengths

    def __len__(self) -> int:
        return sum(self.shard_lengths)


def shards(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    length = len(dataset)
    return BlockShuffleSampler(
        Sharded(length // 5, 0, length // 2, length - length // 5 - length // 2, 0), None, 2, *ranks, **options
    )


# Each makes a sampler of any length for (dataset, num_replicas, rank).
PADDED: list[Callable[..., ResumableSampler]] = [ShuffleSampler, weighted, blocks, lanes, shards]
KINDS = [*PADDED, OrderedSampler]
WORLDS = (1, 2, 3)

of_each_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
of_each_padded_kind = pytest.mark.parametrize("make", PADDED, ids=lambda make: make.__name__)


def global_order(make: Callable[..., ResumableSampler], length: int = LENGTH, epoch: int = 0) -> list[int]:
    sampler = make(range(length), 1, 0)
    sampler.set_epoch(epoch)
    return list(sampler)


def interleaved(shares: list[list[int]]) -> list[int]:
    """Return the samples of all ranks in their global order, the last of which some may lack."""
    turns = itertools.zip_longest(*shares, fillvalue=None)
    return [index for turn in turns for index in turn if index is not None]
