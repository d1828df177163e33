"""Places that name several files by a range of numbers: ``shard-{000..127}.tar``."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


def expand_range(place: str | os.PathLike[str]) -> list[Path]:
    """Return the files that a path with one range names, in order; the path alone if it has none, or exists."""
    text = os.fspath(place)
    found = _RANGE.search(text)
    if found is None or os.path.exists(text):  # noqa: PTH110 - the path may be any str
        return [Path(text)]
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    return [Path(_RANGE.sub(str(number).zfill(len(first)), text, count=1)) for number in numbers]
