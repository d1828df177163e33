"""The report of the conversion that made a store: what happened to single files, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.records.columns import CHUNK, DTYPES, name_hash
from dbloader.records.names import name_at

if TYPE_CHECKING:
    from dbloader.stores.base import Store

_MOST_ROWS = 500


def read_report(store: Store, event: str = "", text: str = "", start: int = 0, count: int = 200) -> dict[str, Any]:
    """Return lines of the report: ``rows``, how many there are, ``total``, and ``counts`` of each event in all of it.

    Each row has ``name``, ``event``, ``reason`` and ``index``, that of the record with the name, or None.

    Args:
        store: The store.
        event: The event of the lines, such as "rejected"; "" for all.
        text: What their name or reason contains, in any case; "" for all.
        start: The first line of those that match.
        count: Lines to return, at most 500.

    Raises:
        DamagedStoreError: A line is missing, or not what was written.
    """
    counts: Counter[str] = Counter()
    rows, total, stop, wanted = [], 0, start + min(count, _MOST_ROWS), text.casefold()
    for line in store.events():
        counts[line["event"]] += 1
        if event in ("", line["event"]) and (not wanted or wanted in f"{line['name']}\n{line['reason']}".casefold()):
            if start <= total < stop:
                rows.append(line)
            total += 1
    indices = _find(store, {line["name"] for line in rows if line["event"] != "rejected"})
    return {"total": total, "counts": counts, "rows": [{**line, "index": indices.get(line["name"])} for line in rows]}


def events_of(store: Store, name: str | None) -> list[dict[str, Any]]:
    """Return the lines of the report with a name; none for a record without one."""
    return [line for line in store.events() if line["name"] == name] if name and store.manifest.events else []


def _find(store: Store, names: set[str]) -> dict[str, int]:
    """Return the indices of the first records with some names, from one scan of the column ``name_hash``."""
    hashes = {name_hash(name.encode(errors="replace")) for name in names}
    found: dict[str, int] = {}
    handle, wanted = store._open(), np.array([*hashes], np.uint32)
    for number, chunk in enumerate(handle.chunks("name_hash") if hashes else ()):
        for position in np.flatnonzero(np.isin(np.frombuffer(chunk, DTYPES["name_hash"]), wanted)).tolist():
            name = name_at(handle.chunk("name", number), position)
            if name in names:
                found.setdefault(name, number * CHUNK + position)
    return found
