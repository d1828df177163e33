"""Copying a store to another place, of either kind: record by record, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader.errors import DamagedStoreError
from dbloader.records import encoded
from dbloader.stores import create_store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dbloader.manifest import Manifest
    from dbloader.stores import Store, Writer

# Records read at a time: enough to hide a round trip.
_BLOCK = 64


def copy_store(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Manifest:
    """Makes the same store at another place: the same records, report and manifest.

    Every record is checked on its way. If it is interrupted, nothing is at the destination but what was there before,
    and ``resume`` goes on after the last commit.

    Args:
        source: Place of the store.
        destination: Place of the copy.
        overwrite: Replace the store at the destination, once the copy is finished.
        resume: Go on with an interrupted copy.
        progress: Called with the records copied and the records in all.

    Raises:
        StoreError: The source cannot be read, or the destination cannot be written, or is taken.
        DamagedRecordError: A record of the source is damaged.
        OptionError: Both ``overwrite`` and ``resume`` are given.
    """
    with open_store(source) as store:
        manifest = store.manifest
        with create_store(destination, overwrite=overwrite, resume=resume, resumable=True) as writer:
            writer.agree({"digest of the records": manifest.digest, "created": manifest.created})
            _copy_events(store, writer)
            while writer.length < len(store):
                progress(writer.length, len(store))
                indices = range(writer.length, min(writer.length + _BLOCK, len(store)))
                documents = store.documents(indices)
                writer.write([encoded(*pair) for pair in zip(documents, indices, strict=True)])
            progress(writer.length, len(store))
            missing = {what: count - writer.outcome[what] for what, count in manifest.outcome.items()}
            writer.write([], outcome=missing)
            copy = writer.finish(classes=manifest.classes, source=manifest.source, created=manifest.created)
    if copy.digest != manifest.digest:
        raise DamagedStoreError(f"{writer.place} has another digest than {store.place}, of which it is a copy")
    return copy


def _copy_events(store: Store, writer: Writer) -> None:
    """Copies the report; the writer's position counts its events."""
    for number, event in enumerate(store.events()):
        if number >= writer.position:
            writer.write([], events=[event], position=number + 1)
