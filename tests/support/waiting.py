"""Wait for something that another process or thread does."""

from __future__ import annotations

import time
from typing import Any

WAIT_S = 60.0  # only a failing test waits this long


def wait_for(condition: Any, what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"waited for: {what}"
        time.sleep(0.01)
