"""The columns of a store in memory, and the search for names in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL, name_hash
from dbloader.records.names import name_at
from dbloader.viewing.cache import LRUCache
from dbloader.viewing.query import SIZES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from dbloader.stores.base import Store
    from dbloader.viewing.joined import Joined

    Array = np.ndarray[Any, Any]

_BLOCK = 2**20  # records that are computed at a time, which keeps temporary arrays small
_NAME_BYTES = 2**24  # of kept chunks of names
_MOST_CHUNKS = 8  # that are read for a few records; for more, the whole column is read


class Columns:
    """The columns of a store. Each is read when it is first used, and then stays in memory. Threads may share it.

    Sizes have the narrowest dtype for their values: ten million records take 160 MB in place of 240.
    """

    def __init__(self, store: Store, joined: Mapping[str, Joined] | None = None) -> None:
        self.store, self.joined = store, joined or {}
        self._columns = LRUCache[Any](math.inf, len)
        self._names = LRUCache[Any](_NAME_BYTES, len)

    def get(self, column: str) -> Array:
        """Return a column: ``"label"``, ``"width"``, ``"height"`` or ``"nbytes"``."""
        values: Array = self._columns.get(column, lambda: self._read(column))
        return values

    def _read(self, column: str) -> Array:
        values: Array = self.store.column(column)
        return values if column == "label" else values.astype(np.min_scalar_type(values.max(initial=0)))

    def some(self, column: str, indices: Array) -> list[int | None]:
        """Return the values of a few records; None for no label or an unknown size. Few chunks are read."""
        numbers, which = np.unique(indices // CHUNK, return_inverse=True)
        if not len(indices):
            return []
        if column in self._columns or len(numbers) > _MOST_CHUNKS:
            values = self.get(column)[indices]
        else:
            chunks = (self.store.open_handle().chunk(column, number) for number in numbers.tolist())
            read = np.concatenate([np.frombuffer(chunk, DTYPES[column]) for chunk in chunks])
            values = read[which * CHUNK + indices % CHUNK]
        missing = NO_LABEL if column == "label" else 0
        return [None if value == missing else value for value in values.tolist()]

    def name(self, index: int) -> str:
        """Return the name of a record; "" if it has none."""
        number = index // CHUNK
        return name_at(self._names.get(number, lambda: self.store.open_handle().chunk("name", number)), index % CHUNK)

    @property
    def kinds(self) -> dict[str, str]:
        """The joined columns, and the kind of each."""
        return {name: column.kind for name, column in self.joined.items()}

    @property
    def sortable(self) -> tuple[str, ...]:
        """The columns that ``known`` takes."""
        return ("width", "height", "aspect", "bytes", "label", *self.kinds)

    def known(self, what: str, indices: Any) -> tuple[Array, Array]:
        """Return a column of ``sortable`` for some records, and whether each record has a value: two arrays.

        The aspect is width / height, float64. Joined columns have the values of ``Joined``.

        Args:
            what: Name of the column.
            indices: A slice, or an array of integers.
        """
        if what in SIZES:
            values = self._sizes(what, indices)
            return values, values > 0
        values = self.get("label")[indices] if what == "label" else self.joined[what].values[indices]
        return values, ~np.isnan(values) if values.dtype.kind == "f" else values != NO_LABEL

    def describe(self, index: int, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return some or all joined columns of a record; None for no value."""
        found = {}
        for name in self.joined if names is None else names:
            (value,), (known,) = self.known(name, slice(index, index + 1))
            found[name] = self.joined[name].show(value.item()) if known else None
        return found

    def _sizes(self, what: str, indices: Any) -> Array:
        if what != "aspect":
            values: Array = self.get("nbytes" if what == "bytes" else what)[indices]
            return values
        width, height = (self.get(side)[indices] for side in ("width", "height"))
        aspect = np.zeros(len(width))
        np.divide(width, height, out=aspect, where=height > 0)
        return aspect


def parts(indices: Any) -> Iterator[tuple[slice, Any]]:
    """Yield blocks of a selection: the positions in it, and the indices of the records, a slice or an array."""
    for part in blocks(len(indices)):
        yield part, part if isinstance(indices, range) else indices[part]


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of 2**20 records, which together are the records 0 to ``count``."""
    return (slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


def find_names(store: Store, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and name of each record that has one of some names. The column ``name_hash`` is scanned."""
    handle = store.open_handle()
    hashes = np.unique(np.array([name_hash(name.encode(errors="replace")) for name in names], np.uint32))
    may_be = np.zeros(2**16, bool)  # by the lower half of the hash: a table is 10 times faster than a search
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
