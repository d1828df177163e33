"""Batches with the time that it took to make them."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dbloader.batches.skipped import SkippedSample

now = time.perf_counter


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The seconds that all workers together took to make batches.

    Attributes:
        read: To read records from a store; for any other dataset, to make its samples.
        decode: To make pixels of the wanted size from image files.
        collate: To make a batch of samples.
    """

    read: float = 0.0
    decode: float = 0.0
    collate: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all three."""
        return self.read + self.decode + self.collate

    def __add__(self, other: Work) -> Work:
        return Work(self.read + other.read, self.decode + other.decode, self.collate + other.collate)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch on its way from a worker, with the number of its samples and the time that it took to make it.

    ``serial`` is the seconds of ``work`` in the thread that asks for the batches, which more workers would not share.
    ``skipped`` are the damaged samples in whose place it has others.
    """

    batch: Any
    work: Work
    samples: int
    serial: float = 0.0
    skipped: tuple[SkippedSample, ...] = ()

    def pin_memory(self, device: Any = None) -> Self:
        """Return the same with the batch in pinned memory; a DataLoader calls this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]
