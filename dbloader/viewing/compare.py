"""Two stores side by side: their classes and sizes, and what is in both; of one store, what is in it twice."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.conversion.fingerprints import content_hash, read_each
from dbloader.errors import DamagedRecordError
from dbloader.viewing.facts import histogram
from dbloader.viewing.query import SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.viewing.columns import Array
    from dbloader.viewing.selection import Selections

_MOST_CLASSES = 2000  # that are listed
_MOST_PAIRS = 500
_MOST_NAMES = 100_000
_MOST_BYTES = 8 * 2**30  # of images that are read: minutes
_AT_ONCE = 32
_SECONDS = 0.3  # of work for a request


class Comparison:
    """Compares one or two stores. Threads may share it.

    What takes long is done in steps, some with each call, and only once: nothing runs while nobody asks.
    """

    def __init__(self, selections: Sequence[Selections]) -> None:
        self._selections = selections
        self._lock = threading.Lock()
        self._result: dict[str, Any] = {}
        self._steps = self._compare()

    def look(self) -> dict[str, Any]:
        """Go on with the comparison, and return how far it is.

        ``classes``: name (or label) and the records of each store, the most frequent first; at most 2,000 of
        ``class_count``. ``histograms``: ``edges``, and the counts of each store. ``names``: records of the last store
        whose name is in the other; ``names_of`` only so many were looked at (None: all). ``images``: records of the
        last store whose image, byte for byte, is in the other, or in the same one before; ``pairs``: the first 500,
        as (index in the first store, index in the last). ``done`` of ``total`` images were read, those of equal size;
        ``of`` all such images if there are more than are read. ``damaged``: records that cannot be read. ``finished``.
        """
        with self._lock:
            stop = time.monotonic() + _SECONDS
            try:
                while not self._result.get("finished") and time.monotonic() < stop:
                    next(self._steps, None)
            except BaseException:
                self._steps = self._compare()  # the server of the store may answer next time
                raise
            return {**self._result, "pairs": [*self._result.get("pairs", ())]}

    def _compare(self) -> Iterator[None]:
        result = self._result
        result.update(names=0, names_of=None, images=0, pairs=[], done=0, total=0, of=0, damaged=0, finished=False)
        self._compare_classes()
        chosen = [(one.columns, range(len(one.store))) for one in self._selections]
        result["histograms"] = {what: histogram(what, chosen) for what in SIZES}
        yield
        if len(self._selections) > 1:
            yield from self._compare_names()
        yield from self._compare_images()
        result["finished"] = True

    def _compare_classes(self) -> None:
        counts: dict[str, list[int]] = {}
        for number, one in enumerate(self._selections):
            manifest = one.store.manifest
            for label, count in (manifest.label_counts or {}).items():
                name = manifest.classes[label] if 0 <= label < len(manifest.classes) else str(label)
                counts.setdefault(name, [0] * len(self._selections))[number] += count
        rows = sorted(counts.items(), key=lambda row: (-sum(row[1]), row[0]))
        self._result.update(class_count=len(rows), classes=[[name, *row] for name, row in rows[:_MOST_CLASSES]])

    def _compare_names(self) -> Iterator[None]:
        one, two = (each.store.column("name_hash") for each in self._selections)
        order = np.argsort(one, kind="stable")
        found = np.flatnonzero(np.isin(two, one) & (two > 0))
        if len(found) > _MOST_NAMES:
            self._result["names_of"] = _MOST_NAMES
        for index in found[:_MOST_NAMES].tolist():
            first, end = (int(np.searchsorted(one, two[index], side, sorter=order)) for side in ("left", "right"))
            name = self._selections[1].columns.name(index)
            self._result["names"] += any(self._selections[0].columns.name(int(i)) == name for i in order[first:end])
            yield

    def _compare_images(self) -> Iterator[None]:
        result, keys = self._result, [_size_keys(one) for one in self._selections]
        if len(keys) > 1:
            shared = np.intersect1d(keys[0], keys[1])
        else:
            values, counts = np.unique(keys[0], return_counts=True)
            shared = values[counts > 1]
        found = [np.flatnonzero(np.isin(each, shared[shared > 0])) for each in keys]
        index = np.concatenate(found)
        store = np.repeat(np.arange(len(found)), [*map(len, found)])
        key = np.concatenate([each[some] for each, some in zip(keys, found, strict=True)])
        order = np.lexsort((index, store, key))
        nbytes = [one.columns.get("nbytes")[some] for one, some in zip(self._selections, found, strict=True)]
        fitting = int(np.searchsorted(np.cumsum(np.concatenate(nbytes)[order], dtype=np.int64), _MOST_BYTES, "right"))
        result.update(total=fitting, of=len(order))
        yield
        seen, size = dict[bytes, int](), 0
        for start in range(0, fitting, _AT_ONCE):
            part = order[start : min(start + _AT_ONCE, fitting)]
            for at, record in zip(part.tolist(), self._read(store[part], index[part]), strict=True):
                if isinstance(record, DamagedRecordError):
                    result["damaged"] += 1
                    continue
                if size != key[at]:
                    seen, size = {}, int(key[at])
                code = content_hash(record.image)
                if store[at] == 0 and code not in seen:
                    seen[code] = int(index[at])
                elif code in seen and store[at] == len(found) - 1:
                    result["images"] += 1
                    if len(result["pairs"]) < _MOST_PAIRS:
                        result["pairs"].append([seen[code], int(index[at])])
            result["done"] += len(part)
            yield

    def _read(self, store: Array, index: Array) -> Iterator[Any]:
        """Yield records of several stores, in their order; for damaged ones the error."""
        read = [
            iter(read_each(one.store, index[store == number].tolist())) for number, one in enumerate(self._selections)
        ]
        return (next(read[number]) for number in store.tolist())


def _size_keys(selections: Selections) -> Array:
    """Return a number for each record that those of the same bytes and sides share, 0 without an image: uint64."""
    nbytes, width, height = (selections.columns.get(name).astype(np.uint64) for name in ("nbytes", "width", "height"))
    return np.where(nbytes, nbytes | (width * np.uint64(0x9E3779B1) ^ height) << np.uint64(32), np.uint64(0))
