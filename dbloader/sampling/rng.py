"""Compute a random number from a key and a position, without a generator.

A generator must run from its start to reach its ten-millionth number. A function computes any number directly (Salmon,
Moraes, Dror and Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The function here is SplitMix64 (Steele,
Lea and Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) with Stafford's 13th set of constants.
SplitMix64 is implemented here, so no version of a library can change the random numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Array = np.ndarray[Any, Any]

# The constants of SplitMix64: the step, and the shifts and factors of the finalizer.
STEP = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))

_FRACTION_BITS = 53  # the number of significant bits in a float64


def derive_keys(count: int, *purpose: int | str) -> Array:
    """Return keys for a purpose, such as a seed, an epoch and a name: uint64, shape (count,).

    The parts of a purpose are integers of any size, and strings without a ``/``. Different purposes have unrelated
    keys.
    """
    text = "/".join(str(part) for part in purpose)
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * count), "<u8").astype(np.uint64)


def scramble(values: Array) -> None:
    """Scramble uint64 values of any shape in place: a bijection in which each bit depends on all bits."""
    for shift, factor in ROUNDS:
        values ^= values >> shift
        if factor != 1:
            values *= factor


def bits(positions: Array, key: Array) -> Array:
    """Return random bits for these positions, which count from 0: uint64, the shape of ``positions``.

    ``key`` is an array of two numbers from ``derive_keys``. Different keys give unrelated bits.
    """
    values = positions.astype(np.uint64)
    values *= STEP
    values += key[0]
    scramble(values)
    values ^= key[1]  # with one key only, two streams could overlap
    scramble(values)
    return values


def uniform(positions: Array, key: Array) -> Array:
    """Return random numbers in [0, 1) for these positions: float64, the shape of ``positions``. See ``bits``."""
    return (bits(positions, key) >> np.uint64(64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS


@dataclasses.dataclass(frozen=True, eq=False)
class SampleRNG:
    """Random numbers for the samples of a batch. Each is a pure function of (seed, epoch, position).

    A sample gets the same numbers in any batch, with any number of workers, before and after resuming.

    Args:
        seed: The seed of the training.
        epoch: The epoch, from 0.
        positions: Each sample's position in the global order of the epoch: integers from 0, shape (N,), on the CPU. The
            number of ranks does not change positions. Positions are not indices of the dataset: if a weighted order
            repeats a sample, the sample gets other numbers each time.
        stream: Modules with different streams draw different numbers for the same samples.

    Raises:
        OptionError: ``epoch`` or a position is negative, or the positions are not integers of shape (N,).
    """

    seed: int
    epoch: int
    positions: Any
    stream: int = 0

    def __post_init__(self) -> None:
        positions = np.asarray(self.positions)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise OptionError(
                f"positions must be integers of the shape (N,), got {positions.dtype} of the shape {positions.shape}"
            )
        positions = positions.astype(np.int64)
        if positions.size and positions.min() < 0:
            raise OptionError(f"positions must be at least 0, got {positions.min()}")
        if as_index(self.epoch) < 0:
            raise OptionError(f"epoch must be at least 0, got {self.epoch}")
        # Keys depend on str() of these numbers, and str() of NumPy's and torch's integers may differ: make them ints.
        for name, value in (("positions", positions), ("seed", as_index(self.seed)), ("epoch", as_index(self.epoch))):
            object.__setattr__(self, name, value)

    @classmethod
    def from_torch(cls, count: int) -> Self:
        """Return the RNG of ``count`` samples, with a seed from torch's global generator."""
        import torch  # not at the top: conversion uses this module without torch

        return cls(int(torch.randint(2**62, (), device="cpu")), 0, np.arange(count))

    def __len__(self) -> int:
        return len(self.positions)

    def with_stream(self, stream: int) -> Self:
        """Return a copy with another stream."""
        return dataclasses.replace(self, stream=stream)

    def uniform(self, count: int, purpose: str) -> Array:
        """Return random numbers in [0, 1) for a purpose: float64, shape (N, count)."""
        return uniform(self._counters(count), self._key(purpose))

    def bits(self, purpose: str) -> Array:
        """Return random bits for a purpose: uint64, shape (N,)."""
        return bits(self._counters(1)[:, 0], self._key(purpose))

    def _counters(self, count: int) -> Array:
        first = self.positions.astype(np.uint64) * np.uint64(count)  # uint64, because it may wrap around
        counters: Array = first[:, None] + np.arange(count, dtype=np.uint64)
        return counters

    def _key(self, purpose: str) -> Array:
        return derive_keys(2, self.seed, self.epoch, self.stream, purpose)


class SeededIndices(list[int]):
    """A list of the indices of a batch. It also has the samples' positions, which decide their random numbers.

    In any process, a dataset's ``__getitems__`` receives this list, and can use the random numbers in ``rng``.

    Args:
        indices: The index of each sample.
        seed: As in SampleRNG.
        epoch: As in SampleRNG.
        positions: The position of each index in the global order of the epoch: a range, or an int64 array.
    """

    __slots__ = ("epoch", "positions", "seed")

    def __init__(self, indices: Iterable[int], seed: int, epoch: int, positions: range | Array) -> None:
        super().__init__(indices)
        self.seed = seed
        self.epoch = epoch
        self.positions = positions
        if len(self) != len(positions):
            raise OptionError(f"each of {len(self)} indices must have a position, got {len(positions)} positions")

    @property
    def rng(self) -> SampleRNG:
        """The random numbers of these samples."""
        part = self.positions
        array = np.arange(part.start, part.stop, part.step) if isinstance(part, range) else part
        return SampleRNG(self.seed, self.epoch, array)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.seed, self.epoch, self.positions)


def seed_like(whole: Sequence[int], indices: Sequence[int], places: slice | list[int] = slice(None)) -> Sequence[int]:
    """Return ``indices`` with the seed, epoch and positions of ``whole``, if ``whole`` is a SeededIndices.

    ``places`` selects entries of ``whole``. The indices get the positions of these entries, in this order.
    """
    if not isinstance(whole, SeededIndices):
        return indices
    return SeededIndices(indices, whole.seed, whole.epoch, np.asarray(whole.positions)[places])
