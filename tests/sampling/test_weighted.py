"""Weighted and class-balanced draws."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

from dbloader.errors import OptionError
from dbloader.records.columns import NO_LABEL
from dbloader.sampling import ClassBalancedSampler, WeightedSampler

WEIGHTS = [0.5, 0.0, 3.0, 1.0, 0.0, 1.5]


def deviations(counts: Any, expected: Any) -> float:
    """Return how many standard deviations the chi-square of counts lies from what is expected."""
    freedom = len(counts) - 1
    return float(abs(((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def test_each_index_is_drawn_as_often_as_its_weight_says() -> None:
    weights = np.linspace(0.1, 5, 50)
    counts = np.bincount(list(WeightedSampler(weights, 500_000)), minlength=50)
    assert deviations(counts, 500_000 * weights / weights.sum()) < 5


def test_each_draw_is_as_the_weights_say_over_epochs() -> None:
    sampler = WeightedSampler([1, 2, 3, 4], 3)
    draws = []
    for epoch in range(2000):
        sampler.set_epoch(epoch)
        draws.append(list(sampler))
    # All 64 outcomes of three independent draws.
    cells = np.array(draws) @ [16, 4, 1]
    chances = [a * b * c / 1000 for a, b, c in itertools.product([1, 2, 3, 4], repeat=3)]
    assert deviations(np.bincount(cells, minlength=64), 2000 * np.array(chances)) < 5


@given(st.lists(st.one_of(st.just(0.0), st.floats(0, 1e308)), min_size=1, max_size=30).filter(any), st.integers())
def test_what_has_no_weight_is_never_drawn(weights: list[float], seed: int) -> None:
    drawn = set(WeightedSampler(weights, 300, seed=seed))
    assert drawn <= {index for index, weight in enumerate(weights) if weight}


def test_the_least_and_the_greatest_random_number_draw_what_has_weight() -> None:
    for weights in ([0, 1, 0, 1, 0], [0, 0.1, 0.2, 0.7, 0], [0, 1e-300, 5e-324, 1e-300, 0]):
        assert WeightedSampler(weights).draw(np.array([0.0, 1 - 2.0**-53])).tolist() == [1, 3]


def test_the_unit_of_the_weights_makes_no_difference() -> None:
    draws = list(WeightedSampler(WEIGHTS, 1000))
    for unit in (2.0**-1060, 2.0**-20, 2.0**1020):  # the sum of the first underflows, that of the last overflows
        assert list(WeightedSampler([weight * unit for weight in WEIGHTS], 1000)) == draws


def test_weights_are_a_list_an_array_or_a_tensor() -> None:
    draws = list(WeightedSampler(WEIGHTS, 100))
    for weights in (np.array(WEIGHTS), torch.tensor(WEIGHTS), tuple(WEIGHTS), torch.tensor(WEIGHTS).half()):
        assert list(WeightedSampler(weights, 100)) == draws
    assert set(WeightedSampler([0, 1], 10)) == {1}


def test_it_has_the_length_of_torchs_own() -> None:
    for number in (1, 5, 1000):
        assert len(WeightedSampler(WEIGHTS, number)) == len(WeightedRandomSampler(WEIGHTS, number))
    assert len(WeightedSampler(WEIGHTS)) == len(WEIGHTS)
    assert len(WeightedSampler(WEIGHTS, 9, 4, 3)) == 3
    assert len(WeightedSampler(WEIGHTS, 9, 4, 3, drop_last=True)) == 2


def test_the_weights_are_not_kept_but_copied() -> None:
    weights = np.ones(5)
    sampler = WeightedSampler(weights, 100)
    draws = list(sampler)
    weights[:] = 0
    assert list(sampler) == draws


def test_a_state_of_other_weights_is_refused() -> None:
    sampler = WeightedSampler([1, 2, 3])
    sampler.load_state_dict(WeightedSampler([2, 4, 6]).state_after())  # the same draws
    for weights in ([1, 2, 4], [3, 2, 1], [1, 2]):
        with pytest.raises(
            OptionError, match=r"the state must have (weights_crc32|length) .*, as this sampler has, .* got"
        ):
            sampler.load_state_dict(WeightedSampler(weights).state_after())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "weights must have one above 0, got 0 that are 0"),
        ([0.0, 0.0], "weights must have one above 0, got 2 that are 0"),
        ([1.0, -2.0], r"weights must be finite and at least 0, got -2\.0 at index 1"),
        ([1.0, float("nan")], "weights must be finite and at least 0, got nan at index 1"),
        ([float("inf"), 1.0], "weights must be finite and at least 0, got inf at index 0"),
        ([[1.0, 2.0]], r"weights must be one for each index, got an array of shape \(1, 2\)"),
        (1.0, r"weights must be one for each index, got an array of shape \(\)"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WeightedSampler(weights)


@pytest.mark.parametrize("number", [0, -1])
def test_no_draws_are_refused(number: int) -> None:
    with pytest.raises(OptionError, match=f"num_samples must be at least 1, got {number}"):
        WeightedSampler(WEIGHTS, number)


# Classes


def test_all_classes_and_all_of_a_class_come_equally_often() -> None:
    labels = np.repeat([7, -3, 1000], [1, 10, 100])  # any integers, however rare
    counts = np.bincount(list(ClassBalancedSampler(labels, 300_000)), minlength=111)
    of_classes = np.array([counts[labels == label].sum() for label in (7, -3, 1000)])
    assert deviations(of_classes, 100_000) < 5
    assert deviations(counts[1:11], of_classes[1] / 10) < 5
    assert deviations(counts[11:], of_classes[2] / 100) < 5


def test_labels_are_a_list_an_array_or_a_tensor() -> None:
    labels = [0, 0, 1, 5]
    draws = list(ClassBalancedSampler(labels, 100))
    assert list(ClassBalancedSampler(np.array(labels, np.uint8), 100)) == draws
    assert list(ClassBalancedSampler(torch.tensor(labels), 100)) == draws
    assert len(ClassBalancedSampler(labels)) == 4


def test_a_missing_label_is_refused() -> None:
    with pytest.raises(OptionError, match="got none at index 1 and 2 in all: use WeightedSampler with weight 0"):
        ClassBalancedSampler(np.array([3, NO_LABEL, 4, NO_LABEL]))


@pytest.mark.parametrize("labels", [[], [0.5, 1.0], ["a"], [[1, 2]], [True, False], 3])
def test_labels_that_are_not_integers_are_refused(labels: Any) -> None:
    with pytest.raises(OptionError, match="labels must be one integer for each index, got an array of"):
        ClassBalancedSampler(labels)


def test_its_state_is_not_that_of_a_weighted_sampler() -> None:
    with pytest.raises(OptionError, match=r"must have sampler ClassBalancedSampler, .* got WeightedSampler"):
        ClassBalancedSampler([0, 1]).load_state_dict(WeightedSampler([1, 1]).state_after())
