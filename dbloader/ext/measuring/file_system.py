"""Find out on which kind of file system a path is."""

from __future__ import annotations

import os
import re
from pathlib import Path


def file_system(path: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> str | None:
    """Return the type of the file system that contains a path, such as "ext4" or "nfs4"; None if unknown.

    Read ``proc/self/mountinfo``, which proc_pid_mountinfo(5) describes. The last mount on a folder hides the others.
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
