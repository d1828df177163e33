"""Find threads, child processes and open files that a block of code leaves behind."""

import contextlib
import gc
import multiprocessing
import os
import select
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import NamedTuple

WAIT_S = 10.0  # time for threads and processes to end; torch may take 5 s to notice a dead worker

ENDING_S = 0.1  # most threads end sooner

_PROC = Path("/proc/self")


class LeakError(AssertionError):
    """A test left something behind."""


class Resources(NamedTuple):
    threads: set[threading.Thread]
    pids: set[int]
    files: set[tuple[int, str]]  # descriptor, target

    def without(self, other: "Resources") -> "Resources":
        return Resources(self.threads - other.threads, self.pids - other.pids, self.files - other.files)

    def __str__(self) -> str:
        parts = [f"thread {thread.name!r}" for thread in self.threads]
        parts += [f"process {pid} ({_command(pid)})" for pid in self.pids]
        parts += [f"file descriptor {descriptor} ({target})" for descriptor, target in self.files]
        return ", ".join(parts)


@contextlib.contextmanager
def no_leaks(*, files: bool = True) -> Iterator[None]:
    """Raise LeakError if the block leaves a new thread, child process or (with ``files``) open file behind.

    Wait for threads and processes that are ending. Collect garbage only if waiting is not enough: with torch loaded, it
    takes 75 ms, and ten times as long on a busy machine.
    """
    before = find_resources(files=files)
    yield
    left = find_resources(files=files).without(before)
    if any(left):
        _wait_for(left, ENDING_S)
        left = find_resources(files=files).without(before)
    if any(left):
        gc.collect()
        _wait_for(left, WAIT_S)
        gc.collect()  # frees objects of ended threads
        left = find_resources(files=files).without(before)
    if any(left):
        raise LeakError(f"left behind: {left}")


def find_resources(*, files: bool = True) -> Resources:
    """Return the resources of this process, except helpers that Python keeps until the process ends."""
    multiprocessing.active_children()  # reaps children that have ended
    # multiprocessing starts these helpers once, at the first use of shared memory or of forkserver.
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
    helper_pids = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    helper_files = {getattr(tracker, "_fd", None), getattr(server, "_forkserver_alive_fd", None)}
    return Resources(
        {thread for thread in threading.enumerate() if not _belongs_to_process(thread)},
        {pid for pid in _children() if pid not in helper_pids},
        {(descriptor, target) for descriptor, target in _files() if descriptor not in helper_files} if files else set(),
    )


def _belongs_to_process(thread: threading.Thread) -> bool:
    # A dummy is a thread of a C library that has called Python, such as autograd's; Python cannot end it.
    # TMonitor is a thread of tqdm for all progress bars.
    return isinstance(thread, threading._DummyThread) or type(thread).__name__ == "TMonitor"


def _children() -> Iterator[int]:
    for task in _PROC.glob("task/*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            yield from map(int, task.read_text().split())


def _files() -> Iterator[tuple[int, str]]:
    for name in os.listdir(_PROC / "fd"):  # noqa: PTH208 - several times as fast as pathlib
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed
            yield int(name), os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")  # noqa: PTH115


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "ended, not waited for"
    except OSError:
        return "ended"


def _wait_for(resources: Resources, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    for thread in resources.threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for pid in resources.pids:
        has_ended(pid, max(0.0, deadline - time.monotonic()))


def has_ended(pid: int, wait_s: float) -> bool:
    """Wait until a process has ended, and return whether it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], wait_s)[0])
    finally:
        os.close(descriptor)
