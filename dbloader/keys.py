"""What the random numbers of a batch are computed from."""

from __future__ import annotations

import dataclasses
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader import mixing
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from dbloader.mixing import Array


@dataclasses.dataclass(frozen=True, eq=False)
class SampleKeys:
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
        """Gives keys that torch's global generator chooses, for ``count`` samples."""
        import torch  # which samplers and numpy can do without

        return cls(int(torch.randint(2**62, (), device="cpu")), 0, np.arange(count))

    def __len__(self) -> int:
        return len(self.indices)

    def of_stream(self, stream: int) -> Self:
        """Gives the keys with another stream."""
        return dataclasses.replace(self, stream=stream)

    def uniform(self, count: int, purpose: str) -> Array:
        """Gives random numbers in [0, 1) for a purpose: float64, shape (N, count)."""
        return mixing.uniform(self._positions(count), self._key(purpose))

    def bits(self, purpose: str) -> Array:
        """Gives random bits for a purpose: uint64, shape (N,)."""
        return mixing.bits(self._positions(1)[:, 0], self._key(purpose))

    def _positions(self, count: int) -> Array:
        # Of unsigned integers, as those may wrap around.
        first = self.indices.astype(np.uint64) * np.uint64(count)
        positions: Array = first[:, None] + np.arange(count, dtype=np.uint64)
        return positions

    def _key(self, purpose: str) -> Array:
        return mixing.keys(2, self.seed, self.epoch, self.stream, purpose)


class KeyedIndices(list[int]):
    """The indices of a batch, which know where in their epoch they stand.

    To all who know nothing of that it is a list of ints. A dataset that gets it in ``__getitems__``, in whatever
    process, can make what is random about each sample a pure function of ``keys``.

    Args:
        indices: One for each sample.
        seed: As in SampleKeys, like ``epoch``.
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
    def keys(self) -> SampleKeys:
        """Names the samples, so that random numbers can be made of it."""
        return SampleKeys(
            self.seed, self.epoch, np.arange(self.positions.start, self.positions.stop, self.positions.step)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.seed, self.epoch, self.positions)
