"""Replace damaged samples by other samples, for ``on_error=Skip()``. Stop if too many samples are damaged."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch.utils.data import Subset
from typing_extensions import override

from dbloader._options import real_number
from dbloader.batches.base import OuterBatchFetcher, call_now
from dbloader.batches.timed import SkippedSample
from dbloader.datasets.base import find_origin
from dbloader.datasets.store import StoreDataset
from dbloader.errors import DamagedImageError, DamagedRecordError, DBLoaderError, LoaderError, NotAnImageError
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dbloader.batches.base import BatchFetcher, Finish, Slot, Submit
    from dbloader.batches.timed import TimedBatch
    from dbloader.sampling.base import ResumableSampler

T = TypeVar("T")

# Errors about one damaged sample. Any other error may be a mistake in the program, so it is raised.
DAMAGE = (DamagedRecordError, DamagedImageError, NotAnImageError)


@dataclasses.dataclass(frozen=True)
class Skip:
    """Replaces damaged samples by other samples, up to a share: ``create_loader(on_error=Skip(0.05))``.

    In place of a damaged sample, the loader returns the next undamaged sample in the epoch's order. So batches keep
    their number and size. The next sample is transformed with the random numbers of the damaged sample. The loader
    warns once about each damaged sample, and ``stats()`` counts and lists them. A sample is damaged if it raises
    DamagedRecordError, DamagedImageError or NotAnImageError. All other errors end the epoch.

    Args:
        share: The largest allowed share of damaged samples, 0 to 1, among the samples of one process in an epoch.

    Raises:
        OptionError: ``share`` is out of range.
        TypeError: ``share`` is not a number.
    """

    share: float = 0.01

    def __post_init__(self) -> None:
        real_number("share", self.share, most=1)


class ReplacingBatchFetcher(OuterBatchFetcher):
    """Makes the batches of another fetcher, and replaces each damaged sample by the next undamaged one of the epoch.

    The sample at position p is tested with the random numbers of p, which choose the crop. From a tiled image, only the
    tiles of the crop are decoded, so damage outside of the crop does not matter. If the sample is damaged, the samples
    at p + 1, p + 2 and so on are tested with the same random numbers. Position 0 follows the last position. The first
    undamaged sample replaces the damaged sample. So the batch is still a function of (seed, epoch, positions).

    Args:
        fetcher: Makes batches from SeededIndices.
        tester: Makes the same samples singly, to find the damaged ones. Its ``collate_fn`` accepts single samples.
        sampler: The sampler that gives the order of the samples.
        skip: The largest share of damaged samples.
    """

    def __init__(self, fetcher: BatchFetcher, tester: BatchFetcher, sampler: ResumableSampler, skip: Skip) -> None:
        super().__init__(fetcher.dataset, fetcher)
        self._tester, self._sampler, self._share = tester, sampler, skip.share
        self._remedy = ""
        whole = self.dataset
        while type(whole) is Subset:
            whole = whole.dataset
        if isinstance(whole, StoreDataset):
            self._remedy = f"; dbloader verify {whole.root} --decode names all damaged records"
        # Indices of samples known to be damaged. They are tested before their batch is made, so few batches fail.
        self._suspects: set[int] = set()
        self._warned: set[int] = set()

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        assert isinstance(indices, SeededIndices), "create_loader accepts no other order"
        tested = [at for at, index in enumerate(indices) if index in self._suspects]
        chosen, skipped = self._replace(indices, tested, call_now)
        begun = _try(self.inner.begin, chosen, submit, size, read, slot)

        def finish() -> TimedBatch:
            batch = None if begun is None else _try(begun)
            if batch is not None:
                return dataclasses.replace(batch, skipped=skipped)
            # The error does not say which sample is damaged, and other samples may be damaged too. So test all.
            again, found = self._replace(indices, range(len(indices)), submit)
            return dataclasses.replace(self.inner.begin(again, submit, size, True, slot)(), skipped=found)

        return finish

    def _replace(
        self, indices: SeededIndices, tested: Iterable[int], submit: Submit
    ) -> tuple[SeededIndices, tuple[SkippedSample, ...]]:
        """Test the samples at the places ``tested`` in a batch. Return its new indices, and the damaged samples."""
        chosen, skipped = [*indices], []
        for at, future in [(at, submit(self._find_damage, indices[at], indices, at)) for at in tested]:
            damage = future.result()
            if damage is not None:
                skipped.append(damage)
                self._suspects.add(damage.index)
                chosen[at] = self._find_next(indices, at, damage)
        return SeededIndices(chosen, indices.seed, indices.epoch, indices.positions), tuple(skipped)

    def _find_damage(self, index: int, indices: SeededIndices, at: int) -> SkippedSample | None:
        """Make a sample with the random numbers of the place ``at`` in the batch. Return its damage, or None."""
        one = SeededIndices([index], indices.seed, indices.epoch, indices.positions[at : at + 1])
        try:
            self._tester.begin(one, call_now, 1)()
        except DAMAGE as error:
            error.__traceback__ = error.__cause__ = error.__context__ = None  # see the comment in _try
            return SkippedSample(index, _find_name(self.dataset, index), str(error))
        return None

    def _find_next(self, indices: SeededIndices, at: int, damage: SkippedSample) -> int:
        """Return the index of the undamaged sample that replaces a damaged one."""
        length, first = self._sampler.length, [damage]
        order = self._sampler.order(indices.seed, indices.epoch)
        for count in itertools.count(1):
            self._check_share(count, length, first)  # ends the loop by LoaderError if all samples are damaged
            index = int(order(np.array([(indices.positions[at] + count) % length]))[0])
            other = self._find_damage(index, indices, at)
            if other is None:
                break
            first = [*first, other][:3]
        return index

    @override
    def check_skipped(self, new: Sequence[SkippedSample], count: int, first: Sequence[SkippedSample]) -> None:
        for sample in new:
            if sample.index not in self._warned:
                self._warned.add(sample.index)
                # Stack level 4 is the user's loop over the loader.
                warnings.warn(f"skipped the damaged {sample}{self._remedy}", UserWarning, stacklevel=4)
        self._check_share(count, len(self._sampler), first)

    def _check_share(self, count: int, total: int, first: Sequence[SkippedSample]) -> None:
        """Raise LoaderError if ``count`` damaged samples of ``total`` exceed the allowed share, or are all samples."""
        if count / total > self._share or count == total:
            raise LoaderError(
                f"too many samples are damaged, {count:,} of the {total:,} in an epoch ({100 * count / total:.3g} %, "
                f"on_error=Skip({self._share:g})), such as {'; '.join(map(str, first[:3]))}{self._remedy}; "
                "convert the images again without the damaged ones, or pass a larger share to Skip"
            )


def _try(function: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of a function; None if it raises an error about a damaged sample."""
    try:
        return function(*arguments)
    except DAMAGE as error:
        # The traceback and the batch's futures refer to each other. Such a cycle would keep the batch in memory.
        error.__traceback__ = error.__cause__ = error.__context__ = None
    return None


def _find_name(dataset: Any, index: int) -> str | None:
    dataset, index = find_origin(dataset, index)
    with suppress(DBLoaderError):  # the name may be damaged too
        if isinstance(dataset, StoreDataset):
            store, (position,) = dataset.locate([index])
            return store.name(position)
    return None
