"""Make batches in which other samples take the place of damaged ones."""

from __future__ import annotations

import copy
import dataclasses
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Subset
from typing_extensions import override

from dbloader.batches.base import OuterBatchFetcher, call_now
from dbloader.batches.skipped import SkippedSample
from dbloader.datasets.store import StoreDataset
from dbloader.errors import DamagedImageError, DamagedRecordError, DBLoaderError, NotAnImageError
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.skipped import SkipLimit
    from dbloader.batches.timed import TimedBatch

# The errors that are about one sample and no mistake of the program. All others are raised.
DAMAGE = (DamagedRecordError, DamagedImageError, NotAnImageError)


class ReplacingBatchFetcher(OuterBatchFetcher):
    """Makes the batches of another fetcher, with the next undamaged samples of the order in place of damaged ones.

    The sample at position p is tested with the random numbers of p, since a crop of a tiled image may leave the damage
    out. If it is damaged, the samples at the positions p + 1, p + 2 and so on (after the last one, from 0) are tested
    with the same random numbers, and the first undamaged one takes the place. So the batch is still a function of
    (seed, epoch, positions).

    Args:
        fetcher: Makes the batches, of SeededIndices.
        tester: A fetcher of the same samples, which collates a single sample of any kind.
        limit: Knows the order, and how many damaged samples in a row are too many.
    """

    def __init__(self, fetcher: BatchFetcher, tester: BatchFetcher, limit: SkipLimit) -> None:
        super().__init__(fetcher.dataset, fetcher)
        self._tester = tester
        self._limit = limit
        # Indices that were damaged before. They are tested first, so that most batches are made only once.
        self._suspects: set[int] = set()

    @override
    def snapshot(self) -> BatchFetcher:
        fetcher = copy.copy(self)
        fetcher._fetcher, fetcher._tester = self._fetcher.snapshot(), self._tester.snapshot()
        return fetcher

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        assert isinstance(indices, SeededIndices), "create_loader takes no other order"
        tested = [at for at, index in enumerate(indices) if index in self._suspects] if self._suspects else []
        chosen, skipped = self._replace(indices, tested, call_now)
        finish: Finish | None = None
        with suppress(*DAMAGE):
            finish = self._begin(chosen, submit, size)
        return functools.partial(self._finish, finish, skipped, indices, submit, size)

    def _finish(
        self,
        finish: Finish | None,
        skipped: list[SkippedSample],
        indices: SeededIndices,
        submit: Submit,
        size: int,
    ) -> TimedBatch:
        batch = None
        with suppress(*DAMAGE):
            batch = None if finish is None else finish()
        if batch is None:
            # The error does not say which sample of the batch it is about, and it may not be the only one.
            chosen, skipped = self._replace(indices, range(len(indices)), submit)
            batch = self._begin(chosen, submit, size)()
        return dataclasses.replace(batch, skipped=tuple(skipped)) if skipped else batch

    def _replace(
        self, indices: SeededIndices, tested: Iterable[int], submit: Submit
    ) -> tuple[SeededIndices, list[SkippedSample]]:
        """Return the indices without the damaged ones of those that are tested, which also come."""
        chosen, skipped = [*indices], []
        reasons = [(at, submit(self._find_damage, indices[at], indices, at)) for at in tested]
        for at, reason in reasons:
            damage = reason.result()
            if damage is not None:
                skipped.append(damage)
                self._suspects.add(damage.index)
                chosen[at] = self._find_next(indices, at, damage)
        return SeededIndices(chosen, indices.seed, indices.epoch, indices.positions), skipped

    def _find_damage(self, index: int, indices: SeededIndices, at: int) -> SkippedSample | None:
        """Return what is wrong with the sample at an index, with the random numbers of a place in the batch."""
        one = SeededIndices([index], indices.seed, indices.epoch, indices.positions[at : at + 1])
        try:
            self._tester.begin(one, call_now, 1)()
        except DAMAGE as error:
            return SkippedSample(index, _find_name(self.dataset, index), str(error))
        return None

    def _find_next(self, indices: SeededIndices, at: int, damage: SkippedSample) -> int:
        """Return the index of the sample that takes a place in the batch, where the one there is damaged."""
        sampler, first = self._limit.sampler, [damage]
        order = sampler._order(indices.seed, indices.epoch)
        for step in range(1, sampler.length):
            self._limit.check(step, sampler.length, first)
            index = int(order(np.array([(indices.positions[at] + step) % sampler.length]))[0])
            other = self._find_damage(index, indices, at)
            if other is None:
                return index
            first = [*first, other][:3]
        raise self._limit.error(sampler.length, sampler.length, first)


def _find_name(dataset: Any, index: int) -> str | None:
    """Return the name of the record of a sample, if it can be found."""
    while type(dataset) is Subset:
        dataset, index = dataset.dataset, dataset.indices[index]
    if not isinstance(dataset, StoreDataset):
        return None
    with suppress(DBLoaderError):  # the name is damaged too
        return dataset.store.name(dataset._positions([index])[0])
    return None
