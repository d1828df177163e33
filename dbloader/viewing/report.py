"""The report of the conversion that made a store: what happened to single files, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dbloader.viewing.columns import find_names

if TYPE_CHECKING:
    from dbloader.stores.base import Store

_MOST_ROWS = 500
_MOST_READ = 10_000  # lines that are read for one record, in some 50 ms


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
    indices: dict[str, int] = {}
    for index, name in find_names(store, {line["name"] for line in rows if line["event"] != "rejected"}):
        indices.setdefault(name, index)  # the first of several
    return {"total": total, "counts": counts, "rows": [{**line, "index": indices.get(line["name"])} for line in rows]}


def events_of(store: Store, name: str | None) -> list[dict[str, Any]] | None:
    """Return the lines of the report with a name; None if the report is so long that reading it takes a while."""
    if name is None or not store.manifest.events:
        return []
    return None if store.manifest.events > _MOST_READ else [line for line in store.events() if line["name"] == name]
