"""Define the interface of a finished store, and find damage in a store. tests/contracts checks its promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

import numpy as np

from dbloader._describe import listed, short_repr
from dbloader._extensions import html
from dbloader.errors import DamagedRecordError, DamagedStoreError, OptionError, RecordIndexError
from dbloader.records.columns import CHUNK, DTYPES, ColumnChunk, join_values, stored_columns
from dbloader.records.document import open_sealed
from dbloader.records.field_columns import OTHER, PREFIX, join_chunks, unpack_values
from dbloader.records.manifest import Summary, Totals
from dbloader.records.names import join_names, name_at

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dbloader.records.field_columns import FieldColumn
    from dbloader.records.manifest import Manifest
    from dbloader.records.names import Names
    from dbloader.records.record import EncodedRecord, Record

READ_AT_ONCE = 64
"""A loop over a whole store reads this many records in each call. Larger calls are hardly faster."""

_REMEDY = "convert again, or copy the store again from the original; dbloader copy --skip-damaged copies intact records"


class Handle(Protocol):
    """A store that one process has opened."""

    pid: int
    """Id of the process."""

    @property
    def manifest(self) -> Manifest:
        """The header of the store."""

    def chunk(self, column: str, number: int) -> bytes | memoryview:
        """Return the packed values of up to CHUNK records in one column, or raise DamagedStoreError."""

    def chunks(self, column: str) -> Iterator[bytes | memoryview]:
        """Return all chunks of a column in order, or raise DamagedStoreError if chunks are missing."""


class Store(ABC):
    """A finished database of records, for reading.

    Constructing a store opens nothing. Each process opens its own handle when it first reads, and never uses the handle
    of another process. Threads may share a store. A pickle contains the path or URI and the options, but no handle. The
    records of an open store do not change, even if the store is replaced.
    """

    place: str
    """Path or URI of the store, without credentials."""

    handle: Handle | None = None
    """The open handle; None if the store is closed. A forked child opens a new handle."""

    has_views = False
    """Whether ``borrow`` yields images without copying them. If so, each thread borrows the records that it decodes."""

    downloads = False
    """Whether reading a record may copy a whole shard to this machine."""

    @property
    def manifest(self) -> Manifest:
        """The header of the store.

        Raises:
            StoreNotFoundError: Nothing is at the path or URI.
            NotAStoreError: The path or URI contains something else, or an unfinished store.
            StoreVersionError: This version of dbloader cannot read the store's newer format.
            DamagedStoreError: The store is truncated or damaged.
        """
        return self.open_handle().manifest

    @property
    def shard_lengths(self) -> Sequence[int] | None:
        """The number of records in each shard, in order; None for a store without shards."""
        return None

    @abstractmethod
    def read(self, indices: Sequence[int]) -> list[Record]:
        """Return records in the order of the indices, in one transaction or round trip. Indices may repeat.

        Each record's CRC-32 is verified. The records own their memory.

        Raises:
            RecordIndexError: An index is not from 0 to len - 1.
            DamagedRecordError: A record is missing or damaged. The message contains the place, index and name.
        """

    def prefetch(self, indices: Sequence[int]) -> None:  # noqa: B027 - only LMDB needs it
        """Start loading records into memory, but do not wait for them. Call this before ``borrow`` or ``encoded``."""

    def expect_order(self, sampler: Any, since: Mapping[str, Any], indices: Any, *, margin: int, check: bool) -> None:  # noqa: B027 - only a cache needs it
        """Announce in which order this process and its workers will read records. A cache fetches shards in this order.

        Args:
            sampler: One of dbloader's samplers. In a mixture of stores, index -1 means a sample of another store.
            since: The state of the sampler at the start of the iteration.
            indices: An array that maps each sample to its record's index; None if sample i is record i.
            margin: The largest number of samples by which one worker can lag behind another.
            check: Whether to raise an OptionError if the cache is too small for the order.
        """

    @contextmanager
    def borrow(self, indices: Sequence[int]) -> Iterator[Iterator[Record]]:
        """Yield records like ``read``, valid only until the ``with`` block ends.

        The image of a record may be a memoryview or a read-only array in the store's memory. Using the image after the
        block can crash the process.
        """
        yield iter(self.read(indices))

    @abstractmethod
    def encoded(self, indices: Sequence[int], *, elements: bool = True) -> list[EncodedRecord]:
        """Return records as they are stored, for ``Writer.write``. Raise the same errors as ``read``.

        If ``elements`` is False, a store may save time by leaving ``EncodedRecord.elements`` empty.
        """

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return one value of every record, such as its label, in an array of shape (len,) that owns its memory.

        Args:
            name: ``"label"`` (int64; NO_LABEL without a label), ``"width"``, ``"height"`` (uint32 pixels; 0 if
                unknown), ``"nbytes"`` (uint64 bytes of the image; 0 without an image) or ``"crc32"`` (uint32). Fields
                that users added also have columns, if their values are numbers, booleans or short texts; see
                ``FieldColumn.array``. If an added field is called ``nbytes``, its column is ``"field.nbytes"``.

        Raises:
            OptionError: There is no such column. The message lists the columns.
            TypeError: The name is not a str.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a column must be a str, got {short_repr(name)}")
        if name not in DTYPES:
            return self.field_column(name.removeprefix(PREFIX)).array()
        handle = self.open_handle()
        return join_values(handle.chunks(name), name, handle.manifest.length)

    def field_column(self, field: str) -> FieldColumn:
        """Return the column of an extra field.

        Raises:
            OptionError: The field has no column. The message lists the columns.
        """
        handle = self.open_handle()
        kind = handle.manifest.columns.get(field)
        if kind is None:
            what = f"{self.place} has no column {short_repr(field)}; its columns are"
            raise OptionError(f"{what} {listed((*DTYPES, *handle.manifest.columns))}")
        return join_chunks(handle.chunks(PREFIX + field), kind, handle.manifest.length)

    def names(self) -> Names:
        """Return the names of all records in packed form. An unnamed record has the empty string."""
        handle = self.open_handle()
        return join_names(handle.chunks("name"), handle.manifest.length)

    def name(self, index: int) -> str | None:
        """Return the name of a record, or None if the record is unnamed. This takes one lookup."""
        handle = self.open_handle()
        self._check_indices([index], handle.manifest.length)
        return name_at(handle.chunk("name", index // CHUNK), index % CHUNK) or None

    def label(self, index: int) -> int:
        """Return the label of a record, or NO_LABEL if the record has no label. This takes one lookup."""
        handle = self.open_handle()
        self._check_indices([index], handle.manifest.length)
        return int(np.frombuffer(handle.chunk("label", index // CHUNK), DTYPES["label"])[index % CHUNK])

    @abstractmethod
    def find(self, name: str) -> int:
        """Return the index of the first record with a name.

        An LMDB store scans the column ``name_hash`` (4 bytes per record, 3 ms per million records). The scan
        reads names only where the hash is equal. A MongoDB store uses an index.

        Raises:
            RecordNotFoundError: No record has this name.
        """

    @abstractmethod
    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the conversion's report: dicts with ``name``, ``reason`` and ``event`` ("rejected" …).

        Raises:
            DamagedStoreError: A line is missing or damaged.
        """

    @abstractmethod
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        """Return whether a new store at a path or URI would replace this store or a file that this store reads.

        Symbolic links and other spellings of the path or URI are recognized.
        """

    def open_older(self, digest: str) -> None:  # noqa: B027 - most stores do not grow
        """If the store's version before shards were last added has this digest, switch to that version."""

    def check_files(self) -> None:  # noqa: B027 - most stores are one file, or none
        """Raise DamagedStoreError if a file of the store is missing or has the wrong size."""

    def close(self) -> None:
        """Close the handle. The next use opens the store again."""
        self.handle = None

    def verify(self, progress: Callable[[int], object] = lambda _: None) -> str:
        """Compare all records and report lines with the columns and the manifest, and return the digest.

        This method raises an error for the first damage that it finds; ``dbloader.verify_store`` lists all damage.

        Args:
            progress: Called with the number of records verified since the last call.

        Raises:
            DamagedRecordError: A record is missing or damaged.
            DamagedStoreError: The columns, the report or the manifest are damaged, or disagree with the records.
        """
        damage = next(find_damage(self, progress), None)
        if damage is not None:
            try:
                raise damage.error
            finally:
                del damage  # prevents a reference cycle: the error's traceback refers to this frame
        return self.manifest.digest

    @abstractmethod
    def open_handle(self) -> Handle:
        """Return this process's handle, which the first call opens."""

    def _damaged(self, index: int, what: str) -> DamagedRecordError:
        try:
            name = self.name(index) or "without a name"
        except (DamagedStoreError, DamagedRecordError):
            name = "its name is damaged too"
        return DamagedRecordError(f"record {index} ({name}) of {self.place} is damaged: {what}; {_REMEDY}")

    def _event(self, document: bytes | memoryview | None, number: int) -> dict[str, Any]:
        """Verify a stored line of the report, and return it."""
        try:
            event = open_sealed(document or b"", number, self.manifest.salt)
        except ValueError as error:
            what = str(error)
        else:
            known = {name: event.get(name) for name in ("name", "event", "reason")}
            if all(type(value) is str for value in known.values()):  # bson.Code is a str that cannot be hashed
                return known
            what = "its name, event or reason is not a text"
        if not document:
            what = "it is missing"
        raise DamagedStoreError(f"{self.place}: event {number} of its report is damaged: {what}; {_REMEDY}")

    def _check_indices(self, indices: Sequence[int], length: int) -> None:
        for index in indices:
            if not 0 <= index < length:
                raise RecordIndexError(
                    f"no record {index} in {self.place}, which has {length} records, numbered from 0"
                )

    def __len__(self) -> int:
        return self.manifest.length

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return _Records(self, self.read(range(len(self))[index]))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            self._check_indices([index], len(self))  # raises an error that shows the original index
        return self.read([position])[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), READ_AT_ONCE):
            yield from self.read(range(start, min(start + READ_AT_ONCE, len(self))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def _repr_html_(self) -> str | None:
        """Return the store as HTML, with some of its images, for notebooks."""
        return html("store_html", self, lambda indices: (self, indices))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handle": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Records(list["Record"]):
    """Some records of a store. A notebook shows eight of their images."""

    def __init__(self, store: Store, records: list[Record]) -> None:
        super().__init__(records)
        self._store = store

    def _repr_html_(self) -> str | None:
        indices = [record.index for record in self]
        return html("records_html", self._store, indices, f"{len(self):,} records")


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of one record, or of the whole store if ``index`` is None. ``name`` is the record's name, if known."""

    error: DamagedRecordError | DamagedStoreError
    index: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        self.error.__traceback__ = None  # the frames of a traceback would keep the file open


def find_damage(store: Store, progress: Callable[[int], object]) -> Iterator[Damage]:
    """Compare every record with the columns, the report and the manifest, and yield all damage.

    Args:
        store: The store.
        progress: Called with the number of records read since the last call.

    Raises:
        StoreError: The store cannot be read at all.
    """
    handle, length = store.open_handle(), len(store)
    try:
        store.check_files()
        # This call raises an error if the store has too few chunks for the length in the manifest. Otherwise, a wrong,
        # huge length would keep the loop below running almost forever.
        handle.chunks("crc32")
    except DamagedStoreError as error:
        yield Damage(error)
        return
    summary, totals, complete = Summary(), Totals(), True
    for number, start in enumerate(range(0, length, CHUNK)):
        chunk, stop = ColumnChunk(), min(start + CHUNK, length)
        for first in range(start, stop, READ_AT_ONCE):
            indices = range(first, min(first + READ_AT_ONCE, stop))
            for record, _ in read_records(store, indices, elements=False):
                if isinstance(record, Damage):
                    complete = False
                    yield record
                else:
                    chunk.append(record)
                    totals.add(record)
            progress(len(indices))
        packed = chunk.pack(store.manifest.fields)
        for name in stored_columns(store.manifest.fields):
            try:
                stored = handle.chunk(name, number)
            except DamagedStoreError as error:
                complete = False
                yield Damage(error)
                continue
            if len(chunk) < stop - start:
                continue  # without the damaged records, the column cannot be compared
            if _agree(name, packed[name], stored):
                packed[name] = bytes(stored)  # compare the manifest with this chunk, from which it was computed
            else:
                complete = False
                what = f"its column {name} disagrees with records {start} to {stop - 1}"
                yield Damage(DamagedStoreError(f"{store.place}: {what}; {_REMEDY}"))
        summary.add(packed)
    try:
        events = Counter(event["event"] for event in store.events())
    except DamagedStoreError as error:
        yield Damage(error)
        return
    if complete:  # otherwise the totals lack the damaged records
        yield from _compare_manifest(store, summary, totals, events)


def _compare_manifest(store: Store, summary: Summary, totals: Totals, events: Counter[str]) -> Iterator[Damage]:
    manifest = store.manifest
    expected = {
        **summary.facts(totals.fields),
        "formats": totals.formats,
        "fields": totals.fields,
        "events": events.total(),
    }
    # The report has lines only for some outcomes, such as rejections. Counts of other outcomes cannot be verified.
    expected["outcome"] = {kind: events.get(kind, count) for kind, count in manifest.outcome.items()}
    if any(not 0 <= label < len(manifest.classes) for label in summary.labels or ()):
        expected["classes"] = ()  # classes must name all labels, or none
    for name, value in expected.items():
        if value != getattr(manifest, name):
            what = f"{name} in its manifest disagrees with its records"
            yield Damage(DamagedStoreError(f"{store.place}: {what}; {_REMEDY}"))


def read_records(
    store: Store, indices: range, *, elements: bool = True
) -> Iterator[tuple[EncodedRecord | Damage, int]]:
    """Yield each record, or its damage, with its index. ``Store.encoded`` describes ``elements``."""
    # Load the next block of records while this block is verified. The previous call has requested this block.
    store.prefetch(range(indices.stop if indices.start else 0, min(indices.stop + len(indices), len(store))))
    try:
        yield from zip(store.encoded(indices, elements=elements), indices, strict=True)
    except (DamagedRecordError, DamagedStoreError) as error:
        if len(indices) > 1:
            for index in indices:
                yield from read_records(store, range(index, index + 1), elements=elements)
            return
        index, name = indices[0], None
        with suppress(DamagedRecordError, DamagedStoreError):
            name = store.name(index)
        if isinstance(error, DamagedStoreError):  # the message of an LMDB error does not name the record
            error = DamagedStoreError(f"record {index} ({name or 'without a name'}) cannot be read: {error}")
        yield Damage(error, index, name), index


def _agree(column: str, packed: bytes, stored: bytes | memoryview) -> bool:
    """Return whether a stored chunk agrees with ``packed``, the chunk made from the same records."""
    if packed == stored or not column.startswith(PREFIX):
        return packed == stored
    # If records of a chunk have values of several types, the stored chunk has OTHER in place of each value. But it may
    # have been made with more records than `packed`: with records of an interrupted commit, or with other records of a
    # shard, whose chunks begin elsewhere. So OTHER agrees with every value.
    pairs = zip(unpack_values(packed), unpack_values(stored), strict=True)
    return all(one == other or OTHER in (one, other) for one, other in pairs)
