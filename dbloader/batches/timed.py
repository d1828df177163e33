"""A batch on its way from a worker to the training, with the time spent on making it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from dbloader._describe import printable

now = time.perf_counter


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The seconds that all workers together spent on batches.

    Attributes:
        read: Reading records from a store. For other datasets, making their samples.
        decode: Making pixels of the wanted size from image files.
        collate: Making a batch of samples.
        steps: Running the steps of a transform that `create_loader` could not fuse into the decoding.
    """

    read: float = 0.0
    decode: float = 0.0
    collate: float = 0.0
    steps: float = 0.0

    @property
    def total(self) -> float:
        """The sum of ``read``, ``decode``, ``collate`` and ``steps``."""
        return self.read + self.decode + self.collate + self.steps

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedSample:
    """A damaged sample: its index in the loader's dataset, the name of its record if known, and the reason."""

    index: int
    name: str | None
    reason: str

    def __str__(self) -> str:
        text = f"sample {self.index}{'' if self.name is None else f' ({self.name})'}: {self.reason}"
        return printable(text)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch, the number of its samples, and the time spent on making it.

    Attributes:
        serial: Seconds of ``work`` that one thread does for all batches. More workers do not shorten them.
        skipped: The damaged samples that other samples replace in this batch.
        sources: For a mixture, maps the name of each source to two numbers: its samples in the batch, and the seconds
            that workers waited for the source's records.
    """

    batch: Any
    work: Work
    samples: int
    serial: float = 0.0
    skipped: tuple[SkippedSample, ...] = ()
    sources: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
