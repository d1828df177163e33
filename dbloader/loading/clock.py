"""Count what a loader, its workers and its consumer spend their time on."""

from __future__ import annotations

from typing import Any

from dbloader.batches.timed import TimedBatch, Work, now


class Clock:
    """The times of one iteration, counted on both sides of a loader; a few readings of the clock for each batch.

    ``Stats`` says what each of them is.
    """

    def __init__(self) -> None:
        self.batches = self.samples = self.steps = self.ahead = 0
        self.first = self.waited = self.computed = 0.0
        self.produced = self.copied = self.blocked = self.serial = 0.0
        self.work = Work()
        self._received: float | None = None

    def start_waiting(self) -> float:
        """Note that the consumer asks for a batch, and return the time."""
        asked = now()
        if self._received is not None:
            self.computed += asked - self._received
            self.steps += 1
            self._received = None
        return asked

    def stop_waiting(self, asked: float) -> None:
        """Note that the consumer has a batch, an error or the end, after asking at a time."""
        waited = now() - asked
        if self.batches:
            self.waited += waited
        else:
            self.first += waited

    def receive(self) -> None:
        """Note that the consumer goes on to work with a batch."""
        self.batches += 1
        self._received = now()

    def add_batch(self, batch: Any, seconds: float) -> None:
        """Note that the loader made a batch in a number of seconds."""
        self.ahead += 1
        self.produced += seconds
        if type(batch) is TimedBatch:
            self.work += batch.work
            self.serial += batch.serial
