"""Random numbers that are a function of a key and a position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader.sampling.rng import bits, derive_keys, mix, uniform

SEEDS = st.integers(-(2**70), 2**70)


def test_the_numbers_never_change() -> None:
    key = derive_keys(2, 1, 2, "golden")
    assert key.tolist() == [12578346825565498984, 17466727190120040559]
    assert bits(np.array([0, 1, 10_000_000]), key).tolist() == [
        5407936044188423689,
        17906643399651090708,
        8749928059078890208,
    ]
    assert uniform(np.array([0, 2**62]), key).tolist() == [0.2931648003885876, 0.8020292723144248]


def test_mixing_is_the_published_function() -> None:
    # The first outputs of SplitMix64 from seed 0 (java.util.SplittableRandom, and the seeding of xoshiro).
    states = np.array([1, 2, 3], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mix(states)
    assert [hex(value) for value in states.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@given(SEEDS, SEEDS)
def test_what_differs_in_anything_has_other_keys(one: int, other: int) -> None:
    assert len({*derive_keys(2, one, other).tolist(), *derive_keys(2, one, other, "a").tolist()}) == 4
    assert (derive_keys(2, one, other).tolist() == derive_keys(2, other, one).tolist()) == (one == other)


def test_the_parts_of_a_purpose_do_not_run_together() -> None:
    purposes: list[tuple[int, ...]] = [(1, 23), (12, 3), (123,), (1, 2, 3), (1, -23)]
    assert len({tuple(derive_keys(1, *purpose).tolist()) for purpose in purposes}) == 5


def test_more_keys_begin_with_the_fewer() -> None:
    assert derive_keys(8, 1).tolist()[:2] == derive_keys(2, 1).tolist()


@pytest.mark.parametrize("stride", [1, 7, 1024, 2**40])
def test_the_numbers_are_uniform_and_neighbors_independent(stride: int) -> None:
    count, bins = 400_000, 64
    numbers = uniform(np.arange(count) * stride, derive_keys(2, stride))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = (numbers * bins).astype(int)
    pairs = np.bincount(cells[1:] * bins + cells[:-1], minlength=bins * bins)
    expected = (count - 1) / bins**2
    chi_square = ((pairs - expected) ** 2 / expected).sum()
    assert abs(chi_square - bins**2) < 5 * (2 * bins**2) ** 0.5


def test_each_bit_is_set_half_of_the_time() -> None:
    values = bits(np.arange(100_000), derive_keys(2, "bits"))
    ones = np.array([np.count_nonzero(values >> np.uint64(bit) & np.uint64(1)) for bit in range(64)])
    assert np.abs(ones - 50_000).max() < 5 * (100_000 / 4) ** 0.5


def test_streams_of_neighboring_epochs_are_unrelated() -> None:
    streams = np.array([uniform(np.arange(10_000), derive_keys(2, 0, epoch)) for epoch in range(20)])
    correlations = np.corrcoef(streams)[np.triu_indices(20, 1)]
    assert np.abs(correlations).max() < 5 / 10_000**0.5


def test_a_number_is_the_same_wherever_it_is_asked_for() -> None:
    key = derive_keys(2, "place")
    whole = uniform(np.arange(1000), key)
    assert uniform(np.array([[999, 3]]), key).tolist() == [[whole[999], whole[3]]]
    assert uniform(np.arange(500, 510, dtype=np.int32), key).tolist() == whole[500:510].tolist()
