"""Write a selection as a listing for ``dbloader copy --select``, ``--drop`` and ``dbloader convert --listing``."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.errors import OptionError
from dbloader.records.columns import CHUNK, names_in, names_with
from dbloader.viewing.columns import blocks, find_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.viewing.columns import Array
    from dbloader.viewing.selection import Selections

FORMATS = {"csv": "text/csv", "jsonl": "application/x-ndjson"}
_MOST_SUSPECTS = 100_000  # names that are compared because their hashes are equal


def stream_listing(selections: Selections, text: str, kind: str) -> Iterator[bytes]:
    """Return the parts of a listing of the records that match a query, in UTF-8.

    Its columns are ``path``, the name of the record, and ``label``, the name of the class or an integer. If names are
    missing or not unique, the first column is ``index``, and ``convert`` refuses the listing.

    Args:
        selections: Evaluates the query.
        text: The query.
        kind: One of ``FORMATS``.

    Raises:
        OptionError: A CSV cannot contain a name, or the query has not searched all records of the store.
    """
    if kind not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)}, got {kind[:20]!r}")
    indices, first = selections.select(text)
    if first is not None:
        raise OptionError(f"only the first {first:,} records were searched, so the listing would be incomplete")
    for chunk, positions in _by_chunk(selections, indices) if kind == "csv" else ():
        if names_with(chunk, b"\0")[positions].any():  # which Python's csv refuses before 3.11
            raise OptionError("a .csv cannot hold names with the character '\\x00': take the .jsonl")
    return _encode(selections, indices, kind, with_index=_needs_index(selections, indices))


def _encode(selections: Selections, indices: Any, kind: str, *, with_index: bool) -> Iterator[bytes]:
    classes, columns = selections.store.manifest.classes, selections.columns
    header = ["index", "path", "label"][not with_index :]
    if kind == "csv":
        yield ",".join(header).encode() + b"\r\n"
    start = 0
    for chunk, positions in _by_chunk(selections, indices):
        packed = names_in(chunk)
        names = [packed[position].decode("utf-8", "backslashreplace") for position in positions.tolist()]
        here = np.asarray(indices[start : (start := start + len(names))], np.int64)
        labels = [classes[label] if classes and label is not None else label for label in columns.some("label", here)]
        rows = [row[not with_index :] for row in zip(here.tolist(), names, labels, strict=True)]
        file = io.StringIO()
        if kind == "csv":
            csv.writer(file).writerows(rows)
        else:
            file.writelines(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
        yield file.getvalue().encode()


def _needs_index(selections: Selections, indices: Any) -> bool:
    """Return whether a record of a selection has no name, or the same name as another record of the store."""
    hashes = selections.store.column("name_hash")
    ordered = np.sort(hashes)
    twice = np.append(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]), np.uint32(0))
    names: set[str] = set()
    for part in blocks(len(indices)):
        some = np.asarray(indices[part], np.int64)
        suspects = some[np.isin(hashes[some], twice)]
        if not hashes[some].all() or len(names) + len(suspects) > _MOST_SUSPECTS:
            return True
        names.update(map(selections.columns.name, suspects.tolist()))
    return sum(1 for _ in find_names(selections.store, names)) > len(names)


def _by_chunk(selections: Selections, indices: Any) -> Iterator[tuple[memoryview | bytes, Array]]:
    """Yield chunks of the column of names, and the positions in the chunk of the names of a selection."""
    handle = selections.store.open_handle()
    for part in blocks(len(indices)):
        some = np.asarray(indices[part], np.int64)
        for group in np.split(some, np.flatnonzero(np.diff(some // CHUNK)) + 1):
            yield handle.chunk("name", int(group[0]) // CHUNK), group % CHUNK
