"""Places that name several files: by a range of numbers, ``shard-{000..127}.tar``, or a folder of such files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dbloader.errors import SourceError
from dbloader.sources.base import readable
from dbloader.sources.folder import EXTENSIONS

_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")
_MOST = 1_000_000


def find_shards(place: str | os.PathLike[str], extension: str) -> list[Path]:
    """Return the files with an extension that a place names, in order; an empty list if it is no such place.

    It is one file, ``shards/{000..127}.tar``, or a folder that holds such files, no images and no folders.
    """
    text = os.fspath(place)
    if text.lower().endswith(extension) and not os.path.isdir(text):  # noqa: PTH112 - the path may be any str
        return expand_range(text)
    try:
        with os.scandir(text) as entries:
            inside = list(entries)
        names = sorted(entry.name for entry in inside if entry.name.lower().endswith(extension) and entry.is_file())
        is_folder = any(entry.is_dir() or entry.name.lower().endswith(EXTENSIONS) for entry in inside)
        return [] if is_folder else [Path(text, name) for name in names]
    except OSError:
        return []  # scan says what is wrong with it


def expand_range(place: str | os.PathLike[str]) -> list[Path]:
    """Return the files that a path with one range names, in order; the path alone if it has none, or exists."""
    text = os.fspath(place)
    found = _RANGE.search(text)
    if found is None or os.path.exists(text):  # noqa: PTH110 - the path may be any str
        return [Path(text)]
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= _MOST:
        raise SourceError(f"{readable(place)}: its range names {len(numbers):,} files: give one of 1 to {_MOST:,}")
    return [Path(_RANGE.sub(str(number).zfill(len(first)), text, count=1)) for number in numbers]
