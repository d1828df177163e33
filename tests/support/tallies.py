"""One iteration over a source: its entries, its problems, and the files that it skips."""

from __future__ import annotations

from collections import deque
from typing import Any

from dbloader.sources.base import Entries, Entry, Problem, Source, Tally


def entries(source: Source) -> list[Entry]:
    return [item for item in source.entries() if isinstance(item, Entry)]


def only_entries(source: Source) -> list[Entry]:
    """Return the entries of a source without problems."""
    assert not problems(source)
    return entries(source)


def problems(source: Source) -> list[Problem]:
    return [item for item in source.entries() if isinstance(item, Problem)]


def contents(source: Source) -> list[Any]:
    """Return the bytes, or the problem, of each entry."""
    return list(source.read(entries(source), lambda _: None))


def tally_of(source: Source) -> Tally:
    """Return the tally of one iteration."""
    iteration = Entries(source.entries())
    deque(iteration, 0)
    return iteration.tally


def warnings_of(source: Source) -> tuple[str, ...]:
    """Return the warnings of a source, and then of one iteration."""
    return (*source.warnings, *tally_of(source).warnings)
