"""Damaged samples in whose place a loader gave others, and how many of them it accepts."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

from dbloader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sampling.base import ResumableSampler


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
        max_skipped: The largest share, 0 to 1.
        place: Where the store of the samples is; None if they come from elsewhere.
    """

    def __init__(self, sampler: ResumableSampler, max_skipped: float, place: str | None) -> None:
        self.sampler = sampler
        self._max_skipped = max_skipped
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
        if count / total > self._max_skipped or count == total:
            raise LoaderError(
                f"too many samples are damaged, {count:,} of the {total:,} of an epoch ({100 * count / total:.3g} %, "
                f"max_skipped={self._max_skipped:g}), such as {'; '.join(map(str, first[:3]))}{self._remedy}; "
                "convert the images again without them, or pass a larger max_skipped"
            )
