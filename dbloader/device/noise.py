"""Normal noise that is a pure function of a key, and the same on every device, to the bit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from dbloader.device.sending import send

if TYPE_CHECKING:
    from dbloader.sampling.rng import Array

# SplitMix64 as in dbloader.sampling.rng, there of uint64. torch computes with int64, which has the same bits.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
# Of the normal distribution, where 16 random bits choose one: they go to 4.3, and four come from one 64-bit number.
_QUANTILES = 2**16
_PER_WORD = 4


def normal(keys: Array, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return independent normal noise of mean 0 and variance 1: shape (N, C, H, W).

    Args:
        keys: Of the samples: uint64, shape (N,).
        shape: (C, H, W).
        dtype: Of the noise, a float one.
        device: Where it is made.
    """
    values = shape[0] * shape[1] * shape[2]
    words = torch.arange(1, -(-values // _PER_WORD) + 1, device=device)
    words.mul_(_GOLDEN)
    seeds = send(torch.from_numpy(keys.view("int64")), device)
    drawn = _mixed(seeds[:, None] + words).view(torch.int16)[:, :values]
    # A table and no formula: a GPU's logarithm is not that of a CPU.
    places = drawn.to(torch.int32).add_(_QUANTILES // 2).flatten()
    table = send(_quantiles().to(dtype), device)
    return table.index_select(0, places).view(len(keys), *shape)


def normal_of(uniform: Array) -> torch.Tensor:
    """Return normal numbers for uniform ones in [0, 1): float64, the same shape, on the CPU."""
    values: torch.Tensor = torch.special.ndtri(torch.from_numpy(uniform).clamp_(min=2.0**-54))
    return values


@functools.cache
def _quantiles() -> torch.Tensor:
    """Return those of the middles of equal parts, ascending: float64, shape (65536,)."""
    middles = (torch.arange(_QUANTILES, dtype=torch.float64, device="cpu") + 0.5) / _QUANTILES
    quantiles: torch.Tensor = torch.special.ndtri(middles)
    return quantiles


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Scramble int64 numbers in place, as ``mixing.mix`` does."""
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        shifted = words >> shift
        shifted &= (1 << (64 - shift)) - 1  # as if they were unsigned
        words ^= shifted
        if factor != 1:
            words *= factor
    return words
