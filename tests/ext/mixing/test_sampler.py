"""The order of a mixture keeps the shares of its sources, and can be computed at any position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from dbloader.ext.mixing.shares import SHUFFLED, MixtureOrder, whole_shares

# 50 sources of 1 to 1,000,000 records.
LENGTHS = [1, 2, 3, 1024, 1025, *(round(10 ** (power * 6 / 45)) for power in range(1, 46))]
FIRSTS = [0, *accumulate(LENGTHS)]


def create_order(lengths: Sequence[int], *schedule: tuple[int, Any]) -> MixtureOrder:
    return MixtureOrder(lengths, schedule)


def check_draws(sources: np.ndarray[Any, Any], draws: np.ndarray[Any, Any], count: int) -> None:
    """Check that the draws from each source are numbered 0, 1, 2 and so on in the order of their positions."""
    for source in range(count):
        mine = draws[sources == source]
        assert mine.tolist() == [*range(len(mine))]


def test_each_window_has_exact_shares() -> None:
    weights = [5, 2, 1]
    sources, draws = create_order([100, 30, 7], (0, weights)).walk(3).draws(np.arange(8 * 500))
    assert np.array_equal(np.sort(sources.reshape(500, 8)), np.tile(np.repeat([0, 1, 2], weights), (500, 1)))
    assert len(np.unique(sources.reshape(500, 8), axis=0)) > 100  # a window has 168 possible orders
    check_draws(sources, draws, 3)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([5, 2, 1], (5, 2, 1)),
        ([10, 4, 2], (5, 2, 1)),
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([1e-3, np.float32(0.1), np.int64(2)], (1, 100, 2000)),
        ([0, 3], (0, 1)),
        ([2**41 - 1, 1], (2**48 - 2**7, 2**7)),
        ([1e30, 1.0], (2**48 - 1, 1)),
    ],
)
def test_weights_become_the_smallest_equivalent_integers(weights: list[float], shares: tuple[int, ...]) -> None:
    assert whole_shares(weights) == shares


@pytest.mark.parametrize("total", [SHUFFLED + 1, 3 * SHUFFLED + 7, 41_999])
def test_long_window_has_exact_shares(total: int) -> None:
    weights = [total - 607, 300, 300, 7]
    sources, draws = create_order([50] * 4, (0, weights)).walk(1).draws(np.arange(3 * total))
    check_draws(sources, draws, 4)
    for window in sources.reshape(3, total):
        assert np.bincount(window, minlength=4).tolist() == weights
        for end in range(SHUFFLED, total, SHUFFLED):  # a part of a window has nearly exact shares
            assert np.all(np.abs(np.bincount(window[:end], minlength=4) - end * np.array(weights) / total) < 40)


def test_irrational_shares_differ_by_less_than_one_in_each_block() -> None:
    weights = np.sqrt(LENGTHS)
    order = create_order(LENGTHS, (0, weights))
    for start in (0, 1000 * SHUFFLED, 10**12 // SHUFFLED * SHUFFLED):
        sources, _ = order.walk(9).draws(start + np.arange(200 * SHUFFLED))
        for block in sources.reshape(200, SHUFFLED):
            wanted = weights / weights.sum() * SHUFFLED
            assert np.abs(np.bincount(block, minlength=len(LENGTHS)) - wanted).max() < 1


def test_source_returns_all_samples_before_it_repeats_one() -> None:
    order = create_order(LENGTHS, (0, [max(1, length // 50) for length in LENGTHS]))
    indices = order.walk(5)(np.arange(200_000))
    sources = np.searchsorted(FIRSTS, indices, "right") - 1
    for number, length in enumerate(LENGTHS):
        mine = indices[sources == number] - FIRSTS[number]
        for begin in range(0, len(mine), length):
            part = mine[begin : begin + length]
            assert len(np.unique(part)) == len(part)
    second = indices[sources == 5][: 2 * LENGTHS[5]].reshape(2, -1)
    assert set(second[0].tolist()) == set(second[1].tolist())


def test_passes_and_seeds_have_different_orders() -> None:
    order = create_order([1000, 1000], (0, [1, 1]))
    one, other = (order.walk(seed)(np.arange(100)) for seed in (0, 1))
    assert not np.array_equal(one, other)
    for length in (100, 5000):
        indices = create_order([length], (0, [1])).walk(0)(np.arange(2 * length)).reshape(2, -1)
        assert np.array_equal(*np.sort(indices))
        assert not np.array_equal(*indices)


@pytest.mark.parametrize("weights", [np.ones(50), np.sqrt(LENGTHS), LENGTHS, np.arange(50)], ids=str)
def test_each_position_can_be_computed_alone(weights: Any) -> None:
    order = create_order(LENGTHS, (0, weights), (30_000, np.ones(50)))
    positions = np.arange(40_000)
    whole = order.walk(2)(positions)
    walk = order.walk(2)
    for rank in range(7):  # strided positions, like the share of a rank
        assert np.array_equal(walk(positions[rank::7]), whole[rank::7])
    shuffled = np.random.default_rng(0).permutation(positions)
    assert np.array_equal(walk(shuffled), whole[shuffled])
    for position in (0, 777, 29_999, 30_000, 39_999):
        assert order.walk(2)(np.array([position])).tolist() == [whole[position]]
        counts = np.bincount(order.walk(2).draws(positions[:position])[0], minlength=50)
        assert np.array_equal(walk.before(position), counts)


def test_changed_weights_continue_the_draws_and_keep_earlier_positions() -> None:
    first, second, third = [5, 2, 1], [1, 1, 2], [0, 0, 1]
    lengths = [100, 30, 7]
    whole = create_order(lengths, (0, first), (1001, second), (1500, third))
    sources, draws = whole.walk(4).draws(np.arange(2000))
    check_draws(sources, draws, 3)
    assert np.bincount(sources[1001:1500][:496], minlength=3).tolist() == [124, 124, 248]
    assert set(sources[1500:].tolist()) == {2}
    before = create_order(lengths, (0, first)).walk(4)(np.arange(1001))
    assert np.array_equal(whole.walk(4)(np.arange(1001)), before)


@pytest.mark.parametrize("weights", [[5, 2, 1, 1], [0.1, 0.5, 0.333333333, 1], [3**0.5, 2**0.5, 5**0.5, 0.01]])
def test_epoch_lasts_until_a_source_is_used_up(weights: list[float]) -> None:
    lengths = [10_000, 313, 2000, 9]
    order = create_order(lengths, (0, weights))
    for source, (length, positions) in enumerate(zip(lengths, order.epochs(), strict=True)):
        assert order.walk(0).before(positions)[source] >= length
        share = weights[source] / sum(weights)
        assert positions <= (length + 200) / share + 2 * SHUFFLED
    assert create_order([7, 13], (0, [7, 13])).epochs() == [20, 20]
