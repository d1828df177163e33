"""How many samples a worker makes at a time: fewer while workers are idle because one of them is late.

A worker that has slow images among many delays its batch, and batches after it cannot begin. With smaller parts the
other workers take over the rest. In ordinary loading parts are large, because small ones cost time: parts of 16 images
take up to 3 % longer than parts of 32, parts of 4 a twelfth, and parts of one a fifth.
"""

from __future__ import annotations

from dbloader.batches.timed import now

_IDLE_SHARE = 0.05  # of the time of all workers, from one batch to the next


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
        """Adapt the size after a batch. All workers together were idle ``idle_s`` seconds while it was awaited."""
        ended = now()
        if idle_s > _IDLE_SHARE * self._workers * (ended - self._last):
            self._limit = max(1.0, self._limit / 2)
        else:
            self._limit = min(self._largest, self._limit * 1.05)
        self._last = ended
