"""What is measured of a loader, at its two sides and by its workers."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

now = time.perf_counter


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What it took to make batches, in seconds of whoever made them, all workers together.

    Attributes:
        read: Getting records out of a store; of a dataset that is no store's, making its samples.
        decode: From the bytes of images to pixels of the size wanted.
        collate: Putting samples together to a batch.
    """

    read: float = 0.0
    decode: float = 0.0
    collate: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.read + self.decode + self.collate

    def __add__(self, other: Work) -> Work:
        return Work(self.read + other.read, self.decode + other.decode, self.collate + other.collate)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch on its way from a worker, with what it took to make it.

    Attributes:
        batch: The batch.
        work: The seconds it took.
        samples: Number of its samples.
        serial: Seconds of ``work`` that whoever asks for the batches does himself, however many workers there are.
    """

    batch: Any
    work: Work
    samples: int
    serial: float = 0.0

    def pin_memory(self, device: Any = None) -> Self:
        """Return the same around pinned memory, as torch's DataLoader asks of what is no tensor."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]
