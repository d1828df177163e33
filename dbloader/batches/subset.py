"""Make the batches of a torch Subset."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader.batches.base import BatchFetcher
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import Subset

    from dbloader.batches.base import Finish, Submit


class SubsetBatchFetcher(BatchFetcher):
    """Makes the batches of a Subset with the fetcher of the whole dataset, and the Subset's positions."""

    def __init__(self, subset: Subset[Any], fetcher: BatchFetcher) -> None:
        self.dataset = subset
        self._fetcher = fetcher
        self.releases_gil = fetcher.releases_gil
        self.image_nbytes = fetcher.image_nbytes

    @override
    def snapshot(self) -> BatchFetcher:
        fetcher = copy.copy(self)
        fetcher._fetcher = self._fetcher.snapshot()
        return fetcher

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        self._fetcher.pin_memory = self.pin_memory
        self._fetcher.shared_pool = self.shared_pool
        chosen = [self.dataset.indices[index] for index in indices]
        if isinstance(indices, SeededIndices):
            chosen = SeededIndices(chosen, indices.seed, indices.epoch, indices.positions)
        return self._fetcher.begin(chosen, submit, size)
