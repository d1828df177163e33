"""A speed limit that emulates a network or a disk."""

from __future__ import annotations

import threading
import time


class Throttle:
    """Limits the number of bytes per second. Threads may share this object."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0
        self._lock = threading.Lock()

    def take(self, nbytes: int, came: float) -> float:
        """Return the time at which bytes that arrive at the time ``came`` will have passed, whenever this is called."""
        with self._lock:
            self._free_at = max(came, self._free_at) + nbytes / self._rate
            return self._free_at

    def wait(self, nbytes: int) -> None:
        """Wait until bytes that arrive now have passed."""
        now = time.monotonic()
        time.sleep(max(0.0, self.take(nbytes, now) - now))
