"""Find the records of a store that match a query, list them, and read the report of the store's conversion."""

from __future__ import annotations

import csv
import io
import threading
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.ext.queries.columns import Columns, find_names
from dbloader.ext.queries.lru import LRUCache
from dbloader.ext.queries.select import select
from dbloader.records.columns import CHUNK
from dbloader.records.field_columns import FieldColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dbloader.stores.base import Store

_MOST_ROWS = 500  # largest number of lines of the report in one answer
_MOST_COUNTS = 100  # number of searched texts whose line counts are cached
_MOST_BYTES = 40_000_000  # size of each cache, enough for the indices of ten million records


def flag_column(records: Any, length: int) -> FieldColumn:
    """Return a column of ``length`` booleans: true for the indices in ``records``, otherwise false."""
    values = np.zeros(length, np.uint8)
    values[records] = 1
    return FieldColumn("bool", values)


class Selections:
    """Evaluates queries of a store, and keeps the last results. Threads may share this object."""

    def __init__(self, store: Store, joined: Mapping[str, FieldColumn] | None = None) -> None:
        self.store, self.report = store, ConversionReport(store)
        self.columns = Columns(store, joined)  # columns of the store, the listing, the marks and the duplicates
        self.revision = 0  # number of times that the marks or duplicates have changed
        self._joined, self._lock = {"listing": joined or {}}, threading.Lock()
        self._kept = LRUCache[Any](_MOST_BYTES, lambda indices: 1_000 + getattr(indices, "nbytes", 0))
        # Caches for results of sort_records, for the vectors of each field, and for results of summary, in this order.
        self.orders = LRUCache[Any](_MOST_BYTES, lambda indices: indices.nbytes)
        self.vectors = LRUCache[Any](_MOST_BYTES, lambda vectors: vectors.nbytes)
        self.facts = LRUCache[dict[str, Any]](_MOST_BYTES, lambda facts: 10_000 + 200 * len(facts.get("labels", ())))

    def join(self, what: str, columns: Mapping[str, FieldColumn]) -> None:
        """Replace all columns from one source. ``what`` is the source: "marks", "duplicates" or "leaks"."""
        with self._lock:
            self._joined[what] = columns
            self.columns = self.columns.with_joined({k: v for some in self._joined.values() for k, v in some.items()})
            self.revision += 1  # last: a result from old columns must not get a key with the new revision

    def key(self, query: str) -> tuple[str, int]:
        """Return the cache key of a query. It contains the revision if the query uses marks or duplicates."""
        return query.strip(), self.revision if "mark." in query or "duplicates." in query else 0

    def select(self, query: str) -> Any:
        """Return the indices of the records that match a query, ascending.

        The result is a range if all records match, otherwise an array of uint32 or int64, shape (records,).

        Raises:
            OptionError: A condition is wrong, or contains a class or event that the store does not have.
        """
        return self._kept.get(self.key(query), lambda: select(self.columns, query))

    def list_csv(self, query: str) -> Iterator[bytes]:
        """Return a table of the records that match a query: an iterator of blocks of CSV lines in UTF-8.

        The columns are ``index``, ``path`` (the name of the record) and ``label`` (the name of the class, or an
        integer). ``dbloader copy`` reads this table with --select, --drop and --labels.
        """
        classes, records = self.store.manifest.classes, self.columns.rows(self.select(query), ("label",))
        lines = (
            (index, name, classes[label] if classes and label is not None else label) for index, name, label in records
        )
        rows = chain([("index", "path", "label")], lines)
        return map(_encode, iter(lambda: [*islice(rows, CHUNK)], []))


def _encode(rows: list[tuple[Any, ...]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


class ConversionReport:
    """The report of a store's conversion. Threads may share this object.

    The first search for a text reads all lines, to count the matches. Later calls read only up to the requested page.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = LRUCache[Counter[str]](_MOST_COUNTS, lambda _: 1)

    def read(self, event: str = "", text: str = "", start: int = 0, count: int = 200) -> dict[str, Any]:
        """Return the lines of the report that match ``event`` and ``text``.

        ``rows`` are the lines: ``name``, ``event``, ``reason``, and ``index`` (the record with this name, or None).
        ``total`` is the number of matching lines. ``counts`` has the number of lines of each event in the whole report.

        ``event`` is an event such as "rejected", or "" for all events. ``text`` is searched in names and reasons,
        ignoring case. Return ``count`` matching lines from line ``start`` on, at most 500.

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
