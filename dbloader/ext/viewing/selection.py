"""Find the records of a store that match a query, keep the results, and list them."""

from __future__ import annotations

import csv
import io
import threading
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.ext.queries.columns import Columns
from dbloader.ext.queries.lru import LRUCache
from dbloader.ext.queries.select import select
from dbloader.ext.viewing.report import ConversionReport
from dbloader.records.columns import CHUNK
from dbloader.records.field_columns import FieldColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dbloader.stores.base import Store

_MOST_BYTES = 40_000_000  # size of each cache, enough for the indices of ten million records


def flag_column(records: Any, length: int) -> FieldColumn:
    """Return a column of booleans: true for the records with some indices, false for all other records."""
    values = np.zeros(length, np.uint8)
    values[records] = 1
    return FieldColumn("bool", values)


class Selections:
    """Evaluates queries of a store, and keeps the last results. Threads may share this object.

    Attributes:
        columns: The columns of the store, the listing, the marks and the duplicates.
        facts: The last results of ``summary.count``, and histograms of all records.
        orders: The last results of ``sorting.sort_records``.
        vectors: The last vectors that ``sorting.sort_records`` has read, by field.
        report: The report of the conversion.
        revision: Number of times that the marks or duplicates have changed.
    """

    def __init__(self, store: Store, joined: Mapping[str, FieldColumn] | None = None) -> None:
        self.store = store
        self.columns = Columns(store, joined)
        self.revision = 0
        self._joined, self._lock = {"listing": joined or {}}, threading.Lock()
        self.report = ConversionReport(store)
        self._kept = LRUCache[Any](_MOST_BYTES, lambda indices: 1_000 + getattr(indices, "nbytes", 0))
        self.orders = LRUCache[Any](_MOST_BYTES, lambda indices: indices.nbytes)
        self.vectors = LRUCache[Any](_MOST_BYTES, lambda vectors: vectors.nbytes)
        self.facts = LRUCache[dict[str, Any]](_MOST_BYTES, lambda facts: 10_000 + 200 * len(facts.get("labels", ())))

    def join(self, what: str, columns: Mapping[str, FieldColumn]) -> None:
        """Replace the columns of the marks or duplicates. ``what`` is "marks" or "duplicates"."""
        with self._lock:
            self._joined[what] = columns
            self.columns = self.columns.with_joined({k: v for some in self._joined.values() for k, v in some.items()})
            self.revision += 1  # last, so no result of the old columns is kept under the new revision

    def key(self, query: str) -> tuple[str, int]:
        """Return the key under which the result of a query is kept. The key changes if the query's columns change."""
        return query.strip(), self.revision if "mark." in query or "duplicates." in query else 0

    def select(self, query: str) -> Any:
        """Return the indices of the records that match a query, ascending.

        The result is a range if all records match, otherwise an array of uint32 or int64, shape (records,).

        Raises:
            OptionError: A condition is wrong, or names a class or event that the store does not have.
        """
        return self._kept.get(self.key(query), lambda: select(self.columns, query))

    def list_csv(self, query: str) -> Iterator[bytes]:
        """Return a listing of the records that match a query, as blocks of lines in UTF-8.

        The columns are ``index``, ``path`` (the name of the record) and ``label`` (the name of the class, or an
        integer). ``dbloader copy`` reads this listing with --select, --drop and --labels.

        Raises:
            OptionError: The query is wrong.
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
