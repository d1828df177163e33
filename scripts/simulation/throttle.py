"""A limit of speed, in place of a network or a disk."""

from __future__ import annotations

import threading
import time


class Throttle:
    """Lets so many bytes through in a second; threads may share it."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0
        self._lock = threading.Lock()

    def take(self, nbytes: int, came: float) -> float:
        """Return when bytes have passed that came at some time; a caller that is late does not make them later."""
        with self._lock:
            self._free_at = max(came, self._free_at) + nbytes / self._rate
            return self._free_at

    def wait(self, nbytes: int) -> None:
        """Wait until bytes that come now have passed."""
        now = time.monotonic()
        time.sleep(max(0.0, self.take(nbytes, now) - now))
