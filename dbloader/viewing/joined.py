"""Join a listing, such as a model's predictions, to the records of a store as further columns."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader._describe import short_repr
from dbloader.copying.name_listing import NameListing, RecordNames
from dbloader.errors import SourceError
from dbloader.records.columns import NO_LABEL
from dbloader.sources.base import readable
from dbloader.sources.listing import PATH_COLUMNS
from dbloader.sources.listing_rows import is_text
from dbloader.viewing.query import FIELD

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

PREDICTION, DIFFERS = "prediction", "differs"
_TAKEN = {"name", "index", "label", "class", "event", "width", "height", "aspect", "bytes", *PATH_COLUMNS}
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False}
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
_FLOAT = re.compile(
    r"[+-]?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|[0-9]+(?=e))(?:e[+-]?[0-9]+)?|nan|inf)", re.IGNORECASE
)
_KINDS = {frozenset({bool}): "bool", frozenset({int}): "int", frozenset({float}): "float", frozenset({str}): "text"}
_KINDS[frozenset({int, float})] = "float"
_BOOLS = ("false", "true")


class Joined(NamedTuple):
    """A column of a listing, with a value for each record of a store.

    Attributes:
        kind: ``"bool"``, ``"int"``, ``"float"`` or ``"text"``.
        values: Shape (records,). float64 for floats, NaN without a value; otherwise int64, NO_LABEL without a value.
            For bools and texts, positions in ``texts``.
        texts: The different texts, sorted; false and true for bools; () for numbers.
    """

    kind: str
    values: Array
    texts: Sequence[str] = ()

    def show(self, value: float) -> str | float:
        """Return a value as a text, or as a number of JSON."""
        return self.texts[int(value)] if self.texts else value if math.isfinite(value) else str(value)


def join_listing(
    store: Store, listing: str | os.PathLike[str], tell: Callable[[str], object] = lambda _: None
) -> dict[str, Joined]:
    """Return the columns of a listing, joined to the records by the column ``index`` or a name.

    A column is left out if a query cannot name it, or if its values are not scalars of one kind. A column
    ``prediction``, with names of classes or integer labels, adds the column ``differs``: whether the prediction is not
    the label.

    Args:
        store: The store.
        listing: A listing in one of the formats of ``convert``.
        tell: Called with sentences about the join.

    Raises:
        SourceError: The listing cannot be read, names no record, or has two rows for a record.
    """
    where, length, is_csv = readable(listing), len(store), is_text(Path(listing))
    given, order, columns, left = np.zeros(length, bool), list[int](), dict[str, list[Any]](), dict[str, None]()
    for number, row, found in NameListing(listing, RecordNames([store]), must_exist=False).rows():
        if given[found].any():
            raise SourceError(f"{where}, row {number}: an earlier row has the same record; keep one row for a record")
        given[found] = True
        for name, value in row.items() if found else ():
            values = columns.setdefault(name, [])
            values += [None] * (len(order) - len(values)) + [value] * len(found)
        order += found
    if not order:
        raise SourceError(f"{where}: no row names a record of {store.place}; its column name, path or index must do so")
    joined = {}
    for name, values in columns.items():
        column = None if name in _TAKEN or not re.fullmatch(FIELD, name) else _parse(values, is_csv=is_csv)
        if column is not None:
            joined[name] = _spread(*column, order, length)
        elif name not in ("name", "index", *PATH_COLUMNS):
            left[name] = None
    if PREDICTION in joined and joined[PREDICTION].kind in ("int", "text") and DIFFERS not in joined:
        joined[DIFFERS] = _compare(store, joined[PREDICTION], where, is_csv=is_csv)
    without = length - int(given.sum())
    tell(f"{where}: columns {', '.join(joined)}; {without:,} of {length:,} records have no row")
    if left:
        why = "the name is taken or cannot be searched, or the values are not of one kind"
        tell(f"{where}: left out: {', '.join(left)}; {why}")
    return joined


def _parse(values: list[Any], *, is_csv: bool) -> tuple[str, list[Any]] | None:
    """Return the kind of a column and its values, None for no value; None if the values are not scalars of one kind."""
    if any(not isinstance(value, (str, int, float, type(None))) for value in values):
        return None
    values = [None if value == "" else value for value in values]
    for read in (_BOOLEANS.__getitem__, _number) if is_csv else ():
        with suppress(KeyError, ValueError):
            values = [None if value is None else read(value) for value in values]
            break
    types = {type(value) for value in values} - {type(None)}
    if types == {int} and any(abs(value or 0) >= 2**63 for value in values):
        return None
    kind = _KINDS.get(frozenset(types))
    return None if kind is None else (kind, values)


def _number(text: str) -> float:
    """Return an int or a float; ValueError for other text, and for identifiers such as 007."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    raise ValueError


def _spread(kind: str, values: list[Any], indices: list[int], length: int) -> Joined:
    """Give each record its value."""
    absent = math.nan if kind == "float" else NO_LABEL
    spread, texts = np.full(length, absent), _BOOLS if kind == "bool" else ()
    if kind == "text":
        texts = tuple(sorted({*values} - {None}))
        table = {text: number for number, text in enumerate(texts)}
        values = [table.get(value) for value in values]
    spread[indices[: len(values)]] = [absent if value is None else value for value in values]
    return Joined(kind, spread, texts)


def _compare(store: Store, prediction: Joined, where: str, *, is_csv: bool) -> Joined:
    """Return whether predictions differ from the labels; no value where one of them is missing."""
    classes, labels, values = store.manifest.classes, store.column("label"), prediction.values
    if prediction.kind == "text":
        table = {name: label for label, name in enumerate(classes)}
        of_text = np.array([table.get(text, -1) for text in prediction.texts])
        values = np.where(values == NO_LABEL, NO_LABEL, of_text[np.maximum(values, 0)])
        if not np.any(values >= 0):
            raise SourceError(f"{where}: no prediction is the name of a class, such as {short_repr((*classes, '')[0])}")
    elif is_csv and any(_INTEGER.fullmatch(name) and int(name) != label for label, name in enumerate(classes)):
        raise SourceError(
            f"{where}: a prediction may be a label, or the name of a class that looks like an integer: write a .jsonl, "
            "where text is a name and an integer a label"
        )
    known = (values != NO_LABEL) & (labels != NO_LABEL)
    return Joined("bool", np.where(known, values != labels, NO_LABEL), _BOOLS)
