"""Write a listing of the records that match a query, for ``dbloader copy --select``, ``--drop`` and ``--labels``."""

from __future__ import annotations

import csv
import io
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.records.columns import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.viewing.selection import Selections

FORMATS = {"csv": "text/csv", "jsonl": "application/x-ndjson"}
_COLUMNS = ("index", "path", "label")


def stream_listing(selections: Selections, query: str, kind: str) -> Iterator[bytes]:
    """Return a listing of the records that match a query, as blocks of lines in UTF-8.

    The columns are ``index``, ``path`` (the name of the record) and ``label`` (the name of the class, or an integer).

    Args:
        selections: Evaluates the query.
        query: The query.
        kind: One of ``FORMATS``.

    Raises:
        OptionError: The query or ``kind`` is wrong.
    """
    if kind not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)}, got {kind[:20]!r}")
    return _encode(selections, selections.select(query), kind)


def _encode(selections: Selections, indices: Any, kind: str) -> Iterator[bytes]:
    classes = selections.store.manifest.classes
    rows = (
        (index, name, classes[label] if classes and label is not None else label)
        for index, name, label in selections.columns.rows(indices, ("label",))
    )
    if kind == "csv":
        yield ",".join(_COLUMNS).encode() + b"\r\n"
    while some := [*islice(rows, CHUNK)]:
        file = io.StringIO()
        if kind == "csv":
            csv.writer(file).writerows(some)
        else:
            file.writelines(json.dumps(dict(zip(_COLUMNS, row, strict=True))) + "\n" for row in some)
        yield file.getvalue().encode()
