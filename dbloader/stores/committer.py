"""Commits in the background."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Committer:
    """A thread that runs one commit at a time, while the next records are prepared."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dbloader-commit")
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Start the thread. An interrupt while it started later could leave a commit that nobody waits for."""
        self._executor.submit(os.getpid).result()

    def begin(self, commit: Callable[..., None], *arguments: Any) -> None:
        """Wait for the commit before, then run another."""
        self.wait()
        self._running = self._executor.submit(commit, *arguments)

    def wait(self) -> None:
        """Wait for the commit under way. After a failed commit every call raises its error: records are missing."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def close(self) -> None:
        """Wait for the commit under way, and end the thread."""
        self._executor.shutdown()
