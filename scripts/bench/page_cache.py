"""Bring files into the page cache before a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
