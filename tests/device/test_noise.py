"""Noise is a pure function of its keys, computed with torch as with NumPy."""

from __future__ import annotations

import numpy as np
import torch

from dbloader.device import noise
from dbloader.sampling import rng
from dbloader.sampling.rng import SampleRNG

CPU = torch.device("cpu")


def test_mixing_with_torch_gives_the_bits_of_numpy() -> None:
    words = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64)
    words[:3] = 0, 2**63, 2**64 - 1
    mixed = noise.mix(torch.from_numpy(words.view(np.int64).copy()))
    rng.mix(words)
    assert (mixed.numpy().view(np.uint64) == words).all()


def test_noise_is_splitmix64_in_a_table_of_normal_quantiles() -> None:
    keys, shape = SampleRNG(1, 2, range(5)).bits("pixels"), (3, 5, 7)
    words = keys[:, None] + np.arange(1, 28, dtype=np.uint64) * np.uint64(rng.STEP)
    rng.mix(words)
    chosen = words.astype("<u8").view("<i2")[:, :105].astype(np.int64) + 2**15
    quantiles = torch.special.ndtri((torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16).numpy()
    expected = quantiles[chosen].astype(np.float32).reshape(5, *shape)
    assert (noise.normal(keys, shape, torch.float32, CPU).numpy() == expected).all()


def test_noise_of_neighbors_is_unrelated() -> None:
    made = noise.normal(SampleRNG(1, 2, range(64)).bits("pixels"), (3, 64, 64), torch.float64, CPU)
    bound = 5 / made.numel() ** 0.5
    for shifts, axes in (((1,), (3,)), ((4,), (3,)), ((1,), (2,)), ((1,), (1,)), ((1,), (0,)), ((1, 1), (2, 3))):
        assert abs((made * made.roll(shifts, axes)).mean()) < bound
