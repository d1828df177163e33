"""Compute rows, counts and histograms of the records that match a query."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import listed, short_repr
from dbloader.errors import DamagedStoreError, OptionError
from dbloader.ext.queries.columns import parts
from dbloader.ext.queries.parse import SIZES
from dbloader.ext.viewing.joined import PREDICTION
from dbloader.ext.viewing.marks import MARK_PREFIX
from dbloader.ext.viewing.sorting import sort_records

if TYPE_CHECKING:
    from collections.abc import Collection

    from dbloader.ext.queries.columns import Array, Columns
    from dbloader.ext.viewing.selection import Selections

_MOST_ROWS = 500  # largest number of rows in one answer
_MOST_VALUES = 200  # largest number of values of a field in one answer
_MOST_PAIRS = 600  # largest number of pairs of label and prediction in one answer
_MOST_NAMES = 2**16  # largest number of different texts in a column that is compared with the labels
_WORST = 24  # largest number of labels in a table of labels and predictions
_SHARES = np.array([0, 5, 25, 50, 75, 95, 100])
_BINS = 40
_SAMPLED = 100_000  # the edges of a histogram are computed from about this number of values
_FINEST = 1e-9  # least range of a histogram, as a fraction of its greatest value: its edges have 12 digits
_WIDE = 20  # edges are logarithmic if the values differ by more than this factor


def rows(selections: Selections, query: str, start: int, count: int, by: str = "") -> dict[str, Any]:
    """Return ``count`` rows of the sorted records that match a query, beginning with row ``start``.

    A row is: index, name, label, width, height, bytes, a dict of fields, and whether the image was damaged when it was
    converted. A missing value is None. The fields are the prediction, the column in ``by``, and the marks.
    ``sort_records`` describes ``by``.

    Raises:
        OptionError: ``count`` is more than 500, or the query is wrong.
    """
    if not (start >= 0 and 0 <= count <= _MOST_ROWS):
        raise OptionError(f"start must be 0 or more and count from 0 to {_MOST_ROWS}, got {start} and {count}")
    indices = np.asarray(sort_records(selections, query, by)[start : start + count], np.int64)
    columns = selections.columns
    values = (columns.values_of(column, indices) for column in ("label", "width", "height", "nbytes"))
    fields = [name for name in dict.fromkeys((by.removeprefix("-"), PREDICTION)) if name in columns.kinds]
    fields += [name for name in columns.joined if name.startswith(MARK_PREFIX) and name not in fields]
    more = [columns.describe(index, fields) for index in indices.tolist()]
    is_damaged = np.isin(indices, events_of(selections)[0].get("damaged", [])).tolist()
    rows = [
        [index, columns.name(index) or None, *rest]
        for index, *rest in zip(indices.tolist(), *values, more, is_damaged, strict=True)
    ]
    return {"start": start, "rows": rows}


def events_of(selections: Selections) -> tuple[dict[str, Array], str | None]:
    """Return ({event such as "damaged": indices}, None), or ({}, the reason) if the report cannot be read."""
    try:
        return selections.columns.events(), None
    except DamagedStoreError as error:  # the rest of the page does not need the report
        return {}, str(error)


def count(selections: Selections, query: str, among: str | None = None) -> dict[str, Any]:
    """Count the matching records of a query by label, by format and by event.

    ``labels`` is a list of pairs: a label (None for no label), and the number of its records. The list is empty for a
    store with more than 65,536 labels. ``formats`` has the number of records of each format. ``formats`` is None if
    the store has several formats and only some records match. ``problem`` is the reason why the events cannot be read,
    or None.

    If the query ``among`` is given, ``labels`` counts the records that match ``among``, not ``query``.
    """
    among = query if among is None else among
    key = selections.key(query), selections.key(among)
    return selections.facts.get(key, lambda: _count(selections, query, among))


def _count(selections: Selections, query: str, among: str) -> dict[str, Any]:
    indices = selections.select(query)
    manifest = selections.store.manifest
    everything = isinstance(indices, range)
    formats = manifest.formats if everything else None
    if len(manifest.formats) == 1 and sum(manifest.formats.values()) == manifest.length:
        formats = dict.fromkeys(manifest.formats, len(indices))
    events, problem = events_of(selections)
    return {
        "count": len(indices),
        "labels": _count_labels(selections, selections.select(among)),
        "formats": formats,
        "events": {event: len(some) if everything else _common(some, indices) for event, some in events.items()},
        "problem": problem,
    }


def _count_labels(selections: Selections, indices: Any) -> list[list[int | None]]:
    counts = selections.store.manifest.label_counts
    if counts is None:
        return []
    if not isinstance(indices, range):
        counts = dict(sorted(_count_values(selections.columns, "label", indices).items()))
    without = len(indices) - sum(counts.values())
    pairs: list[list[int | None]] = [[label, number] for label, number in counts.items()]
    return [[None, without], *pairs] if without else pairs


def _common(some: Array, indices: Array) -> int:
    """Return how many of ``some`` indices are in ``indices``. Both are ascending."""
    at = np.minimum(indices.searchsorted(some.astype(indices.dtype)), len(indices) - 1)
    return int(np.count_nonzero(indices[at] == some)) if len(indices) else 0


def histogram(selections: Selections, query: str, column: str) -> dict[str, Any]:
    """Return the histogram of a column for the records that match a query.

    ``edges`` and ``counts`` describe the bins. A bin contains its lower edge but not its upper edge; the last bin
    contains both. Records without a finite value are left out.

    The bins extend from the least to the greatest value of all records, so they are the same for each query. ``all``
    has the counts of all records, or None if all records match.

    ``ends`` are the least and the greatest value of the matching records; None if no record has a value. ``scale`` is
    "log" or "linear", or "" if each integer has its own bin.
    """
    indices, columns = selections.select(query), selections.columns
    found = selections.facts.get(column, lambda: _histogram(columns, column, range(len(selections.store))))
    if isinstance(indices, range):
        return {**found, "all": None}
    counts, ends = _count_bins(columns, column, indices, found["edges"][1:-1])
    return {**found, "counts": counts[: len(found["counts"])], "ends": ends, "all": found["counts"]}


def field(selections: Selections, query: str, name: str) -> dict[str, Any]:
    """Count the values of a column in the records that match a query.

    For numbers, return a `histogram`. For bools and texts, ``values`` are the 200 most frequent values, each with its
    number of records. ``different`` is the number of different values in the store. ``of`` is the number of matching
    records.

    Raises:
        OptionError: The store has no such column.
    """
    if name in SIZES or _checked(selections, name, ("bool", "float", "int", "text")) in ("float", "int"):
        return histogram(selections, query, name)
    indices = selections.select(query)
    values, different = selections.columns.common(name, indices, _MOST_VALUES)
    return {"values": values, "different": different, "of": len(indices)}


def _count_values(columns: Columns, column: str, indices: Any) -> Counter[int]:
    """Count the records in ``indices`` by their value in a column. ``Columns.known`` describes the values."""
    counts: Counter[int] = Counter()
    for _, here in parts(indices):
        values, known = columns.known(column, here)
        found, numbers = np.unique(values[known], return_counts=True)
        counts.update(dict(zip(found.tolist(), numbers.tolist(), strict=True)))
    return counts


def compare_labels(selections: Selections, query: str, name: str) -> dict[str, Any]:
    """Count the matching records of a query for each pair of a label and a column's value, such as a prediction.

    A value is equal to a label if the value is the label or the name of the label's class.

    - ``pairs``: at most 600 lists [label, differing value, number of records], the most frequent pair first;
    - ``different``: the number of all such pairs;
    - ``worst``: up to 24 labels and values with the most differing records, the most first;
    - ``cells``: lists like in ``pairs``, for all labels and values in ``worst``, including equal pairs;
    - ``equal``: the number of records whose value is equal to their label;
    - ``total``: the number of records with a label and a value.

    Raises:
        OptionError: The store has no such column of integers or texts, or the column has over 65,536 different texts.
    """
    columns, indices, counts = selections.columns, selections.select(query), Counter[tuple[int, int]]()
    is_text = _checked(selections, name, ("int", "text")) == "text"
    if is_text and (different := columns.common(name, range(0), 0)[1]) > _MOST_NAMES:
        raise OptionError(f"{name} has {different:,} different values; at most {_MOST_NAMES:,} can be names of classes")
    texts = columns.texts(name)[1] if is_text else None
    for _, here in parts(indices):
        (labels, has_label), (values, has_value) = columns.known("label", here), columns.known(name, here)
        both = has_label & has_value
        counts.update(zip(labels[both].tolist(), values[both].tolist(), strict=True))
    label_of: dict[Any, int] = {name: label for label, name in enumerate(selections.store.manifest.classes)}
    found = counts.most_common()
    rows = [(label, value if texts is None else texts[value], number) for (label, value), number in found]
    same = [label_of.get(value, value) for _, value, _ in rows]  # a name of a class becomes its label
    differing = [row for row, value in zip(rows, same, strict=True) if value != row[0]]
    scores = Counter[Any](dict.fromkeys((label for label, _, _ in rows), 0))
    for label, value, number in differing:
        scores[label] += number
        scores[label_of.get(value, value)] += number
    worst = [name for name, _ in scores.most_common(_WORST)]
    among = {*worst}
    return {
        "pairs": differing[:_MOST_PAIRS],
        "different": len(differing),
        "worst": worst,
        "cells": [row for row, value in zip(rows, same, strict=True) if {row[0], value} <= among],
        "equal": counts.total() - sum(number for _, _, number in differing),
        "total": counts.total(),
    }


def quantiles(selections: Selections) -> dict[str, list[float]]:
    """Return seven values of the width, height, aspect and bytes of all images, ascending.

    The values are the least, the 5th, 25th, 50th, 75th and 95th percentiles, and the greatest. The list is empty if no
    record has a value.
    """

    def read() -> dict[str, list[float]]:
        found = {}
        for column in SIZES:
            values = np.sort(_finite(selections.columns, column, slice(None)))
            found[column] = values[(len(values) - 1) * _SHARES // 100].tolist() if len(values) else []
        return found

    return selections.facts.get("quantiles", read)


def _checked(selections: Selections, name: str, kinds: Collection[str]) -> str:
    """Return the kind of a column. Raise OptionError if the column does not exist, or its kind is not in ``kinds``."""
    known = {name: kind for name, kind in selections.columns.kinds.items() if kind in kinds}
    if name not in known:
        raise OptionError(f"a column must be one of {listed(known) or 'none'}, got {short_repr(name, 50)}")
    return known[name]


def _histogram(columns: Columns, column: str, indices: Any) -> dict[str, Any]:
    sampled = _finite(columns, column, np.asarray(indices[:: max(1, len(indices) // _SAMPLED)], np.int64))
    inner, scale = _edges(sampled, prefers_log=column == "bytes")
    counts, ends = _count_bins(columns, column, indices, inner)
    filled = np.flatnonzero(counts).tolist()
    if not filled:
        return {"edges": [], "counts": [], "ends": None, "scale": ""}
    first, last = filled[0], filled[-1]
    edges = [ends[0], *inner[first:last], ends[1]]
    return {"edges": edges, "counts": counts[first : last + 1], "ends": ends, "scale": scale}


def _count_bins(columns: Columns, column: str, indices: Any, inner: list[float]) -> tuple[list[int], Any]:
    """Count the values below, between and above the inner edges. Return (counts, [least, greatest value] or None)."""
    below, known, ends = np.zeros(len(inner), np.int64), 0, None
    for _, here in parts(indices):
        # Sorting takes 10 ms for a million values. Searching the bin of each value takes 70 ms.
        values = np.sort(_finite(columns, column, here))
        below += values.searchsorted(inner)
        known += len(values)
        if len(values):
            least, greatest = ends or (math.inf, -math.inf)
            ends = [min(least, values[0].item()), max(greatest, values[-1].item())]
    return np.diff([0, *below, known]).tolist(), ends


def _finite(columns: Columns, column: str, indices: Any) -> Array:
    values, known = columns.known(column, indices)
    return values[known & np.isfinite(values)]


def _edges(values: Array, *, prefers_log: bool) -> tuple[list[float], str]:
    """Return (up to 41 round numbers that are the ascending edges of bins, their scale).

    The edges enclose at least the middle 99 % of the values.
    """
    if not len(values):
        return [], ""
    whole = values.dtype.kind in "iu"
    if whole and int(values.max()) - int(values.min()) < _BINS:
        return [*range(int(values.min()), int(values.max()) + 2)], ""
    first, last = np.percentile(values, (0.5, 99.5)).tolist()
    if first > 0 and (prefers_log or last > _WIDE * first):
        scale = "log"
        decades = max(1, math.ceil(math.log10(last) - math.log10(first)))
        a_decade = min(20, _BINS // decades or _BINS / decades)
        numbers = range(math.floor(math.log10(first) * a_decade), math.floor(math.log10(last) * a_decade) + 2)
        edges = [float(f"{10 ** (number / a_decade):.1e}") for number in numbers]  # rounded to two digits
    else:
        scale = "linear"
        span = max(last - first, max(abs(first), abs(last)) * _FINEST) or 1.0
        unit = 10.0 ** math.floor(math.log10(span / _BINS))
        step = next(unit * digit for digit in (1, 2, 5, 10, 20) if last - first <= unit * digit * (_BINS - 1))
        numbers = range(math.floor(first / step), math.floor(last / step) + 2)
        edges = [float(f"{step * number:.12g}") for number in numbers]
    return [*dict.fromkeys(map(round, edges) if whole else edges)], scale
