"""Limits of the machine for this process: CPUs by affinity and quota, memory by control group; and file systems.

Containers are control groups (cgroups). The files are those of the kernel's documentation, admin-guide/cgroup-v2
(``cpu.max``, ``memory.max``), and for version 1 scheduler/sched-bwc and admin-guide/cgroup-v1/memory. In all functions
``root`` is the folder in which ``proc`` and ``sys`` lie.
"""

from __future__ import annotations

import os
import re
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
        if len(numbers) == 2 and min(numbers) > 0:  # -1 means that there is no quota
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


def file_system(path: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> str | None:
    """Return the type of the file system that a file is on, such as "ext4" or "nfs4"; None if unknown.

    The lines of ``proc/self/mountinfo`` are described in proc_pid_mountinfo(5). Of two mounts on one folder, the later
    one is on top.
    """
    resolved = Path(path).resolve()
    deepest, kind = -1, None
    try:
        text = os.fsdecode((Path(root) / "proc/self/mountinfo").read_bytes())
    except OSError:
        return None  # not Linux
    for line in text.splitlines():
        mount, _, source = line.partition(" - ")
        folder = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount.split(" ")[4]))
        if resolved.is_relative_to(folder) and len(folder.parts) >= deepest:
            deepest, kind = len(folder.parts), source.split(" ")[0]
    return kind


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
