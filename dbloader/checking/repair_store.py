"""Repair a store: what is whole, or can be made whole, becomes a new store; the rest is put into a folder."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dbloader.checking.findings import Findings
from dbloader.checking.stored_images import examine_images
from dbloader.conversion.memory_budget import return_large_blocks
from dbloader.errors import ConversionError, DamagedStoreError, OptionError, StoreExistsError
from dbloader.records.columns import COLUMNS
from dbloader.sources.base import full_path
from dbloader.sources.folder import EXTENSIONS
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import create_store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dbloader.checking.stored_images import Examined
    from dbloader.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        place: The new store.
        digest: Its content digest.
        records: Its records; all others of the old store are in ``quarantine``.
        repaired: Images that lacked only their end marker, and have it now.
        rejected: Records whose image is beyond repair.
        damaged: Records that are not what was written.
        quarantine: Folder of what is not in the new store, with ``listing.jsonl``; "" if everything is.
    """

    place: str
    digest: str
    records: int
    repaired: int
    rejected: int
    damaged: int
    quarantine: str


def repair_store(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> RepairReport:
    """Make a store of all records of another one whose images are whole, or lack only their end marker.

    Names, labels, fields and report are kept, and records are copied byte for byte. A record that is damaged, or whose
    image does not decode, is put into the folder ``<destination>.quarantine`` (of MongoDB
    ``<database>.<collection>.quarantine`` in the working directory), as a file that is named by its index. The store
    at ``source`` is not changed.

    Args:
        source: Place of the store.
        destination: Place of the new store.
        overwrite: Replace the store at ``destination``, or what a run left there that was killed.
        progress: Called with the number of records examined, and of all records.

    Raises:
        StoreError: The source cannot be read, or the destination cannot be written, or is taken.
        ConversionError: Not one record is whole.
        OptionError: Both places are the same.
    """
    return_large_blocks()
    with open_store(source) as store, create_store(destination, overwrite=overwrite) as writer:
        if store.place == writer.place or (not is_mongo(source) and full_path(source) == full_path(destination)):
            raise OptionError(f"{store.place} is the store to repair: give the new one another place")
        total, old, repaired = len(store), store.manifest, 0
        _check_length(store)
        folder = Path(f"{str(writer.report_path).removesuffix('.report.jsonl')}.quarantine")
        if folder.exists():
            raise StoreExistsError(f"{folder} exists already: move it away, or choose another destination")
        aside = Path(f"{folder}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir(parents=True)
            writer.write([], outcome={kind: old.outcome.get(kind, 0) for kind in ("resized", "reencoded")})
            with Findings(aside / "listing.jsonl") as rejected:
                try:
                    for event in store.events():
                        if event["event"] != "damaged":  # and stored nevertheless, which it will not be any more
                            writer.write([], events=[event], outcome={event["event"]: 1})
                except DamagedStoreError as error:
                    rejected.add("damaged", index=None, name=None, reason=str(error))
                for batch in examine_images(store):
                    events = [
                        {"name": done.name or "", "event": done.event, "reason": done.reason}
                        for done in batch
                        if done.event
                    ]
                    writer.write(
                        (done.record for done in batch if done.record is not None),
                        events=events,
                        outcome=Counter(event["event"] for event in events),
                        depths=Counter(done.depth for done in batch if done.depth),
                    )
                    repaired += sum(done.event == "repaired" for done in batch)
                    for done in batch:
                        if done.record is None:
                            kind, file = "damaged" if done.is_document else "rejected", _quarantine(aside, done)
                            rejected.add(kind, index=done.index, name=done.name, reason=done.reason, file=file)
                    progress(min(batch[-1].index + 1, total), total)
            if total and not writer.length:
                first = rejected.first[0]["reason"]
                raise ConversionError(  # noqa: TRY301 - what was written aside is removed below
                    f"{store.place}: not one of its {total:,} records is whole; the first: {first}"
                )
            changes = {"check": "decode", "repaired": store.place}
            manifest = writer.finish(classes=old.classes, source={**old.source, **changes})
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    if rejected.counts:
        aside.rename(folder)
    else:
        shutil.rmtree(aside)
    return RepairReport(
        place=writer.place,
        digest=manifest.digest,
        records=manifest.length,
        repaired=repaired,
        rejected=rejected.counts["rejected"],
        damaged=rejected.counts["damaged"],
        quarantine=str(folder) if rejected.counts else "",
    )


def _check_length(store: Store) -> None:
    """Raise DamagedStoreError if no column has as many records as the manifest: there would be no end of them."""
    for name in COLUMNS[:-1]:
        with suppress(DamagedStoreError):
            store._open().chunks(name)
            return
    store._open().chunks(COLUMNS[-1])


def _quarantine(folder: Path, done: Examined) -> str:
    """Write what is rejected to a file named by its index; return the file's name, "" if nothing could be read."""
    if not done.data:
        return ""
    suffix = ".bson" if done.is_document else PurePosixPath(done.name or "").suffix.lower()
    file = f"{done.index:09}{suffix if suffix in (*EXTENSIONS, '.bson') else '.bin'}"
    (folder / file).write_bytes(done.data)
    return file
