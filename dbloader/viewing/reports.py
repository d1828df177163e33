"""Read what other commands wrote about a store: the report of its conversion, and groups of duplicates."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.checking.duplicates import describe_rows
from dbloader.checking.fingerprints import load_groups
from dbloader.queries.cache import LRUCache
from dbloader.queries.columns import find_names
from dbloader.records.columns import NO_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.stores.base import Store

_MOST_ROWS = 500  # largest number of lines in one answer
_MOST_COUNTS = 100  # number of searched texts whose line counts are cached
_MOST_GROUPS, _MOST_IN_GROUP = 100, 60


class ConversionReport:
    """The report of a store's conversion: what happened to single files, and why. Threads may share this object."""

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
        lines = (line for line in self._lines(wanted) if event in ("", line["event"]))
        rows = [*islice(lines, start, min(start + min(count, _MOST_ROWS), total))]
        indices: dict[str, int] = {}
        for index, name in find_names(self._store, {line["name"] for line in rows if line["event"] != "rejected"}):
            indices.setdefault(name, index)  # if several records have this name, use the first
        rows = [{**line, "index": indices.get(line["name"])} for line in rows]
        return {"total": total, "counts": counts, "rows": rows}

    def _lines(self, wanted: str) -> Iterator[dict[str, Any]]:
        lines = self._store.events()
        return (line for line in lines if not wanted or wanted in f"{line['name']}\n{line['reason']}".casefold())

    def _count(self, wanted: str) -> Counter[str]:
        return self._counts.get(wanted, lambda: Counter(line["event"] for line in self._lines(wanted)))


def list_duplicates(store: Store, start: int, count: int, *, differing: bool = False) -> dict[str, Any] | None:
    """Return groups of duplicates that the last search of this store found; None if the store was not searched.

    - ``groups``: the groups. Each group has the ``index``, ``name`` and ``class`` of the original; the ``count`` of the
      duplicates; and the first 60 duplicates, ``others``. If a class has no name, ``class`` is the label;
    - ``total``: the number of all groups;
    - ``differing``: the number of groups with different labels;
    - ``duplicates``: the number of duplicates in all groups;
    - ``distance``: largest number of different bits, of 128, in similar pictures.

    Args:
        store: The store.
        start: Number of the first group to return, from 0.
        count: Number of groups to return, at most 100.
        differing: Leave out groups in which all labels are equal. Then ``start`` does not count these groups.
    """
    kept = load_groups(store)
    if kept is None:
        return None
    labels = store.column("label")
    differs = labels[kept.rows["index"]] != labels[kept.rows["of"]]
    numbers = np.unique(kept.begins.searchsorted(np.flatnonzero(differs), "right") - 1)
    total, groups = {"total": len(kept.begins) - 1, "differing": len(numbers)}, []
    shown = numbers if differing else np.arange(total["total"])
    for number in shown[start : start + min(count, _MOST_GROUPS)].tolist():
        first, end = kept.begins[number : number + 2].tolist()
        rows = [*describe_rows(kept.rows[first : min(end, first + _MOST_IN_GROUP)], store, store)]
        others = [{**row, "class": _class_of(store, labels[row["index"]])} for row in rows]
        of, name = rows[0]["of"], rows[0]["of_name"]
        original = {"index": of, "name": name, "class": _class_of(store, labels[of])}
        groups.append({**original, "count": end - first, "others": others})
    return {**total, "duplicates": len(kept.rows), "distance": kept.distance, "groups": groups}


def _class_of(store: Store, label: Any) -> str | int | None:
    return None if label == NO_LABEL else store.manifest.class_name(int(label)) or int(label)
