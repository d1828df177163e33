"""Find the records that a listing names, in one or more stores.

A ``.txt`` has a name on each line. Any other listing has a column ``name``, ``path`` or ``index``. A position is the
number of a record if the records of all stores are counted together, in the order of the stores.
"""

from __future__ import annotations

import posixpath
import warnings
from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.records.columns import NO_LABEL, name_hash
from dbloader.sources.base import Problem, readable
from dbloader.sources.labels import number_labels
from dbloader.sources.listing import LABEL_COLUMNS, PATH_COLUMNS
from dbloader.sources.listing_rows import is_text, read_lines, read_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from dbloader.records.names import Names
    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

_NAME_COLUMNS = ("name", *PATH_COLUMNS)
_EXAMPLES = 3
_MAX_DIGITS = 20  # most digits of an index; int() refuses more than 4,300


class RecordNames:
    """Names of the records of several stores. They are loaded at first use, and take 16 bytes each plus their text."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = stores
        self.starts: list[int] = np.cumsum([0, *map(len, stores)]).tolist()

    @cached_property
    def _names(self) -> list[Names]:
        return [store.names() for store in self.stores]

    @cached_property
    def _hashes(self) -> Array:
        return np.concatenate([store.column("name_hash") for store in self.stores])

    @cached_property
    def _order(self) -> tuple[Array, Array]:
        order = np.argsort(self._hashes, kind="stable")
        return order, self._hashes[order]

    def store_of(self, position: int) -> int:
        """Return the number of the store that contains the record at a position."""
        return bisect_right(self.starts, position) - 1

    def name(self, position: int) -> str:
        """Return the name of the record at a position; "" for an unnamed record."""
        store = self.store_of(position)
        return self._names[store][position - self.starts[store]]

    def find(self, name: str) -> list[int]:
        """Return the positions of all records with a name, in ascending order."""
        order, hashes = self._order
        wanted = np.uint32(name_hash(name.encode("utf-8", "surrogateescape")))
        first, stop = hashes.searchsorted(wanted), hashes.searchsorted(wanted, "right")
        return [position for position in order[first:stop].tolist() if name and self.name(position) == name]

    def repeated(self, keep: Array) -> Iterator[str]:
        """Yield the name of each record whose name also occurs in an earlier store. ``keep`` masks the records."""
        hashes = np.where(keep, self._hashes, 0)  # unnamed records have the hash 0 too
        values, counts = np.unique(hashes, return_counts=True)
        for position in np.flatnonzero(np.isin(hashes, values[(counts > 1) & (values > 0)])).tolist():
            name = self.name(position)
            first = next(other for other in self.find(name) if keep[other])
            if first < self.starts[self.store_of(position)]:
                yield name


class NameListing:
    """A listing of records to select, drop or label. ``where`` is its path for messages.

    If the listing names missing records, ``rows`` raises an error after the last row, or warns without ``must_exist``.
    """

    def __init__(self, listing: str | os.PathLike[str], names: RecordNames, *, must_exist: bool = True) -> None:
        self._listing = Path(listing)
        self.where = readable(listing)
        self._names = names
        self._must_exist = must_exist

    def find(self) -> Array:
        """Return a mask of the listed records: bool, shape (records,)."""
        found = np.zeros(self._names.starts[-1], bool)
        for _, _, positions in self.rows():
            found[positions] = True
        return found

    def labels(self) -> tuple[Array, Array, tuple[str, ...]]:
        """Return (mask of listed records, labels, class names). Class names are () if the labels are integers."""
        given = np.zeros(self._names.starts[-1], bool)
        labels = np.full(len(given), NO_LABEL)
        first: dict[str, str] = {}  # for each label that is a text, its first row
        numbers: dict[str, int] = {}
        integer = ""
        for number, row, positions in self.rows():
            where = f"{self.where}, row {number}"
            column = next((column for column in LABEL_COLUMNS if column in row), None)
            label = row[column] if column else self._fail(where, f"has no column called {' or '.join(LABEL_COLUMNS)}")
            value = NO_LABEL
            if isinstance(label, str) and label:
                first.setdefault(label, f"row {number}")
                value = numbers.setdefault(label, len(numbers))
            elif type(label) is int and abs(label) < 2**63:
                value, integer = label, integer or f"row {number}"
            elif label not in (None, ""):
                self._fail(where, f"a label must be a 64-bit integer, a name or null, got {short_repr(label, 50)}")
            if np.any(given[positions] & (labels[positions] != value)):
                self._fail(where, "gives a record another label than an earlier row")
            given[positions], labels[positions] = True, value
        if first and integer:
            both = f"the label of {integer} is an integer, but the label of {next(iter(first.values()))} is a name"
            self._fail(self.where, f"{both}: use integers in all rows or names in all rows")
        classes, known = number_labels(first, self.where, may_be_integers=is_text(self._listing))
        if first:
            some = labels != NO_LABEL
            labels[some] = np.array([known[text] for text in numbers])[labels[some]]
        return given, labels, classes

    def rows(self) -> Iterator[tuple[int, dict[str, Any], list[int]]]:
        """Yield the number and columns of each row, and the positions of its records."""
        missing, examples = 0, list[str]()
        is_lines = self._listing.suffix.lower() == ".txt"
        for item in read_lines(self._listing) if is_lines else read_rows(self._listing):
            if isinstance(item, Problem):
                self._fail(f"{self.where}, {item.name}", item.reason)
            number, row = item
            where = f"{self.where}, row {number}"
            name = next((row[column] for column in _NAME_COLUMNS if row.get(column) not in (None, "")), None)
            if name is not None and not isinstance(name, str):
                self._fail(where, f"a name must be a text, got {short_repr(name, 50)}")
            if row.get("index") not in (None, ""):
                found = [self._checked_index(row["index"], name, where)]
            elif name is None:
                self._fail(where, f"has no value in a column called {' or '.join(_NAME_COLUMNS)} or index")
            else:
                found = self._names.find(name) or self._names.find(posixpath.normpath(name))
                missing += not found
                examples += [name] if not found and missing <= _EXAMPLES else []
            yield number, row, found
        if missing:
            shown = ", ".join(map(short_repr, examples)) + ", …" * (missing > _EXAMPLES)
            stores = " or ".join(store.place for store in self._names.stores)
            rows = f"{missing:,} row{' has' if missing == 1 else 's have'}"
            what = f"{self.where}: {rows} no record in {stores}: {shown}"
            if self._must_exist:
                raise SourceError(f"{what}; remove these rows, or add the store that contains these records")
            warnings.warn(what, UserWarning, stacklevel=7)

    def _checked_index(self, index: Any, name: str | None, where: str) -> int:
        """Return the index in a row. Raise an error if the record has another name than the row."""
        store = self._names.stores[0]
        if isinstance(index, str) and index.isdecimal() and len(index) <= _MAX_DIGITS:
            index = int(index)
        if type(index) is not int or not 0 <= index < len(store):
            self._fail(where, f"{store.place} has no record {short_repr(index, 50)}")
        if name not in (None, self._names.name(index)):
            is_named = f"record {index} of {store.place} is {self._names.name(index)!r}, not {short_repr(name)}"
            self._fail(where, f"{is_named}: the listing belongs to another store")
        return index

    def _fail(self, where: str, what: str) -> NoReturn:
        raise SourceError(f"{where}: {what}")
