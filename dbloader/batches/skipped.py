"""Damaged samples in whose place a loader gave others, and how many of them it accepts."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

from dbloader._options import real_number
from dbloader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sampling.base import ResumableSampler


@dataclasses.dataclass(frozen=True)
class Skip:
    """Replaces damaged samples by undamaged ones, up to a share: ``create_loader(on_error=Skip(0.05))``.

    The next undamaged sample of the order takes the place, with the place's random numbers. So batches keep their
    number and size. The loader warns once about each damaged sample, and ``stats()`` counts and lists them. A sample is
    damaged if it raises DamagedRecordError, DamagedImageError or NotAnImageError. All other errors end the epoch.

    Args:
        share: Largest share, 0 to 1, of a process's samples of an epoch that may be damaged.

    Raises:
        OptionError: ``share`` is out of range.
        TypeError: ``share`` is not a number.
    """

    share: float = 0.01

    def __post_init__(self) -> None:
        real_number("share", self.share, most=1)


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedSample:
    """A damaged sample: its index in the loader's dataset, the name of its record if known, and what is wrong."""

    index: int
    name: str | None
    reason: str

    def __str__(self) -> str:
        text = f"sample {self.index}{'' if self.name is None else f' ({self.name})'}: {self.reason}"
        return text if text.isprintable() else ascii(text)[1:-1]  # names come from strangers, and this is printed


class SkipLimit:
    """Warns about each damaged sample once, and raises an error when they are too large a share of an epoch.

    Args:
        sampler: The order of the samples.
        skip: The largest share.
        place: Where the store of the samples is; None if they come from elsewhere.
    """

    def __init__(self, sampler: ResumableSampler, skip: Skip, place: str | None) -> None:
        self.sampler = sampler
        self._share = skip.share
        self._remedy = "" if place is None else f"; dbloader verify {place} --decode names all damaged records"
        self._warned: set[int] = set()

    def receive(self, new: Sequence[SkippedSample], count: int, first: Sequence[SkippedSample]) -> None:
        """Warn about newly skipped samples of this process; raise LoaderError if that makes too many of them."""
        for sample in new:
            if sample.index not in self._warned:
                self._warned.add(sample.index)
                # The fourth caller is the loop over the loader.
                warnings.warn(f"skipped the damaged {sample}{self._remedy}", UserWarning, stacklevel=4)
        self.check(count, len(self.sampler), first)

    def check(self, count: int, total: int, first: Sequence[SkippedSample]) -> None:
        """Raise LoaderError if ``count`` of ``total`` samples, the first of which are given, are all or too many."""
        if count / total > self._share or count == total:
            raise LoaderError(
                f"too many samples are damaged, {count:,} of the {total:,} of an epoch ({100 * count / total:.3g} %, "
                f"on_error=Skip({self._share:g})), such as {'; '.join(map(str, first[:3]))}{self._remedy}; "
                "convert the images again without them, or pass a larger share to Skip"
            )
