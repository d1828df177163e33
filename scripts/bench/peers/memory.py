"""Measure the memory of this process and its children; each shared page counts once."""

from __future__ import annotations

import os
import re
from pathlib import Path


def memory_of_tree() -> dict[str, float]:
    """Return sums of proportional set sizes (/proc/PID/smaps_rollup), in MB.

    ``files_mb`` is the memory of files' pages, and ``private_mb`` is all other memory. ``worker_mb`` is the average of
    ``private_mb`` over the processes below this one; 0 if there are none.
    """
    own, *others = (_memory(pid) for pid in _tree(os.getpid()))
    return {
        "private_mb": sum(one["private"] for one in (own, *others)),
        "files_mb": sum(one["files"] for one in (own, *others)),
        "worker_mb": sum(one["private"] for one in others) / len(others) if others else 0.0,
    }


def _memory(pid: int) -> dict[str, float]:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        text = ""
    found = {name: int(kilobytes) * 1024 / 1e6 for name, kilobytes in re.findall(r"(\w+): +(\d+) kB", text)}
    return {"private": found.get("Pss_Anon", 0) + found.get("Pss_Shmem", 0), "files": found.get("Pss_File", 0)}


def _tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may have anything in it.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found
