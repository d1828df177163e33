"""Copy the intact records of a damaged store, byte for byte."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from dbloader.conversion.write_store import count_depth
from dbloader.copying.copy_records import count_change, verified_checksums
from dbloader.errors import ConversionError, DamagedStoreError
from dbloader.records.columns import COLUMNS
from dbloader.records.decode import decode
from dbloader.stores.base import READ_AT_ONCE, Damage, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer


def copy_intact(
    store: Store, writer: Writer, skip: Callable[[str], object], progress: Callable[[int, int], object]
) -> Manifest:
    """Write every intact record, call ``skip`` with the reason for each other record, and return the manifest.

    New columns and counts are made from the records. The copy keeps the report up to its first damaged line, and adds a
    line for each record left out.

    Raises:
        ConversionError: No record is intact.
        DamagedStoreError: No column confirms the number of records.
    """
    old, total = store.manifest, len(store)
    _check_length(store)
    checksums = None
    with suppress(DamagedStoreError):
        checksums = verified_checksums(store)
    reasons: list[str] = []
    lost: list[Damage] = []
    changes, depths = Counter[str](), Counter[str]()

    def intact(indices: range) -> Iterator[EncodedRecord]:
        for record, index in read_records(store, indices):
            if isinstance(record, Damage):
                lost.append(record)
            elif checksums is not None and record.crc32 != checksums[index]:
                what = f"{store.place}: record {index} ({record.name}) has been exchanged for another one"
                lost.append(Damage(DamagedStoreError(what), index, record.name))
            else:
                whole = decode(record.document(index, 0), index, 0, view=True)
                depths.update(count_depth(whole))
                changes.update(kind for kind in count_change(whole) if kind in old.outcome)
                yield record

    def leave_out(name: str | None, reason: str) -> None:
        reasons.append(reason)
        skip(reason)
        writer.write([], events=[{"name": name or "", "event": "rejected", "reason": reason}], outcome={"rejected": 1})

    writer.write([], outcome=dict.fromkeys(old.outcome, 0))
    try:
        for event in store.events():
            writer.write([], events=[event], outcome={event["event"]: 1})
    except DamagedStoreError as error:
        leave_out(None, str(error))
    for start in range(0, total, READ_AT_ONCE):
        progress(start, total)
        writer.write(intact(range(start, min(start + READ_AT_ONCE, total))))
        for damage in lost:
            leave_out(damage.name, str(damage.error))
        lost.clear()
    if total and not writer.length:
        raise ConversionError(f"{store.place}: none of its {total:,} records is intact; the first: {reasons[0]}")
    writer.write([], outcome=changes, depths=depths)
    progress(total, total)
    return writer.finish(classes=old.classes, source=old.source, created=None if reasons else old.created)


def _check_length(store: Store) -> None:
    """Raise DamagedStoreError if no column is as long as the manifest says, which may be a damaged, huge number."""
    for name in COLUMNS[:-1]:
        with suppress(DamagedStoreError):
            store.open_handle().chunks(name)
            return
    store.open_handle().chunks(COLUMNS[-1])
