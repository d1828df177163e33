"""A limit of speed, in place of a network or a disk."""

from __future__ import annotations

import threading
import time


class Throttle:
    """Lets so many bytes through in a second; threads may share it."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> float:
        """Return when these bytes have passed, on the monotonic clock."""
        with self._lock:
            self._free_at = max(time.monotonic(), self._free_at) + nbytes / self._rate
            return self._free_at

    def wait(self, nbytes: int) -> None:
        """Wait until these bytes have passed."""
        time.sleep(max(0.0, self.take(nbytes) - time.monotonic()))
