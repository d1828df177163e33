"""WeightedSampler and ClassBalancedSampler draw with the right frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

from dbloader.errors import OptionError
from dbloader.sampling import ClassBalancedSampler, WeightedSampler
from tests.sampling.kinds import deviations

WEIGHTS = [0.5, 0.0, 3.0, 1.0, 0.0, 1.5]


def test_frequency_of_an_index_is_proportional_to_its_weight() -> None:
    weights = np.linspace(0.1, 5, 50)
    counts = np.bincount(list(WeightedSampler(weights, 500_000)), minlength=50)
    assert deviations(counts, 500_000 * weights / weights.sum()) < 5


@given(st.lists(st.one_of(st.just(0.0), st.floats(0, 1e308)), min_size=1, max_size=30).filter(any), st.integers())
def test_index_without_weight_is_never_drawn(weights: list[float], seed: int) -> None:
    drawn = set(WeightedSampler(weights, 300, seed=seed))
    assert drawn <= {index for index, weight in enumerate(weights) if weight}


def test_scaling_all_weights_changes_nothing() -> None:
    draws = list(WeightedSampler(WEIGHTS, 1000))
    # with the first unit the sum underflows, and with the last it overflows
    for unit in (2.0**-1060, 2.0**-20, 2.0**1020):
        assert list(WeightedSampler([weight * unit for weight in WEIGHTS], 1000)) == draws


def test_weights_may_be_list_array_or_tensor_and_are_copied() -> None:
    draws = list(WeightedSampler(WEIGHTS, 100))
    for weights in (np.array(WEIGHTS), torch.tensor(WEIGHTS), tuple(WEIGHTS), torch.tensor(WEIGHTS).half()):
        assert list(WeightedSampler(weights, 100)) == draws
    weights = np.ones(5)
    sampler = WeightedSampler(weights, 100)
    draws = list(sampler)
    weights[:] = 0
    assert list(sampler) == draws


def test_length_equals_weighted_random_sampler() -> None:
    for number in (1, 5, 1000):
        assert len(WeightedSampler(WEIGHTS, number)) == len(WeightedRandomSampler(WEIGHTS, number))
    assert len(WeightedSampler(WEIGHTS)) == len(WEIGHTS)
    assert len(WeightedSampler(WEIGHTS, 9, 4, 3)) == 3
    assert len(WeightedSampler(WEIGHTS, 9, 4, 3, drop_last=True)) == 2


def test_state_of_other_weights_is_refused() -> None:
    sampler = WeightedSampler([1, 2, 3])
    sampler.load_state_dict(WeightedSampler([2, 4, 6]).state_after())  # proportional weights give the same draws
    for weights in ([1, 2, 4], [3, 2, 1], [1, 2]):
        with pytest.raises(
            OptionError, match=r"the state must have (weights_crc32|length) .*, like this sampler, .* got"
        ):
            sampler.load_state_dict(WeightedSampler(weights).state_after())


def test_all_classes_and_all_records_of_a_class_are_equally_frequent() -> None:
    labels = np.repeat([7, -3, 1000], [1, 10, 100])  # labels may be any integers, even rare ones
    counts = np.bincount(list(ClassBalancedSampler(labels, 300_000)), minlength=111)
    of_classes = np.array([counts[labels == label].sum() for label in (7, -3, 1000)])
    assert deviations(of_classes, 100_000) < 5
    assert deviations(counts[1:11], of_classes[1] / 10) < 5
    assert deviations(counts[11:], of_classes[2] / 100) < 5
