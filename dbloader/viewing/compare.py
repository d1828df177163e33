"""Two stores side by side: their classes and sizes, and what is in both."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.checking.fingerprints import content_hash, read_each
from dbloader.errors import DamagedRecordError, OptionError
from dbloader.viewing.columns import blocks
from dbloader.viewing.facts import histogram
from dbloader.viewing.query import SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.viewing.columns import Array, Columns
    from dbloader.viewing.selection import Selections

_MOST_CLASSES = 2000  # that are listed
_MOST_PAIRS = 500
_MOST_IMAGES = 2**20  # of each store, whose hashes are kept in memory
_MOST_BYTES = 8 * 2**30  # of images that are read: minutes
_AT_ONCE = 32
_SECONDS = 0.3  # of work for a request


class Comparison:
    """Compares two stores. Threads may share it.

    Long work is done in steps, a few with each call, and each step once. So nothing runs unless a page asks.
    """

    def __init__(self, selections: Sequence[Selections]) -> None:
        self._selections = selections
        self._lock = threading.Lock()
        self._result: dict[str, Any] = {}
        self._steps = self._compare()

    def look(self) -> dict[str, Any]:
        """Go on with the comparison, and return how far it is.

        ``classes``: name (or label) and the records of each store, the most frequent first; at most 2,000 of
        ``class_count``. ``histograms``: ``edges``, and the counts of each store. ``images``: records of the second
        store whose image, byte for byte, is in the first; ``pairs``: the first 500, as (index in the first store, index
        in the second). ``done`` of ``total`` images were read, those of equal size;
        ``more``: whether there are more of these. ``damaged``: records that cannot be read. ``finished``.

        Raises:
            OptionError: There is one store.
        """
        if len(self._selections) < 2:
            raise OptionError("one store is shown: name two to compare them, as in dbloader view train.lmdb val.lmdb")
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
        result.update(images=0, pairs=[], done=0, total=0, more=False, damaged=0, finished=False)
        self._compare_classes()
        chosen = [(one.columns, range(len(one.store))) for one in self._selections]
        result["histograms"] = {what: histogram(what, chosen) for what in SIZES}
        yield
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

    def _compare_images(self) -> Iterator[None]:
        result, columns = self._result, [one.columns for one in self._selections]
        sizes = np.zeros(2**24, bool)  # by their hash
        for block in blocks(len(columns[0].store)):
            sizes[_hash(_size_keys(columns[0], block))] = True
        second, more_second = _first_of(columns[1], sizes)
        sizes[:] = False
        sizes[_hash(_size_keys(columns[1], second))] = True
        first, more_first = _first_of(columns[0], sizes)
        found = [first, second]
        keys = [_size_keys(each, some) for each, some in zip(columns, found, strict=True)]
        kept = [np.isin(keys[0], keys[1]), np.isin(keys[1], keys[0])]
        found = [some[here] for some, here in zip(found, kept, strict=True)]
        index, store = np.concatenate(found), np.repeat([0, 1], [*map(len, found)])
        key = np.concatenate([each[here] for each, here in zip(keys, kept, strict=True)])
        order = np.lexsort((index, store, key))
        nbytes = [each.get("nbytes")[some] for each, some in zip(columns, found, strict=True)]
        fitting = int(np.searchsorted(np.cumsum(np.concatenate(nbytes)[order], dtype=np.int64), _MOST_BYTES, "right"))
        result.update(total=fitting, more=more_first or more_second or fitting < len(order))
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
                if store[at] == 0:
                    seen.setdefault(code, int(index[at]))
                elif code in seen:
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


def _size_keys(columns: Columns, part: Any) -> Array:
    """Return a number that records of as many bytes and the same sides share: uint64, 0 without an image."""
    nbytes, width, height = (columns.get(name)[part].astype(np.uint64) for name in ("nbytes", "width", "height"))
    return np.where(nbytes, nbytes | (width * np.uint64(0x9E3779B1) ^ height) << np.uint64(32), np.uint64(0))


def _hash(keys: Array) -> Array:
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)


def _first_of(columns: Columns, sizes: Array) -> tuple[Array, bool]:
    """Return the first records with one of some sizes, by their hashes, and whether there are more."""
    found = np.zeros(0, np.int64)
    for part in blocks(len(columns.store)):
        keys = _size_keys(columns, part)
        here = part.start + np.flatnonzero(sizes[_hash(keys)] & (keys > 0))
        found = np.concatenate([found, here])[: _MOST_IMAGES + 1]
    return found[:_MOST_IMAGES], len(found) > _MOST_IMAGES
