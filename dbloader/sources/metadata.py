"""Metadata of a folder of images, as Hugging Face's imagefolder has it: ``metadata.csv`` or ``metadata.jsonl``.

The column ``file_name`` names a file below the folder. ``dbloader export`` writes two more columns of its own, ``name``
and ``resized_from``, and beside them the file ``classes.json``: the names of the labels, in their order.
"""

from __future__ import annotations

import os
import posixpath
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dbloader.errors import SourceError
from dbloader.sources.base import readable
from dbloader.sources.folder import METADATA_FILES, SUFFIXES, describe_unused
from dbloader.sources.rows import read_header, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_NAME = "file_name"
RECORD_COLUMNS = ("name", "resized_from")
SUFFIX = "_file_name"
"""End of the name of a column that names further files of an image, such as masks."""


def find_metadata(folder: str | os.PathLike[str]) -> Path | None:
    """Return the metadata file in a folder that has the column ``file_name``; None without one."""
    found = [path for name in METADATA_FILES if (path := Path(folder, name)).is_file() and FILE_NAME in _columns(path)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise SourceError(f"{readable(folder)}: {names} both name the images: move one away")
    return found[0] if found else None


def _columns(path: Path) -> tuple[str, ...]:
    if path.suffix != ".jsonl":
        return read_header(path)
    return tuple(next((row[1] for row in read_rows(path)), ()))


class Listed:
    """The files that the rows of a metadata file name."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, *paths: bytes | None) -> None:
        """Add the normalized paths of a row."""
        self._hashes.extend(hash(path) for path in paths if path)

    def warnings(self, root: Path) -> Iterator[str]:
        """Yield what is in the folder and not used: images that no row names, further metadata files."""
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
        missing = len(np.setdiff1d(np.frombuffer(found, np.int64), np.frombuffer(self._hashes, np.int64)))
        if missing:
            images = f"{missing:,} image{' is' if missing == 1 else 's are'}"
            yield f"{images} in the folder, but in no row of the metadata: left out"
        if unused:
            yield describe_unused(unused)


def top_folder(path: bytes) -> str:
    """Return the first folder of a path; "" without one."""
    return readable(path.rpartition(b"/")[0].partition(b"/")[0])
