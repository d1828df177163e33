"""The columns of a store, packed narrowly in memory, and a cache of recent results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from dbloader.errors import DamagedStoreError
from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL, name_at, name_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

T = TypeVar("T")

BLOCK = 2**20  # records to compute at a time. Temporary arrays then stay small
_NAME_BYTES = 2**24
_MOST_CHUNKS = 8  # to read for a few records; for more, the whole column is read


class Recent(Generic[T]):
    """A cache of the most recent results, up to a number of bytes. Equal calls at the same time do the work once.

    The last result is kept whatever its size is. ``nbytes`` is the size of all kept results.
    """

    def __init__(self, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most_bytes, self._size, self.nbytes = most_bytes, size, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, Future[T]] = OrderedDict()
        self._sizes: dict[Any, int] = {}  # of the results that are finished

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return the kept result for a key, or the result of ``make``. An error is not kept."""
        with self._lock:
            future = self._kept.get(key)
            is_new = future is None
            future = self._kept.setdefault(key, future or Future())
            self._kept.move_to_end(key)
        if is_new:
            try:
                made = make()
            except BaseException as error:
                with self._lock:
                    del self._kept[key]
                future.set_exception(error)
                raise
            future.set_result(made)
            with self._lock:
                self._sizes[key] = self._size(made)
                self.nbytes += self._sizes[key]
                while self.nbytes > self._most_bytes and len(self._sizes) > 1:
                    oldest = next(one for one in self._kept if one in self._sizes)
                    self.nbytes -= self._sizes.pop(oldest)
                    del self._kept[oldest]
        return future.result()

    def has(self, key: object) -> bool:
        """Return whether the result for a key is kept."""
        return key in self._sizes


class Columns:
    """The columns of a store, each read at its first use. Threads may share it.

    Labels have the narrowest dtype for the store's labels, and its lowest value for no label. Ten million records of a
    thousand classes take 100 MB instead of 240.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._columns = Recent[Any](2**63, len)
        self._names = Recent[Any](_NAME_BYTES, len)

    def get(self, column: str) -> Array:
        """Return a column: ``"label"``, ``"width"``, ``"height"`` or ``"nbytes"``."""
        values: Array = self._columns.get(column, lambda: self._read(column))
        return values

    def some(self, column: str, indices: Array) -> list[int | None]:
        """Return the values of a few records, None for no label or size. It reads only a few chunks."""
        numbers, which = np.unique(indices // CHUNK, return_inverse=True)
        if not len(indices):
            return []
        if self._columns.has(column) or len(numbers) > _MOST_CHUNKS:
            values = self.get(column)[indices]
        else:
            chunks = (self.store.open_handle().chunk(column, number) for number in numbers.tolist())
            read = np.concatenate([np.frombuffer(chunk, DTYPES[column]) for chunk in chunks])
            values = read[which * CHUNK + indices % CHUNK]
        missing = np.iinfo(values.dtype).min  # of unsigned ones 0
        return [None if value == missing else value for value in values.tolist()]

    def name(self, index: int) -> str:
        """Return the name of a record; "" without one."""
        number = index // CHUNK
        return name_at(self._names.get(number, lambda: self.store.open_handle().chunk("name", number)), index % CHUNK)

    def values(self, what: str, indices: Any) -> Array:
        """Return the width, height, aspect (width / height, float64) or bytes of some records; 0 if unknown.

        Args:
            what: ``"width"``, ``"height"``, ``"aspect"`` or ``"bytes"``.
            indices: A slice, or an array of integers.
        """
        if what != "aspect":
            values: Array = self.get("nbytes" if what == "bytes" else what)[indices]
            return values
        width, height = (self.get(side)[indices] for side in ("width", "height"))
        aspect = np.zeros(len(width))
        np.divide(width, height, out=aspect, where=height > 0)
        return aspect

    def _read(self, column: str) -> Array:
        handle = self.store.open_handle()
        dtype = self._dtype(column)
        unlabelled = np.iinfo(dtype).min
        values = np.empty(handle.manifest.length, dtype)
        for number, chunk in enumerate(handle.chunks(column)):
            part = np.frombuffer(chunk, DTYPES[column])
            if column == "label":
                part = np.where(part == NO_LABEL, unlabelled, part)
            here = values[number * CHUNK : (number + 1) * CHUNK]
            here[:] = part
            if not np.array_equal(here, part):
                what = f"its manifest does not know a {column} of the records {number * CHUNK:,} and following"
                raise DamagedStoreError(f"{self.store.place}: {what}; convert again")
        return values

    def _dtype(self, column: str) -> np.dtype[Any]:
        manifest = self.store.manifest
        if column == "nbytes":
            return np.dtype(np.uint32)  # a record has at most 2 GiB
        if column != "label":
            return np.min_scalar_type(max(getattr(manifest, column)))
        labels = [0, NO_LABEL + 1] if manifest.label_counts is None else [0, *manifest.label_counts]
        bounds = min(labels) - 1, max(labels)  # the lowest value is that of no label
        return np.result_type(np.int16, *(np.min_scalar_type(min(bound, ~bound)) for bound in bounds))


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of BLOCK records, from 0 to ``count``."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def find_names(store: Store, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and the name of each record that has one of some names, by a scan of the column ``name_hash``."""
    handle = store.open_handle()
    hashes = np.unique(np.array([name_hash(name.encode(errors="replace")) for name in names], np.uint32))
    may_be = np.zeros(2**16, bool)  # by the lower half of a hash: a table is 10 times as fast as a search
    may_be[hashes & 0xFFFF] = True
    for number, chunk in enumerate(handle.chunks("name_hash") if names else ()):
        here = np.frombuffer(chunk, DTYPES["name_hash"])
        some = np.flatnonzero(may_be[here & 0xFFFF])
        nearest = hashes[np.minimum(hashes.searchsorted(here[some]), len(hashes) - 1)]
        positions = some[nearest == here[some]].tolist()
        packed = handle.chunk("name", number) if positions else b""
        for position in positions:
            if (name := name_at(packed, position)) in names:
                yield number * CHUNK + position, name
