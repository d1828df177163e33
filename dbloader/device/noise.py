"""Normal noise that is a pure function of a key, and the same on every device, to the bit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from dbloader.device.transfer import send_small
from dbloader.sampling.rng import ROUNDS, STEP

if TYPE_CHECKING:
    from dbloader.sampling.rng import Array

# 16 random bits choose one of the quantiles of the normal distribution, which end at 4.3; a 64-bit number has four.
_QUANTILES = 2**16
_PER_WORD = 4


def normal(keys: Array, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return independent normal noise of mean 0 and variance 1, made on the device: floats, shape (N, *shape).

    The keys, uint64 of shape (N,), are one for each image of ``shape`` (C, H, W).
    """
    values = shape[0] * shape[1] * shape[2]
    words = torch.arange(1, -(-values // _PER_WORD) + 1, device=device)
    words.mul_(_signed(STEP))
    seeds = send_small(torch.from_numpy(keys.view("int64")), device)
    chosen = mix(seeds[:, None] + words).view(torch.int16)[:, :values]
    # A table and no formula: a GPU's logarithm is not that of a CPU.
    rows = chosen.to(torch.int32).add_(_QUANTILES // 2).flatten()
    table = send_small(quantiles().to(dtype), device)
    return table.index_select(0, rows).view(len(keys), *shape)


def normal_of(uniform: Array) -> torch.Tensor:
    """Return normal numbers for uniform ones in [0, 1): float64, the same shape, on the CPU."""
    values: torch.Tensor = torch.special.ndtri(torch.from_numpy(uniform).clamp_(min=2.0**-54))
    return values


@functools.cache
def quantiles() -> torch.Tensor:
    """Return the normal quantiles of the middles of equal parts, ascending: float64, shape (65536,)."""
    middles = (torch.arange(_QUANTILES, dtype=torch.float64, device="cpu") + 0.5) / _QUANTILES
    quantiles: torch.Tensor = torch.special.ndtri(middles)
    return quantiles


def mix(words: torch.Tensor) -> torch.Tensor:
    """Scramble int64 numbers in place as ``sampling.rng.mix`` does uint64 ones; the bits are the same."""
    for shift, factor in ROUNDS:
        shifted = words >> shift
        shifted &= (1 << (64 - shift)) - 1  # as if they were unsigned
        words ^= shifted
        if factor != 1:
            words *= _signed(factor)
    return words


def _signed(bits: int) -> int:
    """Return the int64 with the bits of a uint64; torch has no arithmetic of uint64."""
    return bits - 2**64 if bits >= 2**63 else bits
