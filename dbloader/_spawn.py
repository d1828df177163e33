"""Start processes that Ctrl-C does not reach while they import: each would print a traceback."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def shielded() -> Iterator[None]:
    """Hold back SIGINT from this thread, and from the processes that it starts, where it stays blocked."""
    resource_tracker.ensure_running()  # which unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
