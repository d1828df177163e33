"""Write a selection as a listing for ``dbloader copy --select``, ``--drop`` and ``--labels``."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.errors import OptionError
from dbloader.queries.columns import blocks
from dbloader.records.columns import CHUNK
from dbloader.records.names import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.viewing.selection import Selections

FORMATS = {"csv": "text/csv", "jsonl": "application/x-ndjson"}
_COLUMNS = ("index", "path", "label")


def stream_listing(selections: Selections, text: str, kind: str) -> Iterator[bytes]:
    """Return the parts of a listing of the records that match a query, in UTF-8.

    The columns are ``index``, ``path`` (the name of the record) and ``label`` (the name of the class, or an integer).

    Args:
        selections: Evaluates the query.
        text: The query.
        kind: One of ``FORMATS``.

    Raises:
        OptionError: The query or ``kind`` is wrong.
    """
    if kind not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)}, got {kind[:20]!r}")
    return _encode(selections, selections.select(text), kind)


def _encode(selections: Selections, indices: Any, kind: str) -> Iterator[bytes]:
    if kind == "csv":
        yield ",".join(_COLUMNS).encode() + b"\r\n"
    for rows in _rows_by_chunk(selections, indices):
        file = io.StringIO()
        if kind == "csv":
            csv.writer(file).writerows(rows)
        else:
            file.writelines(json.dumps(dict(zip(_COLUMNS, row, strict=True))) + "\n" for row in rows)
        yield file.getvalue().encode()


def _rows_by_chunk(selections: Selections, indices: Any) -> Iterator[list[tuple[int, str, Any]]]:
    """Yield the rows of a listing. Each chunk of the column of names is read once."""
    handle, classes = selections.store.open_handle(), selections.store.manifest.classes
    for part in blocks(len(indices)):
        some = np.asarray(indices[part], np.int64)
        for group in np.split(some, np.flatnonzero(np.diff(some // CHUNK)) + 1):
            packed = names_in(handle.chunk("name", int(group[0]) // CHUNK))
            names = [packed[at].decode("utf-8", "backslashreplace") for at in (group % CHUNK).tolist()]
            labels = selections.columns.some("label", group)
            shown = [classes[label] if classes and label is not None else label for label in labels]
            yield [*zip(group.tolist(), names, shown, strict=True)]
