"""Read the report of a store's conversion: what happened to single files, and why."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from dbloader.ext.queries.columns import find_names
from dbloader.ext.queries.lru import LRUCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.stores.base import Store

_MOST_ROWS = 500  # largest number of lines in one answer
_MOST_COUNTS = 100  # number of searched texts whose line counts are cached


class ConversionReport:
    """The report of a store's conversion. Threads may share this object.

    The lines of each searched text are counted once. Later pages of this text read only as far as their last line.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = LRUCache[Counter[str]](_MOST_COUNTS, lambda _: 1)

    def read(self, event: str = "", text: str = "", start: int = 0, count: int = 200) -> dict[str, Any]:
        """Return the lines of the report that match ``event`` and ``text``.

        ``rows`` are the lines: ``name``, ``event``, ``reason``, and ``index`` (the record with this name, or None).
        ``total`` is the number of matching lines. ``counts`` has the number of lines of each event in the whole report.

        Args:
            event: Event of the lines, such as "rejected"; "" for all events.
            text: Text in the name or reason of the lines. Upper and lower case are the same.
            start: The first of the matching lines to return.
            count: Number of lines to return, at most 500.

        Raises:
            DamagedStoreError: A line is missing or damaged.
        """
        wanted = text.casefold()
        counts, found = self._count(""), self._count(wanted)
        total = found[event] if event else found.total()
        matching = (line for line in self._lines(wanted) if event in ("", line["event"]))
        end = min(start + min(count, _MOST_ROWS), total)
        lines = [*islice(matching, start, end)] if start < end else []
        indices: dict[str, int] = {}
        for index, name in find_names(self._store, {line["name"] for line in lines if line["event"] != "rejected"}):
            indices.setdefault(name, index)  # if several records have this name, use the first
        rows = [{**line, "index": indices.get(line["name"])} for line in lines]
        return {"total": total, "counts": counts, "rows": rows}

    def _lines(self, wanted: str) -> Iterator[dict[str, Any]]:
        lines = self._store.events()
        return (line for line in lines if not wanted or wanted in f"{line['name']}\n{line['reason']}".casefold())

    def _count(self, wanted: str) -> Counter[str]:
        return self._counts.get(wanted, lambda: Counter(line["event"] for line in self._lines(wanted)))
