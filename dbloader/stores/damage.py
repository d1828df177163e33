"""Find all damage in a store: read every record, and compare it with the columns, the report and the manifest."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dbloader.errors import DamagedRecordError, DamagedStoreError
from dbloader.records.columns import CHUNK, COLUMNS, DTYPES, ColumnChunk, names_in
from dbloader.records.manifest import Summary
from dbloader.records.record import EncodedRecord
from dbloader.stores.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from dbloader.records.manifest import Manifest
    from dbloader.stores.handle import Handle

REMEDY = "convert again, or copy the store again from the original; dbloader copy --skip-damaged keeps the rest"

READ_AT_ONCE = 64
"""Records per call where all records are read: enough to hide the cost of a call or a round trip."""

_NOTHING = EncodedRecord((), 0, None, None, None, None, 0, None, ())


class Readable(Protocol):
    """What is read of a Store, whose module imports this one."""

    place: str

    @property
    def manifest(self) -> Manifest: ...
    def name(self, index: int) -> str | None: ...
    def prefetch(self, indices: Sequence[int]) -> None: ...
    def borrow_documents(
        self, indices: Sequence[int], *, prefetched: bool = False
    ) -> AbstractContextManager[Iterator[tuple[bytes | memoryview, int]]]: ...
    def verified(self, document: bytes | memoryview, index: int) -> EncodedRecord: ...
    def events(self) -> Iterator[dict[str, Any]]: ...
    def check_files(self) -> None: ...
    def open_handle(self) -> Handle: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one record, by its index and name, or with the store as a whole (None)."""

    error: DamagedRecordError | DamagedStoreError
    index: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        self.error.__traceback__ = None  # it would keep the frames that keep it, and with them the file open


def find_damage(store: Readable, progress: Callable[[int], object]) -> Iterator[Damage]:
    """Yield all damage of a store; ``progress`` is called with the number of records read since the last call.

    Raises:
        StoreError: The store cannot be read at all.
    """
    handle, length = store.open_handle(), len(store)
    try:
        store.check_files()
        handle.chunks("crc32")  # raises if the length is a lie: without end, records would be missing
    except DamagedStoreError as error:
        yield Damage(error)
        return
    summary, totals, found = Summary(), Totals(), 0
    store.prefetch(range(min(READ_AT_ONCE, length)))
    for number, start in enumerate(range(0, length, CHUNK)):
        chunk, stop, lost = ColumnChunk(), min(start + CHUNK, length), []
        for first in range(start, stop, READ_AT_ONCE):
            indices = range(first, min(first + READ_AT_ONCE, stop))
            store.prefetch(range(indices.stop, min(indices.stop + READ_AT_ONCE, length)))
            for record, _ in read_records(store, indices, prefetched=True):
                if isinstance(record, Damage):
                    yield record
                    lost.append(len(chunk))
                    chunk.append(_NOTHING)
                else:
                    chunk.append(record)
                    totals.add(record)
            progress(len(indices))
        packed = chunk.pack()
        found += len(lost)
        for name in COLUMNS:
            try:
                if _agree(name, packed[name], handle.chunk(name, number), lost):
                    continue
                what = f"its column {name} does not fit the {len(chunk)} records from {start} on"
                damage = Damage(DamagedStoreError(f"{store.place}: {what}; {REMEDY}"))
            except DamagedStoreError as error:
                damage = Damage(error)
            yield damage
            found += 1
        summary.add(packed)
    try:
        lines = Counter(event["event"] for event in store.events())
    except DamagedStoreError as error:
        yield Damage(error)
        return
    if found:
        return  # the manifest is of all records
    outcome = store.manifest.outcome
    facts = {**summary.facts(), "formats": totals.formats, "fields": totals.fields, "events": lines.total()}
    facts["outcome"] = {**outcome, **{kind: lines[kind] for kind in lines if kind in outcome}}
    if any(not 0 <= label < len(store.manifest.classes) for label in summary.labels or ()):
        facts["classes"] = ()  # a label has no class, so no class may have a name
    for name, value in facts.items():
        if value != getattr(store.manifest, name):
            what = f"the {name} in its manifest does not agree with its records"
            yield Damage(DamagedStoreError(f"{store.place}: {what}; {REMEDY}"))


def read_records(
    store: Readable, indices: range, *, prefetched: bool = False
) -> Iterator[tuple[EncodedRecord | Damage, int]]:
    """Yield each record, or why it cannot be read, and its index; a record is valid until the next one."""
    done = 0
    try:
        with store.borrow_documents(indices, prefetched=prefetched) as documents:
            for document, index in documents:
                yield store.verified(document, index), index
                done += 1
    except (DamagedRecordError, DamagedStoreError) as error:
        if len(indices) > 1:  # each by itself: the first may hide others
            for index in indices[done:]:
                yield from read_records(store, range(index, index + 1))
            return
        index, name = indices[0], None
        with suppress(DamagedRecordError, DamagedStoreError):
            name = store.name(index)
        if isinstance(error, DamagedStoreError):  # LMDB's, which does not know which record was wanted
            error = DamagedStoreError(f"record {index} ({name or 'without a name'}) cannot be read: {error}")
        yield Damage(error, index, name), index


def _agree(column: str, packed: bytes, stored: bytes | memoryview, lost: list[int]) -> bool:
    """Compare a chunk of a column with its records, except for those at the positions ``lost``."""
    if not lost:
        return packed == stored
    if column == "name":
        skipped, pairs = {*lost}, zip(names_in(packed), names_in(stored), strict=True)
        return all(one == other for at, (one, other) in enumerate(pairs) if at not in skipped)
    one, other = (np.delete(np.frombuffer(part, DTYPES[column]), lost) for part in (packed, stored))
    return bool(np.array_equal(one, other))
