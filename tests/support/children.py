"""Functions run in forked processes."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 60


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked process and return its exit status, negative for a signal."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    try:
        process.join(WAIT_S)
        assert process.exitcode is not None, "the child hangs"
        return process.exitcode
    finally:
        process.kill()
        process.join()
        process.close()
