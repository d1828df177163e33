"""Read annotations as listings of the images in a folder."""

from __future__ import annotations

from pathlib import Path

from dbloader.sources.base import Entry, Problem, Source
from dbloader.sources.open import open_source


def source(listing: Path, root: Path) -> Source:
    return open_source(root, listing)


def entries(listing: Path, root: Path) -> list[Entry]:
    return [item for item in source(listing, root).entries() if isinstance(item, Entry)]


def problems(listing: Path, root: Path) -> list[Problem]:
    return [item for item in source(listing, root).entries() if isinstance(item, Problem)]
