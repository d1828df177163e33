"""Join a listing, such as a model's predictions, to the records of a store as further columns."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import counted, short_repr
from dbloader.errors import SourceError
from dbloader.ext.copying.listings import RecordNames, find_rows
from dbloader.ext.queries.columns import column_of
from dbloader.ext.queries.parse import KEYS
from dbloader.ext.sources.listing_columns import PATH_COLUMNS
from dbloader.ext.sources.listing_rows import is_text
from dbloader.records.columns import NO_LABEL
from dbloader.records.field_columns import NO_BOOL, FieldColumn, column_value
from dbloader.sources.base import readable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

PREDICTION, DIFFERS = "prediction", "labels.differ"
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False}
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
_FLOAT = re.compile(
    r"[+-]?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|[0-9]+(?=e))(?:e[+-]?[0-9]+)?|nan|inf)", re.IGNORECASE
)


def join_listings(
    stores: Sequence[Store], listing: str | os.PathLike[str], tell: Callable[[str], object] = lambda _: None
) -> list[dict[str, FieldColumn]]:
    """Return the columns of a listing for each store, joined to the records by their name, path or index.

    A store without a record in the listing gets no columns. A column is left out if its values are not scalars of
    one kind. If the listing has a column ``prediction`` with class names or integer labels, the result also has
    ``labels.differ``: whether the prediction differs from the label. ``tell`` gets each message about the columns.

    Raises:
        SourceError: The listing cannot be read, contains no record of a store, or has two rows for a record.
    """
    where, names, is_csv = readable(listing), RecordNames(stores), is_text(Path(listing))
    length, places, shared = names.starts[-1], " or ".join(store.place for store in stores), 0
    given, order, columns, left = np.zeros(length, bool), list[int](), dict[str, list[Any]](), dict[str, None]()
    for place, row, found in find_rows(listing, names, must_exist=False):
        if given[found].any():
            raise SourceError(f"{place}: an earlier row has the same record; keep one row for a record")
        given[found] = True
        shared += len({*map(names.store_of, found)}) > 1
        for name, value in row.items() if found else ():
            values = columns.setdefault(name, [])
            values += [None] * (len(order) - len(values)) + [value] * len(found)
        order += found
    if not order:
        raise SourceError(f"{where}: no row has the name, path or index of a record of {places}")
    if shared:
        tell(f"Warning: {where}: {counted(shared, 'row')} with a name in several stores: joined to each record")
    joined: list[dict[str, FieldColumn]] = [{} for _ in stores]
    ranges = [slice(*ends) for ends in pairwise(names.starts)]
    for name, values in columns.items():
        spread = np.full(length, None)
        spread[order[: len(values)]] = _parse(values) if is_csv else values
        for part, into in zip(ranges, joined, strict=True) if name not in (*KEYS, *PATH_COLUMNS) else ():
            column = column_of(map(column_value, spread[part]), part.stop - part.start)
            into.update({name: column} if column is not None else {})
        if not any(name in into for into in joined) and name not in ("name", "index", *PATH_COLUMNS):
            left[name] = None
    for store, part, into in zip(stores, ranges, joined, strict=True):
        if PREDICTION in into and into[PREDICTION].kind in ("int", "text") and DIFFERS not in into:
            into[DIFFERS] = _compare(store, into[PREDICTION], where, is_csv=is_csv)
        without, of = int((~given[part]).sum()), f" of {store.place}" * (len(stores) > 1)
        what = f"columns {', '.join(into)}; {without:,} of {len(store):,} records{of} have no row"
        tell(f"{where}: {what if without < len(store) else f'no row has a record{of}'}")
    if left:
        why = "the name is taken, or the values are not numbers, booleans or short texts of one kind"
        tell(f"{where}: left out: {', '.join(left)}; {why}")
    return joined


def _parse(values: list[Any]) -> list[Any]:
    """Convert the texts of a .csv column to booleans or numbers. If a text is neither, return the texts unchanged."""
    for read in (_BOOLEANS.__getitem__, _number):
        with suppress(KeyError, ValueError):
            return [None if value in (None, "") else read(value) for value in values]
    return values


def _number(text: str) -> float:
    """Return an int or a float. Raise ValueError for other text, and for identifiers such as 007."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    raise ValueError


def _compare(store: Store, prediction: FieldColumn, where: str, *, is_csv: bool) -> FieldColumn:
    """Return whether predictions differ from the labels. Records without a prediction or label have no value."""
    classes, labels, values = store.manifest.classes, store.column("label"), prediction.values
    if prediction.kind == "text":
        table = {"": NO_LABEL} | {name: label for label, name in enumerate(classes)}
        values = np.fromiter((table.get(text, -1) for text in values), np.int64, len(values))
        if not np.any(values >= 0):
            raise SourceError(f"{where}: no prediction is the name of a class, such as {short_repr((*classes, '')[0])}")
    elif is_csv and any(_INTEGER.fullmatch(name) and int(name) != label for label, name in enumerate(classes)):
        raise SourceError(
            f"{where}: predictions could be labels or class names, because the name of a class is an integer: write "
            "a .jsonl, with class names as texts or labels as integers"
        )
    known = (values != NO_LABEL) & (labels != NO_LABEL)
    return FieldColumn("bool", np.where(known, values != labels, NO_BOOL).astype(np.uint8))
