"""What every store promises to those who read it, whatever it is kept in.

Each sentence of these docstrings is a test in tests/contracts/store.py, which every backend's tests inherit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from dbloader.errors import DamagedRecordError, DamagedStoreError, RecordIndexError
from dbloader.records.columns import CHUNK, COLUMNS, ColumnChunk
from dbloader.records.document import open_sealed
from dbloader.records.manifest import Summary
from dbloader.records.record import decode, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from typing_extensions import Self

    from dbloader.records.columns import Names
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord, Record

READ_AT_ONCE = 64
"""Records read at a time where all of them are read: enough to hide the cost of a call, or of a round trip."""


class Store(ABC):
    """A finished database of records, for reading.

    Constructing one opens nothing: the first use does, in each process anew, and no handle is ever used in a
    process other than the one that opened it. Threads may share a store. Pickling it pickles its place and what
    was asked for, never a handle. The records do not change while a store is open, even if it is replaced.
    """

    place: str
    """Where the store is, as it may be shown: without credentials."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The header of the store.

        Raises:
            StoreNotFoundError: Nothing is at the place.
            NotAStoreError: Something else is, or a store whose conversion is not finished.
            StoreVersionError: The store has a newer format.
            DamagedStoreError: The store is cut short or corrupted.
        """

    @abstractmethod
    def read(self, indices: Sequence[int]) -> list[Record]:
        """Return records, in the order asked, repeats included, in one transaction or round trip.

        Every record's CRC-32 is verified. Nothing of the result points into the store.

        Raises:
            RecordIndexError: An index is not from 0 to len - 1.
            DamagedRecordError: A record is not what was written; the message names place, index and name.
        """

    has_views = False
    """Whether ``lend`` saves a copy of each image, and is best called for parts of a batch, by several threads."""

    @contextmanager
    def borrow(self, indices: Sequence[int]) -> Iterator[Iterator[Record]]:
        """Yield records, in the order asked, while the store has hold of them: until the ``with`` block ends.

        A record's image may be a memoryview, or an array that cannot be written to. Nothing that points into it may be
        used after the block: that could crash the process. Otherwise as ``read``.
        """
        yield iter(self.read(indices))

    def prefetch(self, indices: Sequence[int]) -> None:
        """Let the store make ready what will be read soon, where it can; waits for nothing, and does no more."""
        del indices  # most stores have nothing that they could do

    @abstractmethod
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        """Return records as they are stored, BSON documents, unverified; otherwise as ``read``."""

    @abstractmethod
    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return one fact of all records: an owned array of shape (len,).

        Args:
            name: ``"label"`` (int64; NO_LABEL where there is none), ``"width"``, ``"height"`` (uint32 pixels; 0
                where unknown), ``"nbytes"`` (uint64 bytes of the image; 0 without one) or ``"crc32"`` (uint32).
        """

    @abstractmethod
    def names(self) -> Names:
        """Return the names of all records, packed; the empty string where there is none."""

    @abstractmethod
    def name(self, index: int) -> str | None:
        """Return the name of one record by one lookup."""

    @abstractmethod
    def find(self, name: str) -> int:
        """Return the least index of the records that have a name.

        Raises:
            RecordNotFoundError: There is none.
        """

    @abstractmethod
    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what the conversion reported: each repaired and each rejected file with its reason.

        Raises:
            DamagedStoreError: One is missing, or not what was written.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the handle. Using the store again opens it again."""

    def verify(self, progress: Callable[[int], object] = lambda _: None) -> str:
        """Read every record and event, and return the digest, computed again from the records' bytes.

        Args:
            progress: Called with the number of records verified since the last call.

        Raises:
            DamagedRecordError: A record is not what was written.
            DamagedStoreError: The columns, the report or the manifest do not tell of these records.
        """
        summary = Summary()
        formats: Counter[str] = Counter()
        fields: Counter[str] = Counter()
        for number, start in enumerate(range(0, len(self), CHUNK)):
            chunk = ColumnChunk()
            for first in range(start, min(start + CHUNK, len(self)), READ_AT_ONCE):
                indices = range(first, min(first + READ_AT_ONCE, start + CHUNK, len(self)))
                for index, document in zip(indices, self.documents(indices), strict=True):
                    record = self.checked(document, index)
                    chunk.append(record)
                    fields.update(record.fields)
                    if record.format is not None:
                        formats[record.format] += 1
                progress(len(indices))
            packed, stored = chunk.pack(), self._stored_chunk(number)
            for name in COLUMNS:
                if packed[name] != stored[name]:
                    raise DamagedStoreError(
                        f"{self.place}: its column {name} does not tell of the {len(chunk)} records from {start} on; "
                        "convert again, or copy the store again from where it is whole",
                    )
            summary.add(packed)
        facts = {**summary.facts(), "formats": formats, "fields": fields, **self._reported(), **self._classes(summary)}
        for name, value in facts.items():
            if value != getattr(self.manifest, name):
                raise DamagedStoreError(
                    f"{self.place}: the {name} in its manifest is not that of its records; "
                    "convert again, or copy the store again from where it is whole",
                )
        return str(facts["digest"])

    def _reported(self) -> dict[str, Any]:
        """Return what the manifest must say of the report: the number of its lines, and that of each kind."""
        lines = Counter(event["event"] for event in self.events())
        counted = self.manifest.outcome  # a writer need not count its lines
        known = {kind: number for kind, number in lines.items() if kind in counted}
        return {"events": lines.total(), "outcome": {**counted, **known}}

    def _classes(self, summary: Summary) -> dict[str, Any]:
        """Return what the manifest must say of the classes: no names if a label has no class."""
        classes = self.manifest.classes
        return {} if all(0 <= label < len(classes) for label in summary.labels or ()) else {"classes": ()}

    def _event(self, document: bytes | memoryview | None, number: int) -> dict[str, Any]:
        """Return a line of the report, after checking it.

        Raises:
            DamagedStoreError: It is missing, or not what was written.
        """
        try:
            event = open_sealed(document or b"", number)
        except ValueError as error:
            what = str(error)
        else:
            said = {name: event.get(name) for name in ("name", "event", "reason")}
            if all(type(value) is str for value in said.values()):  # JavaScript code is a str too, and cannot be hashed
                return said
            what = "it has no name, event and reason"
        raise DamagedStoreError(
            f"{self.place}: event {number} of its report is damaged: {what if document else 'it is missing'}; "
            "copy the store again from where it is whole",
        )

    def checked(self, document: bytes, index: int) -> EncodedRecord:
        """Return a record that ``documents`` gave, after checking it, to be stored elsewhere as it is.

        Raises:
            DamagedRecordError: It is not what was written; the message names place, index and name.
        """
        try:
            return encoded(document, index)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    @abstractmethod
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        """Return the packed columns of one chunk, for ``verify``."""

    def _decode(self, document: bytes | memoryview, index: int, *, view: bool = False) -> Record:
        try:
            return decode(document, index, view=view)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    def _damaged(self, index: int, what: str) -> DamagedRecordError:
        try:
            name = self.name(index) or "without a name"
        except (DamagedStoreError, DamagedRecordError):
            name = "its name is damaged too"
        return DamagedRecordError(
            f"record {index} ({name}) of {self.place} is damaged: {what}; "
            "convert again, or copy the store again from where it is whole",
        )

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
            return self.read(range(*index.indices(len(self))))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise RecordIndexError(f"no record {index} in {self.place}, which has {len(self)}")
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
