"""Draw indices with replacement, some more often than others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.errors import OptionError
from dbloader.records.columns import NO_LABEL
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.rng import derive_keys, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from dbloader.sampling.rng import Array


class WeightedSampler(ResumableSampler):
    """Draws indices with replacement, in proportion to weights. It replaces torch's WeightedRandomSampler.

    The draw at each position is a function of (seed, epoch, position). See ResumableSampler for resuming. Each weight
    takes 8 bytes of memory.

    Args:
        weights: Finite numbers of at least 0, shape (indices,). Only their ratios matter. An index of weight 0 is never
            drawn. All ranks must pass the same weights.
        num_samples: Number of draws in an epoch, by all ranks together; None for the number of weights.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler.

    Raises:
        OptionError: An option is wrong, as in ShuffleSampler. The weights are invalid or all 0.
        TypeError: A number is not an int, or ``drop_last`` is not a bool.
    """

    def __init__(
        self,
        weights: Sequence[float] | Array | torch.Tensor,
        num_samples: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        values = np.asarray(weights, np.float64)
        if values.ndim != 1:
            raise OptionError(f"weights must be one for each index, got an array of shape {values.shape}")
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if bad.size:
            raise OptionError(f"weights must be finite and at least 0, got {values[bad[0]]} at index {bad[0]}")
        if not values.any():
            raise OptionError(f"at least one weight must be above 0, got {values.size} that are 0")
        length = values.size if num_samples is None else whole_number("num_samples", num_samples, 1)
        super().__init__(length, values.size, num_replicas, rank, seed=seed, drop_last=drop_last)
        self._sums = np.cumsum(values / values.max())  # the division prevents overflow and underflow of the sum
        self._checksum = crc32(self._sums.astype("<f8").tobytes())

    @override
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        key = derive_keys(2, "weighted", seed, epoch)
        return lambda positions: self.draw(uniform(positions, key))

    def draw(self, numbers: Array) -> Array:
        """Return the indices that random numbers in [0, 1) choose: int64, the same shape."""
        # The product of the sum and a number below 1 is below the sum, even when rounded, so an index is always found.
        indices: Array = np.searchsorted(self._sums, numbers * self._sums[-1], side="right")
        return indices

    @override
    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "weights_crc32": self._checksum}


class ClassBalancedSampler(WeightedSampler):
    """Draws indices with replacement, each class equally often, even a class with few records.

    Args:
        labels: Integers, shape (indices,): ``dataset.targets``. A class without records is never drawn.
        num_samples, num_replicas, rank, seed, drop_last: As in WeightedSampler.

    Raises:
        OptionError: An option is wrong, as in WeightedSampler. The labels are not integers, or a label is missing.
    """

    def __init__(
        self,
        labels: Sequence[int] | Array | torch.Tensor,
        num_samples: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        values = np.asarray(labels)
        if values.ndim != 1 or not values.size or values.dtype.kind not in "iu":
            raise OptionError(
                f"labels must be one integer for each index, got an array of {values.dtype}, shape {values.shape}"
            )
        unlabelled = np.flatnonzero(values == NO_LABEL)
        if unlabelled.size:
            raise OptionError(
                f"each index must have a label, got {unlabelled.size} without a label, the first at index "
                f"{unlabelled[0]}: use WeightedSampler with weight 0 for these"
            )
        _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
        super().__init__(1.0 / counts[classes], num_samples, num_replicas, rank, seed=seed, drop_last=drop_last)
