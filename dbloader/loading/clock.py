"""What is measured of a loader, at its two sides and by its workers."""

from __future__ import annotations

from typing import Any

from dbloader.batches.timed import TimedBatch, Work, now


class Clock:
    """The times of one iteration, counted by the two sides of a loader: a few readings of the clock for each batch.

    Attributes:
        batches: Batches that the consumer has received.
        samples: Samples in them, where that is known.
        steps: Batches that it has finished its work with.
        first: Seconds that it waited for its first batch, in which workers start.
        waited: Seconds that it waited for the others, and for the end.
        computed: Seconds that its work took, from receiving a batch to asking for the next.
        ahead: Batches that the loader has given.
        produced: Seconds that it took for them.
        copied: Seconds that the background thread took to send them to a device and prepare them.
        blocked: Seconds that it waited for the consumer to take one.
        work: What the workers report.
        serial: Seconds of that which are not the workers'.
    """

    def __init__(self) -> None:
        self.batches = self.samples = self.steps = self.ahead = 0
        self.first = self.waited = self.computed = 0.0
        self.produced = self.copied = self.blocked = self.serial = 0.0
        self.work = Work()
        self._received: float | None = None

    def asked(self) -> float:
        """The consumer asks for a batch: gives the time."""
        asked = now()
        if self._received is not None:
            self.computed += asked - self._received
            self.steps += 1
            self._received = None
        return asked

    def answered(self, asked: float) -> None:
        """It has one, or an error or the end."""
        answered = now()
        if self.batches:
            self.waited += answered - asked
        else:
            self.first += answered - asked

    def received(self) -> None:
        """It goes on to work with one."""
        self.batches += 1
        self._received = now()

    def made(self, batch: Any, seconds: float) -> None:
        """The loader gave a batch."""
        self.ahead += 1
        self.produced += seconds
        if type(batch) is TimedBatch:
            self.work += batch.work
            self.serial += batch.serial
