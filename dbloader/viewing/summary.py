"""Rows, counts and histograms of a selection, as values of JSON."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.errors import DamagedStoreError, OptionError
from dbloader.records.columns import NO_LABEL
from dbloader.viewing.columns import blocks
from dbloader.viewing.query import SIZES

if TYPE_CHECKING:
    from dbloader.viewing.columns import Array, Columns
    from dbloader.viewing.selection import Selections

_MOST_ROWS = 500  # of one answer
_BINS = 40
_SAMPLED = 100_000  # values that decide the edges of a histogram. All values are counted
_WIDE = 20  # edges are logarithmic if the values differ by more than this factor


def select(selections: Selections, text: str) -> dict[str, Any]:
    """Return ``count``, the number of matching records, and ``of``, the number of all records."""
    return {"count": len(selections.select(text)), "of": len(selections.store)}


def rows(selections: Selections, text: str, start: int, count: int) -> dict[str, Any]:
    """Return rows of a selection: index, name, label, width, height and bytes. A missing value is None.

    Raises:
        OptionError: ``count`` is more than 500, or the query is wrong.
    """
    if not (start >= 0 and 0 <= count <= _MOST_ROWS):
        raise OptionError(f"start must be 0 or more and count from 0 to {_MOST_ROWS}, got {start} and {count}")
    indices = np.asarray(selections.select(text)[start : start + count], np.int64)
    columns = selections.columns
    values = (columns.some(column, indices) for column in ("label", "width", "height", "nbytes"))
    rows = [[index, columns.name(index) or None, *rest] for index, *rest in zip(indices.tolist(), *values, strict=True)]
    return {"start": start, "rows": rows}


def count(selections: Selections, text: str) -> dict[str, Any]:
    """Return the counts of a selection by label, size, format and event.

    ``labels`` is a list of pairs: a label, or None for no label, and the number of its records. It is empty for a store
    of more than 65,536 labels. ``histograms`` has the ``edges`` and ``counts`` of each size. A bin contains its lower
    edge and not its upper edge; the last bin contains both. The first edge is the least value, the last edge the
    greatest. Records of unknown size are left out. ``formats`` is None if records would have to be read. ``problem`` is
    None, or the reason why the events cannot be read.
    """
    return selections.counts.get(text.strip(), lambda: _count(selections, selections.select(text)))


def _count(selections: Selections, indices: Any) -> dict[str, Any]:
    manifest = selections.store.manifest
    everything = isinstance(indices, range)
    formats = manifest.formats if everything else None
    if len(manifest.formats) == 1 and sum(manifest.formats.values()) == manifest.length:
        formats = dict.fromkeys(manifest.formats, len(indices))
    try:
        events, problem = selections.events(), None
    except DamagedStoreError as error:  # the other counts do not need the report
        events, problem = {}, str(error)
    return {
        "count": len(indices),
        "labels": [] if manifest.label_counts is None else _count_labels(selections, indices),
        "histograms": {what: _histogram(selections.columns, what, indices) for what in SIZES},
        "formats": formats,
        "events": {event: len(some) if everything else _common(some, indices) for event, some in events.items()},
        "problem": problem,
    }


def _count_labels(selections: Selections, indices: Any) -> list[list[int | None]]:
    manifest = selections.store.manifest
    if isinstance(indices, range) and manifest.label_counts is not None:
        without = manifest.length - manifest.labelled
        return [[None, without]] * (without > 0) + [[*pair] for pair in manifest.label_counts.items()]
    labels = selections.columns.get("label")
    counts: Counter[int] = Counter()
    for part in blocks(len(indices)):
        here = labels[part] if isinstance(indices, range) else labels[indices[part]]
        counts.update(dict(zip(*(found.tolist() for found in np.unique(here, return_counts=True)), strict=True)))
    return [[None if label == NO_LABEL else label, number] for label, number in sorted(counts.items())]


def _common(some: Array, indices: Array) -> int:
    """Return how many of some indices are in a selection. Both are ascending."""
    at = np.minimum(indices.searchsorted(some.astype(indices.dtype)), len(indices) - 1)
    return int(np.count_nonzero(indices[at] == some)) if len(indices) else 0


def _histogram(columns: Columns, what: str, indices: Any) -> dict[str, list[Any]]:
    sampled = columns.values(what, np.asarray(indices[:: max(1, len(indices) // _SAMPLED)], np.int64))
    inner = _edges(sampled[sampled > 0], whole=what != "aspect", logarithmic=what == "bytes")
    below, unknown, least, greatest = np.zeros(len(inner), np.int64), 0, math.inf, 0
    for part in blocks(len(indices)):
        # Sorting takes 10 ms for a million values. Searching the bin of each value takes 70 ms.
        here = np.sort(columns.values(what, part if isinstance(indices, range) else indices[part]))
        below += here.searchsorted(inner)
        unknown += (none := int(here.searchsorted(0, "right")))
        if none < len(here):
            least, greatest = min(least, here[none].item()), max(greatest, here[-1].item())
    counts = np.diff([unknown, *below, len(indices)])
    filled = np.flatnonzero(counts).tolist()
    if not filled:
        return {"edges": [], "counts": []}
    first, last = filled[0], filled[-1]
    return {"edges": [least, *inner[first:last], greatest], "counts": counts[first : last + 1].tolist()}


def _edges(values: Array, *, whole: bool, logarithmic: bool) -> list[float]:
    """Return up to 41 round numbers, ascending. They enclose all values but the lowest and the highest 0.5 %."""
    if not len(values):
        return []
    if whole and values.max() - values.min() < _BINS:
        return [*range(int(values.min()), int(values.max()) + 2)]
    first, last = np.percentile(values, (0.5, 99.5)).tolist()
    if logarithmic or last > _WIDE * first:
        a_decade = min(20, _BINS // max(1, math.ceil(math.log10(last / first))))
        numbers = range(math.floor(math.log10(first) * a_decade), math.floor(math.log10(last) * a_decade) + 2)
        edges = [float(f"{10 ** (number / a_decade):.1e}") for number in numbers]  # rounded to two digits
    else:
        unit = 10.0 ** math.floor(math.log10(max(last - first, last / 2) / _BINS))
        step = next(unit * digit for digit in (1, 2, 5, 10, 20) if last - first <= unit * digit * (_BINS - 1))
        numbers = range(math.floor(first / step), math.floor(last / step) + 2)
        edges = [round(step * number, 12) for number in numbers]
    return [*dict.fromkeys(map(round, edges))] if whole else edges
