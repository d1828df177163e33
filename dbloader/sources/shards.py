"""Places that name several files: ``shard-{000..127}.tar``, ``*.tar``, or a folder of such files."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.errors import SourceError
from dbloader.sources.base import readable
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Collection

_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")
_MOST = 1_000_000


def find_shards(place: str | os.PathLike[str], extensions: tuple[str, ...]) -> list[Path]:
    """Return the files with one of some extensions that a place names, in order; an empty list if it is no such place.

    It is one file, ``shards/{000..127}.tar``, ``shards/*.tar``, or a folder that holds such files, no images and no
    folders.
    """
    text = os.fspath(place)
    if text.lower().endswith(extensions) and not os.path.isdir(text):  # noqa: PTH112 - the path may be any str
        return expand_range(text)
    try:
        with os.scandir(text) as entries:
            inside = [entry for entry in entries if not entry.name.startswith(".")]
        names = sorted(entry.name for entry in inside if entry.name.lower().endswith(extensions) and entry.is_file())
        is_folder = any(entry.is_dir() or entry.name.lower().endswith(EXTENSIONS) for entry in inside)
        return [] if is_folder else [Path(text, name) for name in names]
    except OSError:
        return []  # scan says what is wrong with it


def names_beside(place: str | os.PathLike[str], paths: Collection[Path], known: Collection[str]) -> tuple[str, ...]:
    """Return the names in a folder, sorted, but for the files that are read and ``known`` ones; () of a file."""
    try:
        names = os.listdir(place)  # noqa: PTH208 - the path may be any str
    except OSError:
        return ()
    taken = {*known, *(path.name for path in paths), *(path.parent.name for path in paths)}
    return tuple(sorted(readable(name) for name in names if name not in taken))


def expand_range(place: str | os.PathLike[str]) -> list[Path]:
    """Return the files that a path with one range or with ``*`` names, in order.

    If it has none, or exists, that is the path alone.
    """
    text = os.fspath(place)
    found = _RANGE.search(text)
    if os.path.exists(text) or (found is None and not glob.has_magic(text)):  # noqa: PTH110 - the path may be any str
        return [Path(text)]
    if found is None:
        return [Path(name) for name in sorted(glob.glob(text))] or [Path(text)]  # noqa: PTH207 - absolute or not
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= _MOST:
        raise SourceError(f"{readable(place)}: its range names {len(numbers):,} files: give one of 1 to {_MOST:,}")
    return [Path(_RANGE.sub(str(number).zfill(len(first)), text, count=1)) for number in numbers]
