"""Find the records that match a query, in the columns of the store."""

from __future__ import annotations

import difflib
import operator
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import DamagedRecordError, OptionError
from dbloader.records.columns import CHUNK, names_with
from dbloader.stores.mongo.store import MongoStore
from dbloader.viewing.cache import LRUCache
from dbloader.viewing.columns import Columns, blocks, find_names
from dbloader.viewing.query import EVENTS, SIZES, parse, query_error
from dbloader.viewing.reports import ConversionReport

if TYPE_CHECKING:
    from dbloader.stores.base import Store
    from dbloader.viewing.columns import Array
    from dbloader.viewing.query import Word

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_MOST_BYTES = 64_000_000  # of kept selections. A selection of ten million records has up to 40 MB
_SECONDS = 2.0  # for reading records
_AT_ONCE = 4096  # records that are read before the clock is read again


class Selection(NamedTuple):
    """Some records of a store.

    Attributes:
        indices: Indices of the records, ascending: a range if it is all records, otherwise an array of uint32 or int64,
            shape (records,).
        first: The number of records of the store that were searched, from the first; None if all were.
    """

    indices: Any
    first: int | None = None


class Selections:
    """Evaluates queries of a store, and keeps the last results. Threads may share it.

    Args:
        store: The store.
        seconds: Time for a query that must read records, because no column has their formats.

    Attributes:
        columns: The columns of the store.
        counts: The last results of ``summary.count``.
        report: The report of the conversion.
    """

    def __init__(self, store: Store, *, seconds: float = _SECONDS) -> None:
        self.store = store
        self.columns = Columns(store)
        self.report = ConversionReport(store)
        self._seconds = seconds
        self._kept = LRUCache[Selection](_MOST_BYTES, lambda found: 1_000 + getattr(found.indices, "nbytes", 0))
        self.counts = LRUCache[dict[str, Any]](_MOST_BYTES, lambda counts: 10_000 + 200 * len(counts["labels"]))

    def select(self, text: str) -> Selection:
        """Return the records that match all words of a query.

        Raises:
            OptionError: The text is no query, or names a class, format or event that the store does not have.
        """
        return self._kept.get(text.strip(), lambda: self._evaluate(parse(text)))

    @cached_property
    def events(self) -> dict[str, Array]:
        """Indices of the records that the conversion's report names, by event: int64, shape (records,), ascending."""
        events: dict[str, set[str]] = {}
        for line in self.store.events():
            events.setdefault(line["name"], set()).add(line["event"])
        found: dict[str, list[int]] = {event: [] for some in events.values() for event in some}
        for index, name in find_names(self.store, events):
            for event in events[name]:
                found[event].append(index)
        return {event: np.array(indices, np.int64) for event, indices in found.items()}

    def position(self, text: str, index: int) -> int | None:
        """Return the position in a selection of the first record with at least this index; None if there is none."""
        indices = self.select(text).indices
        found = min(max(index, 0), len(self.store))
        if not isinstance(indices, range):
            found = int(indices.searchsorted(indices.dtype.type(found)))
        return found if found < len(indices) else None

    def neighbor(self, text: str, position: int, *, forward: bool) -> int | None:
        """Return where the next, or previous, run of records with another label begins; None if there is none.

        Raises:
            OptionError: The selection has no such position.
        """
        indices, labels = self.select(text).indices, self.columns.get("label")
        if not 0 <= position < len(indices):
            raise OptionError(f"no position {position} in the selection, which has {len(indices):,} records")

        def first_other(step: int, start: int) -> int | None:
            part = slice(start, None, step)
            there = labels[part] if isinstance(indices, range) else labels[indices[part]]
            others = there != there[0]
            return start + step * int(others.argmax()) if others.any() else None

        if forward:
            return first_other(1, position)
        last = first_other(-1, position)
        before = None if last is None else first_other(-1, last)
        return None if last is None else 0 if before is None else before + 1

    def _evaluate(self, words: list[Word]) -> Selection:
        length = len(self.store)
        if not words:
            return Selection(range(length))
        keep = np.ones(length, bool)
        for word in words:
            if word.key not in ("name", "format"):
                keep &= self._holds(word) != word.negated
        self._keep_named(keep, [word for word in words if word.key == "name"])
        first = self._keep_formats(keep, [word for word in words if word.key == "format"])
        if keep.all():
            return Selection(range(length))
        indices = np.empty(np.count_nonzero(keep), np.promote_types(np.uint32, np.min_scalar_type(length)))
        stop = 0
        for part in blocks(length):
            found = np.flatnonzero(keep[part])
            indices[stop : (stop := stop + len(found))] = found + part.start
        return Selection(indices, first)

    def _holds(self, word: Word) -> Array:
        """Return a mask of the records that match a word: bool, shape (records,)."""
        holds = np.zeros(len(self.store), bool)
        if word.key in SIZES:
            for part in blocks(len(holds)):
                values = self.columns.values(word.key, part)
                # A record of unknown size, which is 0 here, matches no comparison.
                holds[part] = _COMPARE[word.sign](values, word.value) & (values > 0)
        elif word.key == "index":
            for indices in word.value:
                holds[indices.start : indices.stop] = True
        elif word.key == "event":
            holds[self._indices_with(word)] = True
        else:
            labels = self.columns.get("label")
            unlabelled = np.iinfo(labels.dtype).min
            wanted = self._labels_of(word) if word.key == "class" else [word.value]
            for label in wanted:
                holds |= (labels == unlabelled) if label is None else (labels == label) & (labels != unlabelled)
        return holds

    def _indices_with(self, word: Word) -> Any:
        found = self.events
        if word.value not in (*found, *EVENTS):
            what = f"events are {', '.join(found)}" if found else "the report has none"
            raise query_error(word.position, f"no record has the event {short_repr(word.value, 50)}; {what}")
        return found.get(word.value, [])

    def _labels_of(self, word: Word) -> list[int]:
        classes = self.store.manifest.classes
        labels = [label for label, name in enumerate(classes) if name == word.value]
        if not labels:
            close = difflib.get_close_matches(word.value, classes[:10_000], 3) or classes[:3]
            known = f"classes are {', '.join(map(short_repr, close))}{', …' * (len(classes) > len(close))}"
            remedy = known if classes else "the store has no class names: ask for a label, such as label:3"
            raise query_error(word.position, f"no class is called {short_repr(word.value, 50)}; {remedy}")
        return labels

    def _keep_named(self, keep: Array, words: list[Word]) -> None:
        """Clear the mask for records whose names do not match all words."""
        if not words:
            return
        parts = [(word.value.encode("utf-8", "surrogatepass"), word.negated) for word in words]
        for number, chunk in enumerate(self.store.open_handle().chunks("name")):
            here = keep[number * CHUNK : (number + 1) * CHUNK]
            for part, negated in parts if here.any() else ():
                here &= names_with(chunk, part) != negated

    def _keep_formats(self, keep: Array, words: list[Word]) -> int | None:
        """Clear the mask for records of other formats, and return how many records were searched; None for all."""
        unsure: list[tuple[str, bool]] = []
        known = self.store.manifest.formats
        for word in words:
            wanted = next((name for name in known if name.lower() == word.value.lower()), None)
            if wanted is None:
                what = f"formats are {', '.join(known)}" if known else "no record has one"
                raise query_error(word.position, f"no record has the format {short_repr(word.value, 50)}; {what}")
            if known[wanted] < len(keep):
                unsure.append((wanted, word.negated))
            elif word.negated:
                keep[:] = False
        deadline = time.monotonic() + self._seconds
        candidates: Array = np.flatnonzero(keep) if unsure else np.zeros(0, np.int64)
        for start in range(0, len(candidates), _AT_ONCE):
            part = candidates[start : start + _AT_ONCE]
            if start and time.monotonic() > deadline:
                keep[part[0] :] = False
                return int(part[0])
            for wanted, negated in unsure:
                keep[part] &= self._have_format(part, wanted) != negated
        return None

    def _have_format(self, indices: Array, wanted: str) -> Array:
        """Return a mask of the records that have a format: bool, shape (indices,). A damaged record has none."""
        if isinstance(self.store, MongoStore):  # borrow() would fetch the images, too
            query = {"_id": {"$in": indices.tolist()}, "format": wanted}
            return np.isin(indices, self.store.open_handle().find_indices(query))
        self.store.prefetch(indices.tolist())
        try:
            with self.store.borrow(indices.tolist()) as records:
                return np.array([record.format == wanted for record in records])
        except DamagedRecordError:
            if len(indices) == 1:
                return np.zeros(1, bool)
            return np.concatenate([self._have_format(half, wanted) for half in np.array_split(indices, 2)])
