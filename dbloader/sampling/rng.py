"""Random numbers computed from what they are for, in place of a generator's state.

A generator has to be run from its beginning to come to the number at position 10 million. Here the number is a function
of a key and the position (Salmon, Moraes, Dror and Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The
function is the finalizer of SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
2014), with Stafford's 13th set of constants, written out here so that no library's version can change it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: neighbors lie far apart
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = (np.uint64(bits) for bits in (27, 30, 31))
_FRACTION_BITS = 53  # of a float64


def keys(count: int, *purpose: int | str) -> Array:
    """Return keys for a purpose: uint64, shape (count,).

    Args:
        count: How many.
        purpose: What they are for, such as a seed, an epoch and a name. Integers of any size; those that differ in
            anything have unrelated keys. No str holds a ``/``.
    """
    text = "/".join(str(part) for part in purpose)
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * count), "<u8").astype(np.uint64)


def mix(values: Array) -> None:
    """Scramble uint64 values of any shape in place: a bijection in which each bit depends on all."""
    values ^= values >> _S30
    values *= _FIRST
    values ^= values >> _S27
    values *= _SECOND
    values ^= values >> _S31


def bits(positions: Array, key: Array) -> Array:
    """Return the random bits at positions of the stream that a key names: uint64, the shape of ``positions``.

    Args:
        positions: Integers from 0.
        key: uint64, shape (2,), as ``keys`` gives it.
    """
    values = positions.astype(np.uint64)
    values *= _GOLDEN
    values += key[0]
    mix(values)
    values ^= key[1]  # a second key: two streams are not parts of one sequence
    mix(values)
    return values


def uniform(positions: Array, key: Array) -> Array:
    """Return the random numbers in [0, 1) at positions of the stream that a key names: float64; see ``bits``."""
    return (bits(positions, key) >> np.uint64(64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS


@dataclasses.dataclass(frozen=True, eq=False)
class SampleRNG:
    """Names the samples of a batch, so that what is random about each is a pure function of its name.

    Then a sample gets the same random numbers in whatever batch it comes, made by however many workers, before or
    after a resume, on a GPU or not.

    Args:
        seed: Of the training.
        epoch: From 0.
        indices: One integer from 0 for each sample, shape (N,), on the CPU: where it stands in the global order of the
            epoch, which does not depend on the number of ranks. Indices of the dataset do as well, but a sample that
            a weighted order repeats would be the same each time.
        stream: Tells apart modules that draw for the same samples.

    Raises:
        OptionError: ``epoch`` or one of ``indices`` is negative, or these are no integers or not one axis.
    """

    seed: int
    epoch: int
    indices: Any
    stream: int = 0

    def __post_init__(self) -> None:
        indices = np.asarray(self.indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise OptionError(
                f"indices must be integers of the shape (N,), got {indices.dtype} of the shape {indices.shape}"
            )
        indices = indices.astype(np.int64)
        if indices.size and indices.min() < 0:
            raise OptionError(f"indices must be at least 0, got {indices.min()}")
        if as_index(self.epoch) < 0:
            raise OptionError(f"epoch must be at least 0, got {self.epoch}")
        # By their values, of whatever type they are, the random numbers are chosen.
        for name, value in (("indices", indices), ("seed", as_index(self.seed)), ("epoch", as_index(self.epoch))):
            object.__setattr__(self, name, value)

    @classmethod
    def drawn(cls, count: int) -> Self:
        """Return keys that torch's global generator chooses, for ``count`` samples."""
        import torch  # which samplers and numpy can do without

        return cls(int(torch.randint(2**62, (), device="cpu")), 0, np.arange(count))

    def __len__(self) -> int:
        return len(self.indices)

    def of_stream(self, stream: int) -> Self:
        """Return the keys with another stream."""
        return dataclasses.replace(self, stream=stream)

    def uniform(self, count: int, purpose: str) -> Array:
        """Return random numbers in [0, 1) for a purpose: float64, shape (N, count)."""
        return uniform(self._positions(count), self._key(purpose))

    def bits(self, purpose: str) -> Array:
        """Return random bits for a purpose: uint64, shape (N,)."""
        return bits(self._positions(1)[:, 0], self._key(purpose))

    def _positions(self, count: int) -> Array:
        # Of unsigned integers, as those may wrap around.
        first = self.indices.astype(np.uint64) * np.uint64(count)
        positions: Array = first[:, None] + np.arange(count, dtype=np.uint64)
        return positions

    def _key(self, purpose: str) -> Array:
        return keys(2, self.seed, self.epoch, self.stream, purpose)


class SeededIndices(list[int]):
    """The indices of a batch, which know where in their epoch they stand.

    To all who know nothing of that it is a list of ints. A dataset that gets it in ``__getitems__``, in whatever
    process, can make what is random about each sample a pure function of ``keys``.

    Args:
        indices: One for each sample.
        seed: As in SampleRNG, like ``epoch``.
        epoch: From 0.
        positions: Where they stand in the global order of the epoch, one for each.
    """

    __slots__ = ("epoch", "positions", "seed")

    def __init__(self, indices: Iterable[int], seed: int, epoch: int, positions: range) -> None:
        super().__init__(indices)
        self.seed = seed
        self.epoch = epoch
        self.positions = positions
        if len(self) != len(positions):
            raise OptionError(f"positions must be one for each of {len(self)} indices, got {len(positions)}")

    @property
    def keys(self) -> SampleRNG:
        """Names the samples, so that random numbers can be made of it."""
        return SampleRNG(
            self.seed, self.epoch, np.arange(self.positions.start, self.positions.stop, self.positions.step)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.seed, self.epoch, self.positions)
