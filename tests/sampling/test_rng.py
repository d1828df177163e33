"""Random numbers are a function of a key and a position."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG, SeededIndices, bits, derive_keys, uniform
from tests.sampling.kinds import deviations


def test_numbers_never_change() -> None:
    key = derive_keys(2, 1, 2, "golden")
    assert key.tolist() == [12578346825565498984, 17466727190120040559]
    assert bits(np.array([0, 1, 10_000_000]), key).tolist() == [
        5407936044188423689,
        17906643399651090708,
        8749928059078890208,
    ]
    assert uniform(np.array([0, 2**62]), key).tolist() == [0.2931648003885876, 0.8020292723144248]


@pytest.mark.parametrize("stride", [1, 7, 1024, 2**40])
def test_numbers_are_uniform_and_neighbors_are_independent(stride: int) -> None:
    count, bins = 400_000, 64
    numbers = uniform(np.arange(count) * stride, derive_keys(2, stride))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = (numbers * bins).astype(int)
    assert deviations(np.bincount(cells[1:] * bins + cells[:-1], minlength=bins * bins)) < 5


def test_numbers_of_a_sample_do_not_depend_on_its_batch() -> None:
    whole = SampleRNG(1, 2, range(100))
    numbers = whole.uniform(7, "x")
    assert (SampleRNG(1, 2, [40, 3, 40]).uniform(7, "x") == numbers[[40, 3, 40]]).all()
    assert (SampleRNG(1, 2, [3]).bits("x") == whole.bits("x")[3]).all()
    assert len(np.unique(numbers)) == 700
    assert len(np.unique(SampleRNG(1, 2, [2**56, 2**56 - 1, 0]).uniform(24, "x"))) == 72


def test_different_seed_epoch_stream_or_purpose_gives_different_numbers() -> None:
    rng = SampleRNG(1, 2, range(10))
    others = (SampleRNG(3, 2, range(10)), SampleRNG(1, 3, range(10)), rng.with_stream(3))
    numbers = [each.uniform(7, "x") for each in (rng, *others)] + [rng.uniform(7, "y")]
    assert len(np.unique(numbers)) == 5 * 70


def test_numbers_do_not_depend_on_the_integer_type_or_on_pickling() -> None:
    seed, epoch = (np.array([1], np.int64), np.array([2], np.uint8))
    same = [SampleRNG(1, 2, np.array([5, 6], np.int32)), SampleRNG(1, 2, torch.tensor([5, 6]))]
    same += [SampleRNG(seed[0], epoch[0], (5, 6)), pickle.loads(pickle.dumps(same[0]))]  # noqa: S301
    same.append(pickle.loads(pickle.dumps(SeededIndices([9, 7], 1, 2, range(5, 7)))).rng)  # noqa: S301
    for each in same:
        assert (each.uniform(2, "x") == SampleRNG(1, 2, [5, 6]).uniform(2, "x")).all()


@pytest.mark.parametrize(
    ("positions", "epoch", "message"),
    [
        ([-1], 0, "positions must be at least 0, got -1"),
        ([0.5], 0, r"positions must be integers of the shape \(N,\), got float64 of the shape \(1,\)"),
        ([[1]], 0, r"positions must be integers of the shape \(N,\), got int64 of the shape \(1, 1\)"),
        ([0], -1, "epoch must be at least 0, got -1"),
    ],
)
def test_wrong_positions_or_epoch_are_refused(positions: Any, epoch: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SampleRNG(0, epoch, positions)
    with pytest.raises(OptionError, match="each of 2 indices must have a position, got 3"):
        SeededIndices([4, 5], 0, 0, range(3))
