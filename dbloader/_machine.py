"""Limits of the machine for this process: CPUs by affinity and quota, memory by control group.

Containers are control groups (cgroups). The files are those of the kernel's documentation, admin-guide/cgroup-v2
(``cpu.max``, ``memory.max``), and for version 1 scheduler/sched-bwc and admin-guide/cgroup-v1/memory. In all functions
``root`` is the folder in which ``proc`` and ``sys`` lie.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def cpu_count(root: str | os.PathLike[str] = "/") -> int:
    """Return the number of CPUs that this process may use; a quota of 2.5 CPUs counts as 3."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, _cpu_quota(Path(root)) or cpus)


@cache  # asked for each batch that is decoded for a device
def _cpu_quota(root: Path) -> int | None:
    """Return how many CPUs' time the control group may use, rounded up; None if there is no quota."""
    quotas = []
    for group in _groups(root, "cpu"):
        numbers = _numbers(group / "cpu.max")
        numbers = numbers or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(numbers) == 2 and min(numbers) > 0:  # a quota of -1 is none
            quota, period = numbers
            quotas.append(-(-quota // period))
    return min(quotas, default=None)


def total_memory(root: str | os.PathLike[str] = "/") -> int:
    """Return the bytes of memory that the machine has, or that this process's container may use if that is less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_memory_limits(Path(root))])


def available_memory(root: str | os.PathLike[str] = "/") -> int | None:
    """Return the bytes that programs and the page cache can still get in this container; None if unknown."""
    try:
        lines = (Path(root) / "proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return min([available, *_memory_limits(Path(root))])


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield the limit in bytes of each control group that has one; in version 1, a huge number is no limit."""
    for group in _groups(root, "memory"):
        yield from _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it, up to the root.

    A limit of any of them holds. A folder may be missing: a container may see only its own group, as the root.
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
    """Return the whole numbers in a file; none if it does not exist, or if one of them is "max"."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
