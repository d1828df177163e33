"""Batches of a part of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader.batches.base import BatchFetcher
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import Subset

    from dbloader.batches.base import Finish, Submit


class SubsetBatchFetcher(BatchFetcher):
    """Has the batches of a torch Subset made by what makes those of the dataset, with the positions of the subset.

    Args:
        subset: As random_split gives it.
        maker: Of its dataset.
    """

    def __init__(self, subset: Subset[Any], maker: BatchFetcher) -> None:
        self.dataset = subset
        self._maker = maker
        self.frees_lock = maker.frees_lock
        self.image_nbytes = maker.image_nbytes

    @override
    def as_now(self) -> BatchFetcher:
        return SubsetBatchFetcher(self.dataset, self._maker.as_now())

    @override
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        self._maker.pin_memory = self.pin_memory
        self._maker.blocks = self.blocks
        chosen = [self.dataset.indices[index] for index in indices]
        if isinstance(indices, SeededIndices):
            chosen = SeededIndices(chosen, indices.seed, indices.epoch, indices.positions)
        return self._maker.begin(chosen, submit, part)
