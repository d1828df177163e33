"""Bring files into the page cache, or take them out of it, before a measurement."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def files_in(place: Path) -> Iterator[Path]:
    """Yield the file, or all files in the folder."""
    for path in [place] if place.is_file() else place.rglob("*"):
        if path.is_file():
            yield path


def bring_into_memory(place: Path) -> None:
    """Read a file or all files in a folder."""
    for path in files_in(place):
        with path.open("rb") as file:
            while file.read(2**24):
                pass


def empty_cache(place: Path) -> None:
    """Remove files from the page cache (needs root). The host of a virtual machine may still have them in memory."""
    for path in files_in(place):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
