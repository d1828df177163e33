"""The permutation is a random and reproducible bijection of any size."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader.sampling.permutation import LARGEST_TABLE, Permutation
from tests.sampling.kinds import deviations
from tests.support.children import traced_peak

LARGE = 2**62
# The smallest and largest sizes that use the Feistel network, and sizes that fill its table of rows and columns, or
# leave one column nearly empty.
NETWORK_SIZES = [4097, 4224, 4225, 4290, 65_537, 1_281_167, 10**9, 2**32 - 1, 2**32, 2**32 + 1, 2**61 + 1, LARGE]


def whole(n: int, seed: int, epoch: int = 0, *purpose: int | str) -> Any:
    return Permutation(n, seed, epoch, *purpose)(np.arange(n))


def samples(n: int, count: int) -> Any:
    """Return orders of different seeds and epochs as int64, shape (count, n)."""
    return np.array([whole(n, order % 1000, order // 1000) for order in range(count)])


def test_each_value_occurs_once() -> None:
    for n in (*range(300), LARGEST_TABLE - 1, LARGEST_TABLE, *(n for n in NETWORK_SIZES if n < 100_000)):
        order = Permutation(n, 3, n)
        values = order(np.arange(n))
        assert values.dtype == np.int64
        assert np.array_equal(np.sort(values), np.arange(n)), n
        assert np.array_equal(order.inverse(values), np.arange(n)), n


@given(st.integers(1, LARGE) | st.sampled_from(NETWORK_SIZES), st.integers(), st.integers(), st.data())
def test_inverse_undoes_permutation_of_any_size(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    order = Permutation(n, seed, epoch)
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    values = order(positions)
    assert order.inverse(values).tolist() == order(order.inverse(positions)).tolist() == positions.tolist()
    assert len(set(values.tolist())) == len(set(positions.tolist()))
    assert all(0 <= value < n for value in values.tolist())


def test_order_never_changes() -> None:
    assert whole(10, 0, 0).tolist() == [1, 6, 9, 8, 7, 3, 0, 4, 5, 2]
    assert whole(4096, 1, 2)[:5].tolist() == [3464, 1019, 1382, 3855, 3906]
    assert whole(4097, 1, 2)[:5].tolist() == [1799, 644, 3619, 3842, 1719]
    values = Permutation(1_281_167, -5, 2**80)(np.arange(1_000_000, 1_000_005))
    assert values.tolist() == [1239244, 290548, 151219, 787227, 141861]
    values = Permutation(LARGE, 0, 1)(np.arange(LARGE - 3, LARGE))
    assert values.tolist() == [601923345906733462, 1199759190599231912, 252463976120099452]
    assert whole(10, 0, 0, "blocks", 3).tolist() == [6, 3, 4, 2, 9, 0, 7, 8, 5, 1]


@pytest.mark.parametrize("n", [1000, 20_000])
def test_orders_of_different_arguments_are_unrelated(n: int) -> None:
    # Seeds and epochs are small numbers in practice.
    arguments: list[Any] = (
        [(0, epoch) for epoch in range(20)] + [(seed, 0) for seed in range(1, 20)] + [(0, 0, "a"), (0, 0, "b")]
    )
    orders = [whole(n, *each) for each in arguments]
    orders.append(whole(n + 1, 0)[:n])
    correlations = np.corrcoef(orders)[np.triu_indices(len(orders), 1)]
    assert np.abs(correlations).max() < 5 / n**0.5
    for one, other in itertools.pairwise(orders):
        assert np.count_nonzero(one == other) < 10  # the number of matches has a Poisson distribution with mean 1


@pytest.mark.parametrize("n", [2, 5])
def test_all_orders_of_small_n_are_equally_frequent(n: int) -> None:
    counts = Counter(map(tuple, samples(n, 6000).tolist()))
    assert deviations([counts[order] for order in itertools.permutations(range(n))]) < 5


@pytest.mark.parametrize("n", [65_537, 1_281_167])
def test_neighbors_are_random(n: int) -> None:
    orders = samples(n, 2_600_000 // n)
    fixed = np.count_nonzero(orders == np.arange(n))
    assert abs(fixed - len(orders)) < 5 * len(orders) ** 0.5
    # The number of ascents has mean (n - 1) / 2 and variance (n + 1) / 12.
    ascents = np.count_nonzero(np.diff(orders) > 0)
    assert abs(ascents - len(orders) * (n - 1) / 2) < 5 * (len(orders) * (n + 1) / 12) ** 0.5
    cells = orders * 16 // n
    assert deviations(np.bincount((cells[:, 1:] * 16 + cells[:, :-1]).ravel(), minlength=256)) < 5


def test_memory_does_not_grow_with_the_size() -> None:
    assert traced_peak(lambda: Permutation(LARGE, 0)(np.array([LARGE // 2]))) < 100_000
