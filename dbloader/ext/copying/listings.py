"""Read listings of records in one or more stores: names to select or drop, labels, and marks.

A ``.txt`` has a name on each line. Any other listing has a column ``name``, ``path`` or ``index``. A position is the
number of a record among the records of all stores, in the order of the stores.

Marks are people's decisions about records. The viewer writes them into a ``.jsonl`` beside the store. Each line has the
``index`` and the ``name`` of a record, and the decisions: ``"drop": true``, a ``label``, or ``tags``. If the record at
the index has another name, the marks belong to another store, and reading them raises an error.
"""

from __future__ import annotations

import posixpath
import warnings
from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.labels import number_labels
from dbloader.ext.sources.listing_columns import LABEL_COLUMNS, PATH_COLUMNS
from dbloader.ext.sources.listing_rows import is_text, read_lines, read_rows
from dbloader.records.columns import NO_LABEL, name_hash
from dbloader.sources.base import Problem, readable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from dbloader.records.names import Names
    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

MARKS = ("drop", "label", "tags")
"""The decisions about a record in a file of marks."""

MOST_LETTERS = 500
"""Most letters that all tags of a record may have together. The limit ensures that a column can hold all tags."""

_NAME_COLUMNS = ("name", *PATH_COLUMNS)
_EXAMPLES = 3
_MAX_DIGITS = 20  # most digits of an index; int() refuses more than 4,300


class Labels(NamedTuple):
    """Labels of some records.

    Attributes:
        where: The listing that gives the labels, for messages.
        given: Mask of the records with a label: bool, shape (records,).
        labels: int64, shape (records,).
        classes: Class names; () if the labels are integers.
    """

    where: str
    given: Array
    labels: Array
    classes: tuple[str, ...]


class RecordNames:
    """Names of the records of several stores, loaded at first use. A name takes 16 bytes plus its own length."""

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
        """Yield the name of each record if an earlier store has this name too. Ignore records outside of ``keep``."""
        hashes = np.where(keep, self._hashes, 0)  # 0 is also the hash of unnamed records, which are ignored
        values, counts = np.unique(hashes, return_counts=True)
        for position in np.flatnonzero(np.isin(hashes, values[(counts > 1) & (values > 0)])).tolist():
            name = self.name(position)
            first = next(other for other in self.find(name) if keep[other])
            if first < self.starts[self.store_of(position)]:
                yield name


def find_rows(
    listing: str | os.PathLike[str], names: RecordNames, *, must_exist: bool = True
) -> Iterator[tuple[str, dict[str, Any], list[int]]]:
    """Yield (place for messages, columns, positions of records) for each row of a listing.

    If records are missing, raise an error after the last row. Without ``must_exist``, only warn.
    """
    path, file = Path(listing), readable(listing)
    missing, examples = 0, list[str]()
    for item in read_lines(path) if path.suffix.lower() == ".txt" else read_rows(path):
        if isinstance(item, Problem):
            raise SourceError(f"{file}, {item.name}: {item.reason}")
        number, row = item
        where = f"{file}, row {number}"
        name = next((row[column] for column in _NAME_COLUMNS if row.get(column) not in (None, "")), None)
        if name is not None and not isinstance(name, str):
            raise SourceError(f"{where}: a name must be a text, got {short_repr(name, 50)}")
        if row.get("index") not in (None, ""):
            found = _find_index(row["index"], name, where, names)
        elif name is None:
            raise SourceError(f"{where}: has no value in a column called {' or '.join(_NAME_COLUMNS)} or index")
        else:
            found = names.find(name) or names.find(posixpath.normpath(name))
            missing += not found
            examples += [name] if not found and missing <= _EXAMPLES else []
        yield where, row, found
    if missing:
        shown = ", ".join(map(short_repr, examples)) + ", …" * (missing > _EXAMPLES)
        stores = " or ".join(store.place for store in names.stores)
        what = f"{file}: {missing:,} row{' has' if missing == 1 else 's have'} no record in {stores}: {shown}"
        if must_exist:
            raise SourceError(f"{what}; remove these rows, or add the store that contains these records")
        warnings.warn(what, UserWarning, stacklevel=6)  # shows the line that calls copy_store or view


def _find_index(index: Any, name: str | None, where: str, names: RecordNames) -> list[int]:
    """Return the positions of the records that have the index and the name in a row.

    If there are several stores, the row must have a name, because each store has a record with this index.
    """
    places = " or ".join(store.place for store in names.stores)
    if name is None and len(names.stores) > 1:
        raise SourceError(f"{where}: has an index but no name, so it may be a record of {places}: add a column name")
    if isinstance(index, str) and index.isdecimal() and len(index) <= _MAX_DIGITS:
        index = int(index)
    found = [
        start + index
        for start, store in zip(names.starts, names.stores, strict=False)
        if type(index) is int and 0 <= index < len(store)
    ]
    if not found:
        raise SourceError(f"{where}: {places} has no record {short_repr(index, 50)}")
    named = [position for position in found if name in (None, names.name(position))]
    if not named:
        is_named = f"record {index} of {places} is {names.name(found[0])!r}, not {short_repr(name)}"
        raise SourceError(f"{where}: {is_named}: the listing belongs to another store")
    return named


def read_labels(listing: str | os.PathLike[str], names: RecordNames) -> Labels:
    """Return the labels in a listing."""

    def rows() -> Iterator[tuple[str, Any, list[int]]]:
        for where, row, positions in find_rows(listing, names):
            column = next((column for column in LABEL_COLUMNS if column in row), None)
            if column is None:
                raise SourceError(f"{where}: has no column called {' or '.join(LABEL_COLUMNS)}")
            yield where.rpartition(", ")[2], row[column], positions

    return join_labels(rows(), names, readable(listing), may_be_integers=is_text(Path(listing)))


def join_labels(
    rows: Iterable[tuple[str, Any, list[int]]], names: RecordNames, where: str, *, may_be_integers: bool = False
) -> Labels:
    """Return the labels in some rows.

    Args:
        rows: For each row: (its name in messages, its label, the positions of its records).
        names: The names of the records.
        where: The place of all rows, for messages.
        may_be_integers: Whether to read the labels as integers if all of them are texts such as "3".
    """
    given = np.zeros(names.starts[-1], bool)
    labels = np.full(len(given), NO_LABEL)
    first: dict[str, str] = {}  # {label that is a text: first row with this label}
    numbers: dict[str, int] = {}
    integer = ""
    for row, label, positions in rows:
        value = NO_LABEL
        if isinstance(label, str) and label:
            first.setdefault(label, row)
            value = numbers.setdefault(label, len(numbers))
        elif type(label) is int and abs(label) < 2**63:
            value, integer = label, integer or row
        elif label not in (None, ""):
            raise SourceError(
                f"{where}, {row}: a label must be a 64-bit integer, a name or null, got {short_repr(label, 50)}"
            )
        if np.any(given[positions] & (labels[positions] != value)):
            raise SourceError(f"{where}, {row}: gives a record another label than an earlier row")
        given[positions], labels[positions] = True, value
    if first and integer:
        both = f"the label of {integer} is an integer, but the label of {next(iter(first.values()))} is a name"
        raise SourceError(f"{where}: {both}: use integers in all rows or names in all rows")
    classes, known = number_labels(first, where, may_be_integers=may_be_integers)
    if first:
        some = labels != NO_LABEL
        labels[some] = np.array([known[text] for text in numbers])[labels[some]]
    return Labels(where, given, labels, classes)


def read_marks(file: str | os.PathLike[str], names: RecordNames) -> dict[int, dict[str, Any]]:
    """Return the decisions about each marked record, by its position. Raise SourceError for a mistake in the file."""
    marks: dict[int, dict[str, Any]] = {}
    for where, row, positions in find_rows(file, names):
        if wrong := _why_not(row):
            raise SourceError(f"{where}: {wrong}")
        if not row.get("name") and any(map(names.name, positions)):
            raise SourceError(f"{where}: has no name: add it, to show that the marks belong to this store")
        if not marks.keys().isdisjoint(positions):
            raise SourceError(f"{where}: an earlier row has the same record; keep one row for each record")
        marks |= {position: {key: row[key] for key in MARKS if key in row} for position in positions}
    return marks


def _why_not(row: dict[str, Any]) -> str | None:
    """Return why a row cannot be a mark; None if it can."""
    if unknown := row.keys() - {"index", "name", *MARKS}:
        return f"a mark may have only index, name, {', '.join(MARKS)}, got {short_repr(min(unknown), 50)}"
    if not isinstance(row.get("drop", False), bool):
        return f"drop must be true or false, got {short_repr(row['drop'], 50)}"
    label = row.get("label")
    if not isinstance(label, (str, int, type(None))) or isinstance(label, bool):
        return f"a label must be an integer, a name or null, got {short_repr(label, 50)}"
    return why_not_tags(row.get("tags", ["a"]))


def why_not_tags(tags: Any) -> str | None:
    """Return why a value cannot be the tags of a record; None if it can."""
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        return f'tags must be a list of texts, such as ["blurry"], got {short_repr(tags, 50)}'
    letters = len(", ".join(tags))
    return f"its tags have {letters:,} letters, but at most {MOST_LETTERS} fit" if letters > MOST_LETTERS else None


def join_marks(files: Sequence[str | os.PathLike[str]], names: RecordNames) -> tuple[list[int], list[Labels]]:
    """Return (positions of dropped records, labels of each file that has labels) from files of marks.

    Raises:
        SourceError: Two files disagree about a record, or a file has a mistake.
    """
    joined: dict[int, tuple[str, dict[str, Any], str]] = {}
    for file in files:
        for position, mark in read_marks(file, names).items():
            if mark.get("drop") or "label" in mark:
                what = "drop" if mark.get("drop") else f"label {short_repr(mark['label'], 50)}"
                before, first, other = joined.setdefault(position, (what, mark, readable(file)))
                if before != what or (what != "drop" and first["label"] != mark["label"]):
                    record = f"record {position} ({names.name(position)})"
                    raise SourceError(f"{other} and {readable(file)} disagree about {record}: {before} or {what}")
    drops = [position for position, (what, _, _) in joined.items() if what == "drop"]
    labels: dict[str, list[tuple[str, Any, list[int]]]] = {}  # {file: rows}; one file may have names, another integers
    for at, (_, mark, file) in joined.items():
        if "label" in mark:
            labels.setdefault(file, []).append((f"record {at}", mark["label"], [at]))
    return drops, [join_labels(rows, names, file) for file, rows in labels.items()]
