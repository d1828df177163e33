"""What an iteration over a source leaves out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dbloader.sources.base import Entries

if TYPE_CHECKING:
    from dbloader.sources.base import Source, Tally


def tally_of(source: Source) -> Tally:
    """Return the tally of one iteration."""
    entries = Entries(source)
    deque(entries, 0)
    return entries.tally


def warnings_of(source: Source) -> tuple[str, ...]:
    """Return the warnings of a source, and then of one iteration."""
    return (*source.warnings, *tally_of(source).warnings)
