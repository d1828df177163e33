"""Copy a store to another place, of either kind: record by record, byte for byte."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedStoreError
from dbloader.stores.damage import READ_AT_ONCE
from dbloader.stores.open import create_store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer


def copy_store(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Manifest:
    """Make the same store at another place: the same records, report and manifest.

    Every record is checked before it is written. An interruption or a damaged record leaves the destination as it was;
    ``resume`` continues after the last commit.

    Args:
        source: Place of the store.
        destination: Place of the copy.
        overwrite: Replace the store at the destination, once the copy is finished.
        resume: Continue an interrupted copy; begin if none was interrupted.
        progress: Called with the number of records copied, and of all records.

    Raises:
        TypeError: ``overwrite`` or ``resume`` is not True or False.
        StoreError: The source cannot be read, or the destination cannot be written, or is taken.
        DamagedRecordError: A record of the source is damaged.
        DamagedStoreError: A record is not damaged, but differs from the source's columns or digest.
    """
    with open_store(source) as store:
        manifest = store.manifest
        checksums = _checksums(store)
        with create_store(destination, overwrite=overwrite, resume=resume, resumable=True) as writer:
            writer.check_settings({"digest of the records": manifest.digest, "created": manifest.created})
            _copy_events(store, writer)
            while writer.length < len(store):
                progress(writer.length, len(store))
                indices = range(writer.length, min(writer.length + READ_AT_ONCE, len(store)))
                writer.write(_records(store, indices, checksums))
            progress(writer.length, len(store))
            missing = {what: count - writer.totals.outcome[what] for what, count in manifest.outcome.items()}
            writer.write([], outcome=missing, depths=manifest.depths if not writer.totals.depths else None)
            copied = writer.finish(classes=manifest.classes, source=manifest.source, created=manifest.created)
        if writer.replaces:  # a report in the working directory may be that of the same place on another server
            with suppress(OSError):
                writer.report_path.unlink()  # of the store that was there before
        return copied


def _checksums(store: Store) -> np.ndarray[Any, Any]:
    """Return the CRC-32 of each record, checked against the store's digest."""
    checksums = store.column("crc32")
    if hashlib.sha256(checksums.astype("<u4").tobytes()).hexdigest() != store.manifest.digest:
        raise DamagedStoreError(f"{store.place}: its column crc32 does not tell of the records that its digest is of")
    return checksums


def _records(store: Store, indices: Sequence[int], checksums: np.ndarray[Any, Any]) -> Iterator[EncodedRecord]:
    for index, document in zip(indices, store.documents(indices), strict=True):
        record = store.verified(document, index)
        if record.crc32 != checksums[index]:
            raise DamagedStoreError(f"{store.place}: record {index} ({record.name}) has been exchanged for another one")
        yield record


def _copy_events(store: Store, writer: Writer) -> None:
    """Copy the report. The writer's position counts the events that a resumed copy has already."""
    for number, event in enumerate(store.events()):
        if number >= writer.position:
            writer.write([], events=[event], position=number + 1)
