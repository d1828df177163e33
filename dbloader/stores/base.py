"""The store that datasets read. Each promise of these docstrings is a test in tests/contracts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from dbloader.errors import DamagedRecordError, DamagedStoreError, RecordIndexError
from dbloader.records.columns import CHUNK, DTYPES, join_names, join_values, name_at
from dbloader.records.decode import decode, decode_encoded
from dbloader.records.document import open_sealed
from dbloader.stores.damage import READ_AT_ONCE, REMEDY, find_damage

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.records.columns import Names
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord, Record
    from dbloader.stores.handle import Handle


class Store(ABC):
    """A finished database of records, for reading.

    Constructing a store opens nothing. Each process opens a handle of its own at the first use, and no process uses
    another's. Threads may share a store. A pickle holds the place and the options, never a handle. The records of an
    open store do not change, even if the store is replaced.
    """

    place: str
    """Where the store is, without credentials."""

    has_views = False
    """Whether ``borrow`` saves copying images. Then it is best called for parts of a batch, by several threads."""

    @property
    def manifest(self) -> Manifest:
        """The header of the store.

        Raises:
            StoreNotFoundError: Nothing is at the place.
            NotAStoreError: Something else is at the place, or a store whose conversion is not finished.
            StoreVersionError: The store has a newer format.
            DamagedStoreError: The store is cut short or corrupted.
        """
        return self.open_handle().manifest

    @property
    def shard_lengths(self) -> Sequence[int] | None:
        """The number of records in each shard, in their order; None for a store without shards."""
        return None

    @abstractmethod
    def read(self, indices: Sequence[int]) -> list[Record]:
        """Return records in the order asked, repeats included, in one transaction or round trip.

        The CRC-32 of each record is verified. The result owns its memory.

        Raises:
            RecordIndexError: An index is not from 0 to len - 1.
            DamagedRecordError: A record is not what was written. The message names place, index and name.
        """

    @contextmanager
    def borrow(self, indices: Sequence[int], *, prefetched: bool = False) -> Iterator[Iterator[Record]]:
        """Yield records like ``read``, valid only until the ``with`` block ends.

        A record's image may be a memoryview or a read-only array into the store. Using it after the block could crash
        the process. ``prefetched`` says that ``prefetch`` was called for these records.
        """
        del prefetched
        yield iter(self.read(indices))

    def prefetch(self, indices: Sequence[int]) -> None:
        """Begin to bring records that will be read soon into memory, without waiting; nothing by default."""
        del indices

    @abstractmethod
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        """Return the BSON documents of records, unverified; otherwise like ``read``."""

    @contextmanager
    def borrow_documents(
        self, indices: Sequence[int], *, prefetched: bool = False
    ) -> Iterator[Iterator[tuple[bytes | memoryview, int]]]:
        """Yield documents like ``documents``, each with its index, valid only until the ``with`` block ends."""
        del prefetched
        yield zip(self.documents(indices), indices, strict=True)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return one value of all records, as an array of shape (len,) that owns its memory.

        Args:
            name: ``"label"`` (int64; NO_LABEL without one), ``"width"``, ``"height"`` (uint32 pixels; 0 if unknown),
                ``"nbytes"`` (uint64 bytes of the image; 0 without one) or ``"crc32"`` (uint32).
        """
        if name not in DTYPES:
            raise ValueError(f"a column is one of {', '.join(DTYPES)}, got {name!r}")
        handle = self.open_handle()
        return join_values(handle.chunks(name), name, handle.manifest.length)

    def names(self) -> Names:
        """Return the names of all records, packed; the empty string for a record without one."""
        handle = self.open_handle()
        return join_names(handle.chunks("name"), handle.manifest.length)

    def name(self, index: int) -> str | None:
        """Return the name of one record, by one lookup."""
        self._check_index(index)
        return name_at(self.open_handle().chunk("name", index // CHUNK), index % CHUNK) or None

    def label(self, index: int) -> int:
        """Return the label of one record, by one lookup; NO_LABEL without one."""
        self._check_index(index)
        return int(np.frombuffer(self.open_handle().chunk("label", index // CHUNK), DTYPES["label"])[index % CHUNK])

    @abstractmethod
    def find(self, name: str) -> int:
        """Return the index of the record with a name, the first one of several.

        LMDB scans the column ``name_hash``, 4 bytes for each record (3 ms a million), and compares the names of those
        with the same hash. MongoDB uses an index.

        Raises:
            RecordNotFoundError: No record has this name.
        """

    @abstractmethod
    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the conversion's report: each repaired and each rejected file with its reason.

        Raises:
            DamagedStoreError: A line is missing, or not what was written.
        """

    @abstractmethod
    def is_at(self, place: str | os.PathLike[str]) -> bool:
        """Return whether this store is at a place, or is a part of the store there, or the place is a part of it.

        Links and other spellings of the same place are recognized.
        """

    def open_older(self, digest: str) -> None:  # noqa: B027 - most stores do not grow
        """Open the store as it was before it grew, if that had this digest and is still kept."""

    def check_files(self) -> None:  # noqa: B027 - most stores are one file, or none
        """Raise DamagedStoreError if one of the store's files is missing, or has not its size."""

    @abstractmethod
    def close(self) -> None:
        """Close the handle. The next use opens it again."""

    def verify(self, progress: Callable[[int], object] = lambda _: None) -> str:
        """Read every record and line of the report, compare them with the manifest, and return the digest.

        Stops at the first damage; ``dbloader.verify_store`` finds all.

        Args:
            progress: Called with the number of records verified since the last call.

        Raises:
            DamagedRecordError: A record is not what was written.
            DamagedStoreError: The columns, the report or the manifest do not agree with the records.
        """
        damage = next(find_damage(self, progress), None)
        if damage is not None:
            try:
                raise damage.error
            finally:
                del damage  # or the error would keep this frame, and this frame the error
        return self.manifest.digest

    def verified(self, document: bytes | memoryview, index: int) -> EncodedRecord:
        """Return the record in a document from ``documents``, verified, for storing it elsewhere as it is.

        It is a view of a memoryview, as ``borrow_documents`` yields them.

        Raises:
            DamagedRecordError: It is not what was written. The message names place, index and name.
        """
        try:
            return decode_encoded(document, index, self.manifest.salt)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    @abstractmethod
    def open_handle(self) -> Handle:
        """Return this process's handle, which is opened if need be."""

    def _decode(self, document: bytes | memoryview, index: int, salt: int, *, view: bool = False) -> Record:
        try:
            return decode(document, index, salt, view=view)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    def _damaged(self, index: int, what: str) -> DamagedRecordError:
        try:
            name = self.name(index) or "without a name"
        except (DamagedStoreError, DamagedRecordError):
            name = "its name is damaged too"
        return DamagedRecordError(f"record {index} ({name}) of {self.place} is damaged: {what}; {REMEDY}")

    def _event(self, document: bytes | memoryview | None, number: int) -> dict[str, Any]:
        """Return a line of the report, verified."""
        try:
            event = open_sealed(document or b"", number, self.manifest.salt)
        except ValueError as error:
            what = str(error)
        else:
            known = {name: event.get(name) for name in ("name", "event", "reason")}
            if all(type(value) is str for value in known.values()):  # bson.Code is a str too, and cannot be hashed
                return known
            what = "it has no name, event and reason"
        if not document:
            what = "it is missing"
        raise DamagedStoreError(f"{self.place}: event {number} of its report is damaged: {what}; {REMEDY}")

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise RecordIndexError(f"no record {index} in {self.place}, which has {len(self)}")

    def __len__(self) -> int:
        return self.manifest.length

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return self.read(range(len(self))[index])
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            self._check_index(index)  # raises, with the index as it was asked
        return self.read([position])[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), READ_AT_ONCE):
            yield from self.read(range(start, min(start + READ_AT_ONCE, len(self))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
