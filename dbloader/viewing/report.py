"""Read the report of a store's conversion: what happened to single files, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dbloader.queries.columns import find_names

if TYPE_CHECKING:
    from dbloader.stores.base import Store

_MOST_ROWS = 500  # largest number of lines in one answer


def read_report(store: Store, event: str = "", text: str = "", start: int = 0, count: int = 200) -> dict[str, Any]:
    """Return the lines of the report that match ``event`` and ``text``.

    ``rows`` are the lines: ``name``, ``event``, ``reason``, and ``index`` (the record with this name, or None).
    ``total`` is the number of matching lines. ``counts`` has the number of lines of each event in the whole report.

    Args:
        store: The store.
        event: Event of the lines, such as "rejected"; "" for all events.
        text: Text in the name or reason of the lines. Upper and lower case are the same.
        start: The first of the matching lines to return.
        count: Number of lines to return, at most 500.

    Raises:
        DamagedStoreError: A line is missing or damaged.
    """
    wanted, counts, total = text.casefold(), Counter[str](), 0
    end, lines = start + min(count, _MOST_ROWS), []
    for line in store.events():
        counts[line["event"]] += 1
        if event not in ("", line["event"]):
            continue
        if not wanted or wanted in f"{line['name']}\n{line['reason']}".casefold():
            if start <= total < end:
                lines.append(line)
            total += 1
    indices: dict[str, int] = {}
    for index, name in find_names(store, {line["name"] for line in lines if line["event"] != "rejected"}):
        indices.setdefault(name, index)  # if several records have this name, use the first
    rows = [{**line, "index": indices.get(line["name"])} for line in lines]
    return {"total": total, "counts": counts, "rows": rows}
