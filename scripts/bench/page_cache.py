"""Bring files into the page cache before a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def bring_into_memory(place: Path) -> None:
    """Read a file, or all files in a folder."""
    for path in [place, *place.rglob("*")]:
        if path.is_file():
            with path.open("rb") as file:
                while file.read(2**24):
                    pass
