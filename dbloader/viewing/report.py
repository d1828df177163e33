"""The report of the conversion that made a store: what happened to single files, and why."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from dbloader.viewing.columns import Recent, find_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.stores.base import Store

_MOST_ROWS = 500
_MOST_COUNTS = 100  # that are kept


class ConversionReport:
    """The lines of a store's report, which are counted once. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = Recent[Counter[str]](_MOST_COUNTS, lambda _: 1)

    def read(self, event: str = "", text: str = "", start: int = 0, count: int = 200) -> dict[str, Any]:
        """Return lines of the report: ``rows``, the ``total`` that match, and ``counts`` of each event in all of it.

        Each row has ``name``, ``event``, ``reason`` and ``index``, that of the record with the name, or None.

        Args:
            event: The event of the lines, such as "rejected"; "" for all.
            text: What their name or reason contains, in any case; "" for all.
            start: The first line of those that match.
            count: Lines to return, at most 500.

        Raises:
            DamagedStoreError: A line is missing, or not what was written.
        """
        wanted = text.casefold()
        counts, found = self._count(""), self._count(wanted)
        total = found[event] if event else found.total()
        lines = (line for line in self._lines(wanted) if event in ("", line["event"]))
        rows = [*islice(lines, start, min(start + min(count, _MOST_ROWS), total))]
        indices: dict[str, int] = {}
        for index, name in find_names(self._store, {line["name"] for line in rows if line["event"] != "rejected"}):
            indices.setdefault(name, index)  # the first of several
        rows = [{**line, "index": indices.get(line["name"])} for line in rows]
        return {"total": total, "counts": counts, "rows": rows}

    def _lines(self, wanted: str) -> Iterator[dict[str, Any]]:
        lines = self._store.events()
        return (line for line in lines if not wanted or wanted in f"{line['name']}\n{line['reason']}".casefold())

    def _count(self, wanted: str) -> Counter[str]:
        return self._counts.get(wanted, lambda: Counter(line["event"] for line in self._lines(wanted)))
