"""The metadata file in a folder of images, and the images that it does not name."""

from __future__ import annotations

import os
import posixpath
from array import array
from typing import TYPE_CHECKING

import numpy as np

from dbloader.errors import SourceError
from dbloader.ext.sources.checked_rows import FILE_NAME
from dbloader.ext.sources.listing_rows import read_header, read_rows
from dbloader.sources.base import readable
from dbloader.sources.folder import METADATA_FILES, SUFFIXES, describe_unused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def find_metadata(folder: Path) -> Path | None:
    """Return the metadata file in a folder that has the column ``file_name``; None without one."""
    found = [path for name in METADATA_FILES if (path := folder / name).is_file() and FILE_NAME in _columns(path)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise SourceError(f"{readable(folder)}: {names} both name the images: move one away")
    return found[0] if found else None


def _columns(path: Path) -> tuple[str, ...]:
    return read_header(path) if path.suffix != ".jsonl" else tuple(next((row[1] for row in read_rows(path)), ()))


def unused_warnings(root: Path, listed: array[int]) -> Iterator[str]:
    """Yield warnings about images that no row of the metadata names, and about unused metadata files."""
    found, unused, top = array("q"), "", os.fsencode(root)
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        below = posixpath.relpath(folder, top) if folder != top else b""
        for name in files:
            path = posixpath.join(below, name)
            if name.lower().endswith(SUFFIXES) and not name.startswith(b"."):
                found.append(hash(path))
            elif below and readable(name) in METADATA_FILES:
                unused = unused or readable(path)
    missing = len(np.setdiff1d(np.frombuffer(found, np.int64), np.frombuffer(listed, np.int64)))
    if missing:
        images = f"{missing:,} image{' is' if missing == 1 else 's are'}"
        yield f"{images} in the folder, but in no row of the metadata: left out"
    if unused:
        yield describe_unused(unused)
