"""Find the records that match a query, in the columns of the store."""

from __future__ import annotations

import difflib
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.records.columns import CHUNK, NO_LABEL
from dbloader.records.names import names_with
from dbloader.viewing.cache import LRUCache
from dbloader.viewing.columns import Columns, blocks, find_names
from dbloader.viewing.query import EVENTS, SIZES, parse, query_error
from dbloader.viewing.reports import ConversionReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dbloader.stores.base import Store
    from dbloader.viewing.columns import Array
    from dbloader.viewing.joined import Joined
    from dbloader.viewing.query import Word

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_MOST_BYTES = 64_000_000  # of kept selections. A selection of ten million records has up to 40 MB
_MOST_HISTOGRAMS = 200


class Selections:
    """Evaluates queries of a store, and keeps the last results. Threads may share it.

    Attributes:
        columns: The columns of the store.
        counts: The last results of ``summary.count``.
        histograms: The last histograms of all records.
        orders: The last results of ``sorting.sort_records``.
        report: The report of the conversion.
    """

    def __init__(self, store: Store, joined: Mapping[str, Joined] | None = None) -> None:
        self.store = store
        self.columns = Columns(store, joined)
        self.report = ConversionReport(store)
        self._events = LRUCache[dict[str, Any]](math.inf, len)
        self._kept = LRUCache[Any](_MOST_BYTES, lambda indices: 1_000 + getattr(indices, "nbytes", 0))
        self.orders = LRUCache[Any](_MOST_BYTES, lambda indices: indices.nbytes)
        self.histograms = LRUCache[dict[str, Any]](_MOST_HISTOGRAMS, lambda _: 1)
        self.counts = LRUCache[dict[str, Any]](_MOST_BYTES, lambda counts: 10_000 + 200 * len(counts["labels"]))

    def select(self, text: str) -> Any:
        """Return the indices of the records that match all words of a query, ascending.

        The result is a range if all records match, otherwise an array of uint32 or int64, shape (records,).

        Raises:
            OptionError: A word is wrong, or names a class or event that the store does not have.
        """
        return self._kept.get(text.strip(), lambda: self._evaluate(parse(text, self.columns.kinds)))

    def events(self) -> dict[str, Array]:
        """Return the indices of the records with each event of the report: int64, shape (records,), ascending."""
        return self._events.get("", self._find_events)

    def _find_events(self) -> dict[str, Array]:
        events: dict[str, set[str]] = {}
        for line in self.store.events():
            events.setdefault(line["name"], set()).add(line["event"])
        found: dict[str, list[int]] = {event: [] for some in events.values() for event in some}
        for index, name in find_names(self.store, events):
            for event in events[name]:
                found[event].append(index)
        return {event: np.array(indices, np.int64) for event, indices in found.items()}

    def position(self, text: str, index: int) -> int | None:
        """Return the position in a selection of the first record with at least this index, or None."""
        indices = self.select(text)
        found = min(max(index, 0), len(self.store))
        if not isinstance(indices, range):
            found = int(indices.searchsorted(indices.dtype.type(found)))
        return found if found < len(indices) else None

    def _evaluate(self, words: list[Word]) -> Any:
        length = len(self.store)
        if not words:
            return range(length)
        keep = np.ones(length, bool)
        for word in words:
            if word.key != "name":
                keep &= self._holds(word) != word.negated
        self._keep_named(keep, [word for word in words if word.key == "name"])
        if keep.all():
            return range(length)
        indices = np.empty(np.count_nonzero(keep), np.promote_types(np.uint32, np.min_scalar_type(length)))
        stop = 0
        for part in blocks(length):
            found = np.flatnonzero(keep[part])
            indices[stop : (stop := stop + len(found))] = found + part.start
        return indices

    def _holds(self, word: Word) -> Array:
        """Return a mask of the records that match a word: bool, shape (records,)."""
        holds: Array = np.zeros(len(self.store), bool)
        if word.key == "or":
            for each in word.value:
                if each.key == "name":
                    self._keep_named(here := np.ones_like(holds), [each])
                else:
                    here = self._holds(each) ^ each.negated
                holds |= here
        elif isinstance(word.value, str) and word.key in self.columns.joined:
            texts, wanted = self.columns.joined[word.key].texts, word.value.casefold()
            fits = np.array([wanted in text.casefold() if word.sign == "~" else text == word.value for text in texts])
            for part in blocks(len(holds) if texts else 0):
                values, known = self.columns.known(word.key, part)
                holds[part] = known & fits[values * known]
        elif word.key in SIZES or word.key in self.columns.joined:
            for part in blocks(len(holds)):
                values, known = self.columns.known(word.key, part)
                holds[part] = known & _COMPARE[word.sign](values, word.value)
        elif word.key == "index":
            for indices in word.value:
                holds[indices.start : indices.stop] = True
        elif word.key == "event":
            holds[self._indices_with(word)] = True
        else:
            for label in self._labels_of(word) if word.key == "class" else [word.value]:
                holds |= self.columns.get("label") == (NO_LABEL if label is None else label)
        return holds

    def _indices_with(self, word: Word) -> Any:
        found = self.events()
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
