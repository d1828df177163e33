"""Functions for orders of samplers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from dbloader.sampling import ResumableSampler

LENGTH = 11
HUGE = 2**50  # a length that allows computing only a few indices
WORLDS = (1, 2, 3)


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
