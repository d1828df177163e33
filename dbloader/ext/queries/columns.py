"""Read the columns of a store and keep them in memory, with columns from a user's table. Find records by name."""

from __future__ import annotations

import copy
import math
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.ext.queries.lru import LRUCache
from dbloader.ext.queries.parse import KEYS, SIZES
from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL, name_hash
from dbloader.records.field_columns import PREFIX, KindFinder, join_chunks, known_values, pack_values
from dbloader.records.names import Names, join_names, name_at, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from dbloader.records.field_columns import FieldColumn
    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

_BLOCK = 2**20  # number of records processed at a time, so temporary arrays stay small
_NAME_BYTES = 2**24  # bytes of the cache for chunks of names
_TEXT_BYTES = 2**23  # bytes of the cache for chunks of texts
_NO_TEXT = np.iinfo(np.int32).min
_MOST_CHUNKS = 8  # if values are in more chunks than this, the whole column is read


class Columns:
    """The columns of a store, in memory after their first use. Threads may share this object.

    Sizes and labels have the narrowest dtype for their values: ten million records take 100 MB instead of 320 MB.
    Only some chunks of names and texts stay in memory, because the captions of a million records take 80 MB.
    ``joined`` contains further columns by name: from a listing, the viewer's marks or a search for duplicates.
    """

    def __init__(self, store: Store, joined: Mapping[str, FieldColumn] | None = None) -> None:
        self.store, self.joined = store, joined or {}
        self._columns = LRUCache[Any](math.inf, len)
        self._names = LRUCache[Any](_NAME_BYTES, len)
        self._texts = LRUCache[Names](_TEXT_BYTES, lambda texts: texts.data.nbytes + texts.offsets.nbytes)
        self._joined_texts = LRUCache[Any](math.inf, len)

    def with_joined(self, joined: Mapping[str, FieldColumn]) -> Columns:
        """Return a copy with other joined columns. The copy and the original share the columns of the store."""
        other = copy.copy(self)
        other.joined, other._joined_texts = joined, LRUCache(math.inf, len)
        return other

    def get(self, column: str) -> Array:
        """Return a column: ``"label"``, ``"width"``, ``"height"`` or ``"nbytes"``.

        Labels are int16, int32 or int64. The least value of this dtype means no label.
        """
        values: Array = self._columns.get(column, lambda: self._read(column))
        return values

    def _read(self, column: str) -> Array:
        values: Array = self.store.column(column)
        if column != "label":
            return values.astype(np.min_scalar_type(values.max(initial=0)))
        known = values != NO_LABEL
        least, greatest = values.min(where=known, initial=0), values.max(where=known, initial=0)
        for limits in (np.iinfo(np.int16), np.iinfo(np.int32)):
            if limits.min < least and greatest <= limits.max:
                values = values.astype(limits.dtype)
                values[~known] = limits.min
                break
        return values

    def values_of(self, column: str, indices: Array) -> list[int | None]:
        """Return the values of a column for some records; None for no label or an unknown size."""
        numbers, which = np.unique(indices // CHUNK, return_inverse=True)
        if not len(indices):
            return []
        if column in self._columns or len(numbers) > _MOST_CHUNKS:
            values = self.get(column)[indices]
        else:
            chunks = (self.store.open_handle().chunk(column, number) for number in numbers.tolist())
            read = np.concatenate([np.frombuffer(chunk, DTYPES[column]) for chunk in chunks])
            values = read[which * CHUNK + indices % CHUNK]
        known = known_values(values) if column == "label" else values > 0
        return [value if is_known else None for value, is_known in zip(values.tolist(), known.tolist(), strict=True)]

    def name(self, index: int) -> str:
        """Return the name of a record; "" if it has none."""
        number = index // CHUNK
        return name_at(self._names.get(number, lambda: self.store.open_handle().chunk("name", number)), index % CHUNK)

    def rows(self, indices: Any, columns: Collection[str]) -> Iterator[tuple[Any, ...]]:
        """Yield a tuple for each record: its index, its name, and its values in some columns (see ``values_of``).

        The indices must be ascending. A chunk of the store is read when its first row is needed.
        """
        for part, chosen in parts(indices):
            block = np.arange(part.start, part.stop) if isinstance(chosen, slice) else chosen.astype(np.int64)
            for of_chunk in np.split(block, np.flatnonzero(np.diff(block // CHUNK)) + 1):
                packed = names_in(self.store.open_handle().chunk("name", int(of_chunk[0]) // CHUNK))
                names = [packed[at].decode("utf-8", "backslashreplace") for at in (of_chunk % CHUNK).tolist()]
                values = [self.values_of(column, of_chunk) for column in columns]
                yield from zip(of_chunk.tolist(), names, *values, strict=True)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each extra field that has a column. A joined column hides a field of the same name.

        A field whose name means something else in queries, such as ``bytes``, has the key ``field.bytes``.
        """
        stored = self.store.manifest.columns.items()
        own = {PREFIX + name if name in KEYS else name: kind for name, kind in stored}
        return own | {name: column.kind for name, column in self.joined.items()}

    def _kind(self, name: str) -> str:
        name = name.removeprefix(PREFIX)
        return self.joined[name].kind if name in self.joined else self.store.manifest.columns.get(name, "")

    def field(self, name: str) -> FieldColumn:
        """Return the column of an extra field, or a joined column. ``field.`` may precede the name."""
        name = name.removeprefix(PREFIX)
        if name in self.joined:
            return self.joined[name]
        found: FieldColumn = self._columns.get(PREFIX + name, lambda: self.store.field_column(name))
        return found

    def block(self, name: str, number: int) -> Names:
        """Return the texts of a field in a chunk; "" for a missing text. The field ``"name"`` has the record names."""
        first = number * CHUNK
        if name == "name":
            return join_names([self.store.open_handle().chunk(name, number)], min(CHUNK, self._length - first))
        if (joined := self.joined.get(name := name.removeprefix(PREFIX))) is not None:
            return Names(joined.values.data, joined.values.offsets[first : first + CHUNK + 1])

        def read() -> Names:
            chunk = self.store.open_handle().chunk(PREFIX + name, number)
            texts: Names = join_chunks([chunk], "text", min(CHUNK, self._length - first)).values
            return texts

        return self._texts.get((name, number), read)

    def texts_at(self, name: str, indices: Array) -> list[str]:
        """Return the texts of some records in a field of texts. This reads the chunks in their order."""
        found, block = [""] * len(indices), (-1, Names(np.zeros(0, np.uint8), np.zeros(1, np.int64)))
        for at in np.argsort(indices, kind="stable").tolist():
            number, position = divmod(int(indices[at]), CHUNK)
            if number != block[0]:
                block = number, self.block(name, number)
            found[at] = block[1][position]
        return found

    def texts(self, name: str) -> tuple[Array, Sequence[str]]:
        """Return a field of texts as numbers: a number for each record, and the text of each number.

        The texts are sorted. The numbers are int32; the least int32 means no text. For a field of booleans, the numbers
        are uint8, and the texts are "false" and "true"; the number 2 means no value.
        """
        if self._kind(name) == "bool":
            return self.field(name).values, ("false", "true")
        numbers, firsts = self._sorted(name)
        return numbers, self.texts_at(name, firsts)

    def common(self, name: str, indices: Any, most: int) -> tuple[list[tuple[str, int]], int]:
        """Count the records at some indices by the value of a field of texts or booleans.

        Return at most ``most`` pairs (value, number of records), the most frequent first, and the number of different
        values in the store.
        """
        is_bool = self._kind(name) == "bool"
        numbers, firsts = (self.field(name).values, np.arange(2)) if is_bool else self._distinct(name)
        counts = np.zeros(len(firsts), np.int64)
        for _, here in parts(indices):
            some = numbers[here]
            counts += np.bincount(some[known_values(some)], minlength=len(firsts))
        chosen = np.sort(np.lexsort((firsts, -counts))[:most])
        texts = ["false", "true"] if is_bool else self.texts_at(name, firsts[chosen])
        found = zip(texts, counts[chosen].tolist(), strict=True)
        return sorted(found, key=lambda pair: (-pair[1], pair[0])), len(firsts)

    def _distinct(self, name: str) -> tuple[Array, Array]:
        """Give each different text of a field a number. Return (number of each record, one record of each number)."""
        return self._kept(name, "distinct", lambda: self._number(name))

    def _sorted(self, name: str) -> tuple[Array, Array]:
        """Return the same as ``_distinct``, but with numbers in the order of the texts."""

        def sort() -> tuple[Array, Array]:
            numbers, firsts = self._distinct(name)
            texts = self.texts_at(name, firsts)
            order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int32)
            ranks = np.empty(len(order) + 1, np.int32)
            ranks[order], ranks[-1] = np.arange(len(order)), _NO_TEXT
            return ranks[np.maximum(numbers, -1)], firsts[order]

        return self._kept(name, "sorted", sort)

    def _kept(self, name: str, what: str, make: Callable[[], Any]) -> tuple[Array, Array]:
        name = name.removeprefix(PREFIX)
        kept = self._joined_texts if name in self.joined else self._columns
        found: tuple[Array, Array] = kept.get(f"{what} texts of {name}", make)
        return found

    def _number(self, name: str) -> tuple[Array, Array]:
        # Texts with the same hash of 64 bits count as equal. With a million texts, the probability of one wrong pair is
        # 1 in 30 million. Keeping the texts themselves would take 300 MB.
        hashes, known = np.empty(self._length, np.int64), np.empty(self._length, bool)
        for number in range(-(-self._length // CHUNK)):
            here, texts = slice(number * CHUNK, (number + 1) * CHUNK), self.block(name, number)
            hashes[here], known[here] = [*map(hash, texts)], np.diff(texts.offsets) > 0
        _, firsts, found = np.unique(hashes[known], return_index=True, return_inverse=True)
        numbers = np.full(self._length, _NO_TEXT, np.int32)
        numbers[known] = found
        return numbers, np.flatnonzero(known)[firsts].astype(np.int32)

    @property
    def _length(self) -> int:
        return self.store.manifest.length

    @property
    def sortable(self) -> tuple[str, ...]:
        """The names of the columns that the method ``known`` accepts."""
        return ("width", "height", "aspect", "bytes", "label", *self.kinds)

    def known(self, what: str, indices: Any) -> tuple[Array, Array]:
        """Return two arrays: the values of a column for some records, and whether each record has a value.

        The column "aspect" is width / height, float64. For a field of texts or booleans, the values are the numbers
        that ``texts`` returns.

        Args:
            what: Name of the column, one of ``sortable``.
            indices: A slice, or an array of integers.
        """
        if what in SIZES:
            values = self._sizes(what, indices)
            return values, values > 0
        if what == "label":
            values = self.get("label")
        else:
            values = self._sorted(what)[0] if self._kind(what) == "text" else self.field(what).values
        return (some := values[indices]), known_values(some)

    def describe(self, index: int, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of a record in some columns, for JSON; None for no value."""
        return {name: self._plain(name, index) for name in names}

    def _plain(self, name: str, index: int) -> Any:
        if self._kind(name) == "text":
            return self.texts_at(name, np.array([index]))[0] or None
        value = self.field(name).values[index]
        if not known_values(value):
            return None
        if self._kind(name) == "bool":
            return ("false", "true")[value]
        return value.item() if np.isfinite(value) else str(value)

    def events(self) -> dict[str, Array]:
        """Return {event in the conversion's report, such as "repaired": indices of the records with this event}.

        The indices are int64, shape (records,), ascending.
        """
        found: dict[str, Array] = self._columns.get("events", self._find_events)
        return found

    def _find_events(self) -> dict[str, Array]:
        events: dict[str, set[str]] = {}
        for line in self.store.events():
            events.setdefault(line["name"], set()).add(line["event"])
        found: dict[str, list[int]] = {event: [] for some in events.values() for event in some}
        for index, name in find_names(self.store, events):
            for event in events[name]:
                found[event].append(index)
        return {event: np.array(indices, np.int64) for event, indices in found.items()}

    def _sizes(self, what: str, indices: Any) -> Array:
        if what != "aspect":
            values: Array = self.get("nbytes" if what == "bytes" else what)[indices]
            return values
        width, height = (self.get(side)[indices] for side in ("width", "height"))
        aspect = np.zeros(len(width))
        np.divide(width, height, out=aspect, where=height > 0)
        return aspect


def parts(indices: Any) -> Iterator[tuple[slice, Any]]:
    """Divide a selection of records into blocks. Yield the positions of each block, and the indices at these positions.

    The selection is an array of indices, or a range of all records. For a range, the second value is a slice too.
    """
    for part in blocks(len(indices)):
        yield part, part if isinstance(indices, range) else indices[part]


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most 2**20 records that together cover the records 0 to ``count - 1``."""
    return (slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


def find_names(store: Store, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and the name of each record with one of the names, by a scan of the column ``name_hash``."""
    handle = store.open_handle()
    hashes = np.unique(np.array([name_hash(name.encode(errors="replace")) for name in names], np.uint32))
    is_possible = np.zeros(2**16, bool)  # for 16 bits of a hash: this test is 10 times faster than a search
    is_possible[hashes & 0xFFFF] = True
    for number, chunk in enumerate(handle.chunks("name_hash") if names else ()):
        stored = np.frombuffer(chunk, DTYPES["name_hash"])
        candidates = np.flatnonzero(is_possible[stored & 0xFFFF])
        nearest = hashes[np.minimum(hashes.searchsorted(stored[candidates]), len(hashes) - 1)]
        positions = candidates[nearest == stored[candidates]].tolist()
        packed = handle.chunk("name", number) if positions else b""
        for position in positions:
            if (name := name_at(packed, position)) in names:
                yield number * CHUNK + position, name


def column_of(values: Iterable[Any], length: int) -> FieldColumn | None:
    """Return a column of values that ``column_value`` has returned; None if no column can contain all of them."""
    finder, chunks, rest = KindFinder(), list[bytes](), iter(values)
    while some := list(islice(rest, CHUNK)):
        chunks.append(pack_values(some))
        finder.add({PREFIX: chunks[-1]})
    kind = finder.columns([""]).get("")
    return None if kind is None else join_chunks(chunks, kind, length)
