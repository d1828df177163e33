"""Folders in which a machine makes a part, and which a killed process leaves behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "dbloader-part-"
_NEW_S = 60.0  # a folder is locked soon after it was made


@contextmanager
def scratch_folder(scratch: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield a new folder in ``scratch`` (None: the system's, ``TMPDIR``), locked, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=scratch) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def left_folders(scratch: str | os.PathLike[str] | None, *, remove: bool = False) -> list[tuple[Path, int]]:
    """Return the folders that killed processes left in ``scratch``, with their bytes; remove them with ``remove``."""
    found = []
    for path in sorted(Path(scratch or tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(OSError):  # locked, removed meanwhile, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime < _NEW_S:
                    continue
                found.append((path, sum(file.stat().st_size for file in path.rglob("*") if file.is_file())))
                if remove:
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)
    return found
