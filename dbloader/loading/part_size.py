"""Choose how many samples a worker makes at a time: fewer while other workers are idle.

A worker that gets slow images delays its batch, and later batches cannot begin. If parts are small, the other workers
can make the rest of the batch. But small parts take more time for each image: parts of 16 images up to 3 % more than
parts of 32, parts of 4 a twelfth more, and parts of one a fifth more. So parts get smaller only if workers are idle.
"""

from __future__ import annotations

from dbloader.batches.timed import now

_IDLE_SHARE = 0.05  # parts get smaller if workers are idle for more than this share of their time


class PartSize:
    """The size of the parts of the next batch, at most ``largest``."""

    def __init__(self, workers: int, largest: int) -> None:
        self._workers, self._largest = workers, largest
        self._limit = float(largest)
        self._last = now()

    @property
    def most(self) -> int:
        """Most samples in a part."""
        return int(self._limit)

    def adapt(self, idle_s: float) -> None:
        """Adapt the size after a batch. While it was awaited, all workers together were idle for ``idle_s`` seconds."""
        ended = now()
        if idle_s > _IDLE_SHARE * self._workers * (ended - self._last):
            self._limit = max(1.0, self._limit / 2)
        else:
            self._limit = min(self._largest, self._limit * 1.05)
        self._last = ended
