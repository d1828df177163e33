"""Find this machine's CPUs, free memory and training processes, and block SIGINT.

Control groups (cgroups) limit the CPUs and memory of a container. The documentation of Linux describes version 2 in
admin-guide/cgroup-v2, and version 1 in scheduler/sched-bwc and admin-guide/cgroup-v1/memory. In all functions, ``root``
is the folder that contains ``proc`` and ``sys``.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Values of ``OSError.errno`` for a file that cannot grow: the disk or quota is full, or the file is too large."""


def cpu_count(root: str | os.PathLike[str] = "/") -> int:
    """Return the number of CPUs that this process may use; a quota of 2.5 CPUs counts as 3."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, _cpu_quota(Path(root)) or cpus)


def local_ranks() -> int:
    """Return how many training processes torchrun has started on this machine; 1 without torchrun."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or "1"
    if not re.fullmatch("[0-9]{1,9}", text):
        raise OptionError(f"the environment variable LOCAL_WORLD_SIZE must be a number, got {short_repr(text, 50)}")
    return max(1, int(text))


@cache  # cached, because loaders need the quota for every batch
def _cpu_quota(root: Path) -> int | None:
    """Return how many CPUs the quota of the control group allows, rounded up; None without a quota."""
    quotas = []
    for group in _groups(root, "cpu"):
        numbers = _numbers(group / "cpu.max")
        numbers = numbers or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(numbers) == 2 and min(numbers) > 0:  # -1 means no quota
            quota, period = numbers
            quotas.append(-(-quota // period))
    return min(quotas, default=None)


def available_memory(root: str | os.PathLike[str] = "/") -> int | None:
    """Return the machine's available memory in bytes, at most the container's limit. None means unknown."""
    try:
        lines = (Path(root) / "proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return min([available, *_memory_limits(Path(root))])


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield the control groups' memory limits in bytes. In cgroup version 1, a huge number means no limit."""
    for group in _groups(root, "memory"):
        yield from _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of all parent groups. The lowest limit applies.

    Some folders may be missing: in a container, ``sys/fs/cgroup`` may be the folder of the container's own group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        yield from (mount / folder for folder in (path, *path.parents))


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; an empty list if the file is missing or contains "max"."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread during a ``with`` block. In processes that start in the block, SIGINT stays blocked.

    Otherwise Ctrl-C would interrupt new processes during their imports, and each would print a traceback.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # before the next line, because starting the tracker unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The system may deliver SIGINT to another thread, such as a thread of OpenBLAS. Python then calls the handler in
    # the main thread, although SIGINT is blocked there. A KeyboardInterrupt here could leave a new process without its
    # data, and that process would print a traceback. So a temporary handler only notes the signal until the block ends.
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    deferred = callable(handler) and threading.current_thread() is threading.main_thread()
    if deferred:
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        if deferred:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if interrupts:
            signal.raise_signal(signal.SIGINT)
