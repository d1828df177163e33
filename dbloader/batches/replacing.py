"""Make batches in which other samples take the place of damaged ones."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from dbloader.batches.base import OuterBatchFetcher, call_now
from dbloader.batches.create import SubsetBatchFetcher
from dbloader.batches.skipped import SkippedSample
from dbloader.datasets.store import StoreDataset
from dbloader.errors import DamagedImageError, DamagedRecordError, DBLoaderError, NotAnImageError
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.skipped import SkipLimit
    from dbloader.batches.timed import TimedBatch

T = TypeVar("T")

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
        fetcher.inner, fetcher._tester = self.inner.snapshot(), self._tester.snapshot()
        return fetcher

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        assert isinstance(indices, SeededIndices), "create_loader takes no other order"
        tested = [at for at, index in enumerate(indices) if index in self._suspects] if self._suspects else []
        chosen, skipped = self._replace(indices, tested, call_now)
        begun = _try(self._begin, chosen, submit, size)

        def finish() -> TimedBatch:
            batch = None if begun is None else _try(begun)
            if batch is not None:
                return dataclasses.replace(batch, skipped=skipped)
            # The error does not say which sample of the batch it is about, and it may not be the only one.
            again, found = self._replace(indices, range(len(indices)), submit)
            return dataclasses.replace(self._begin(again, submit, size)(), skipped=found)

        return finish

    def _replace(
        self, indices: SeededIndices, tested: Iterable[int], submit: Submit
    ) -> tuple[SeededIndices, tuple[SkippedSample, ...]]:
        """Return the indices with others in place of the damaged ones of those that are tested; return these, too."""
        chosen, skipped = [*indices], []
        for at, future in [(at, submit(self._find_damage, indices[at], indices, at)) for at in tested]:
            damage = future.result()
            if damage is not None:
                skipped.append(damage)
                self._suspects.add(damage.index)
                chosen[at] = self._find_next(indices, at, damage)
        return SeededIndices(chosen, indices.seed, indices.epoch, indices.positions), tuple(skipped)

    def _find_damage(self, index: int, indices: SeededIndices, at: int) -> SkippedSample | None:
        """Return what is wrong with the sample at an index, with the random numbers of a place in the batch."""
        one = SeededIndices([index], indices.seed, indices.epoch, indices.positions[at : at + 1])
        try:
            self._tester.begin(one, call_now, 1)()
        except DAMAGE as error:
            error.__traceback__ = error.__cause__ = error.__context__ = None  # as in _try
            return SkippedSample(index, _find_name(self._tester, index), str(error))
        return None

    def _find_next(self, indices: SeededIndices, at: int, damage: SkippedSample) -> int:
        """Return the index of the sample that takes a place in the batch, where the one there is damaged."""
        sampler, first = self._limit.sampler, [damage]
        order = sampler.order(indices.seed, indices.epoch)
        for count in itertools.count(1):
            self._limit.check(count, sampler.length, first)  # after a whole epoch, it raises an error
            index = int(order(np.array([(indices.positions[at] + count) % sampler.length]))[0])
            other = self._find_damage(index, indices, at)
            if other is None:
                break
            first = [*first, other][:3]
        return index


def _try(function: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of a function; None if it raises an error about a damaged sample."""
    try:
        return function(*arguments)
    except DAMAGE as error:
        # They are in a cycle with the batch's futures, which would keep its memory.
        error.__traceback__ = error.__cause__ = error.__context__ = None
    return None


def find_store(fetcher: BatchFetcher, index: int = 0) -> tuple[StoreDataset | None, int]:
    """Return the store's dataset of a fetcher, if there is one, and the index in it of a sample."""
    while isinstance(fetcher, SubsetBatchFetcher):
        fetcher, index = fetcher.inner, fetcher.dataset.indices[index]
    return (fetcher.dataset if isinstance(fetcher.dataset, StoreDataset) else None), index


def _find_name(fetcher: BatchFetcher, index: int) -> str | None:
    store, index = find_store(fetcher, index)
    with suppress(DBLoaderError):  # the name is damaged too
        if store is not None:
            opened, (position,) = store.locate([index])
            return opened.name(position)
    return None
