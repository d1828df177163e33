"""Copy records byte for byte: selected records of some stores, or the intact records of a damaged store."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._places import is_mongo
from dbloader.errors import ConversionError, DamagedStoreError, OptionError
from dbloader.ext.copying.listings import RecordNames
from dbloader.ext.copying.select_records import select_records
from dbloader.ext.publishing.common_source import common_source
from dbloader.ext.sources.boxes import LABELS, relabel_boxes
from dbloader.images.info import count_depth
from dbloader.records.columns import COLUMNS, NO_LABEL
from dbloader.records.decode import decode
from dbloader.records.manifest import CLASS_LISTS
from dbloader.records.record import encode
from dbloader.sources.base import full_path
from dbloader.stores.base import READ_AT_ONCE, Damage, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.ext.copying.select_records import Choice
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord, Record
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer

_CHANGES = ("resized", "reencoded")  # changes without report lines: a partial copy counts them in its records


class RecordCopier:
    """Copies selected records of some stores to one or more numbered destinations."""

    def __init__(self, stores: Sequence[Store], choice: Choice) -> None:
        self._stores = stores
        self._names = RecordNames(stores)
        self._manifests = [store.manifest for store in stores]
        self._checksums = np.concatenate([_verified_checksums(store) for store in stores])
        self._chosen = choice.described()
        self._is_same = len(stores) == 1 and not self._chosen
        self.selection = select_records(self._names, choice)
        self.created = self._manifests[0].created if self._is_same else None
        # Whether the lists of an image's classes get new labels. They keep the old labels if a class is left out.
        self._unites_lists = all(
            table is None or len(table) == len(manifest.classes)
            for table, manifest in zip(self.selection.tables, self._manifests, strict=True)
        )

    def settings(self, number: int) -> dict[str, str]:
        """Return the settings that must not change when a copy resumes."""
        settings = {
            "digest of the records": ", ".join(manifest.digest for manifest in self._manifests),
            "created": ", ".join(manifest.created for manifest in self._manifests),
        }
        if self._is_same:
            return settings
        chosen = ", ".join(f"{name}={value}" for name, value in self._chosen.items())
        return {
            **settings,
            "choice of records and labels": f"{chosen or 'all'}; SHA-256 {self.selection.digest(number)}",
        }

    def source(self, number: int) -> dict[str, Any]:
        """Return ``source`` for the manifest of a destination."""
        if self._is_same:
            return self._manifests[0].source
        common = common_source(self._manifests, unites_lists=self._unites_lists)
        common.pop("listing", None)
        places = [store.place if is_mongo(store.place) else full_path(store.place) for store in self._stores]
        copied = {**self._chosen, "part": number, "stores": places, **self.settings(number)}
        return {**common, "path": ", ".join(places), "copy": copied}

    def write(self, number: int, writer: Writer, progress: Callable[[int, int], object]) -> None:
        """Write the records of a destination, and the report lines about these records."""
        part = self.selection.parts[number]
        before, total = (sum(map(len, parts)) for parts in (self.selection.parts[:number], self.selection.parts))
        lines: Counter[str] = Counter()
        # The writer's position is the number of report lines that an interrupted copy has written.
        for at, event in enumerate(self._events(part)):
            lines[event["event"]] += 1
            if at >= writer.position:
                writer.write([], events=[event], position=at + 1)
        while writer.length < len(part):
            progress(before + writer.length, total)
            changes, depths = Counter[str](), Counter[str]()
            records = self._records(part[writer.length : writer.length + READ_AT_ONCE], changes, depths)
            writer.write(records, outcome=changes, depths=depths)
        progress(before + writer.length, total)
        wanted, depths = Counter[str](), Counter[str]()
        for manifest in self._manifests:
            wanted.update(manifest.outcome)
            depths.update(manifest.depths)
        if not self.selection.complete:  # in a partial copy, `_records` has counted changes and depths
            wanted, depths = Counter({kind: lines[kind] for kind in wanted if kind not in _CHANGES}), Counter()
        missing = {kind: count - writer.totals.outcome[kind] for kind, count in wanted.items()}
        writer.write([], outcome=missing, depths=None if writer.totals.depths else depths)

    def _records(self, positions: Any, changes: Counter[str], depths: Counter[str]) -> Iterator[EncodedRecord]:
        """Yield records with new labels. In a partial copy, also count changed images, and the bit depths of images."""
        positions = np.asarray(positions)
        stores = np.searchsorted(self._names.starts, positions, "right") - 1
        for number in np.unique(stores).tolist():
            store, here = self._stores[number], positions[stores == number].tolist()
            indices = [position - self._names.starts[number] for position in here]
            store.prefetch(indices)
            for position, index, record in zip(here, indices, store.encoded(indices), strict=True):
                if record.crc32 != self._checksums[position]:
                    what = f"record {index} ({record.name}) has been replaced by another record"
                    raise DamagedStoreError(f"{store.place}: {what}")
                if not self.selection.complete:
                    whole = _whole(record)
                    depths.update(count_depth(whole.image))
                    changes.update(_count_change(whole))
                label = record.label if self.selection.labels is None else int(self.selection.labels[position])
                label = None if label == NO_LABEL else label
                lists = self._lists(number, record, index)
                if label == record.label and not lists:
                    yield record
                else:
                    whole = _whole(record)
                    yield encode(replace(whole, label=label, fields=whole.fields | lists))

    def _lists(self, number: int, record: EncodedRecord, index: int) -> dict[str, Any]:
        """Return the fields with new labels, for boxes and for lists of classes; {} if no field changes."""
        store, table = self._stores[number], self.selection.tables[number]
        unites_lists = self._unites_lists and store.manifest.target == CLASS_LISTS
        names = (LABELS, CLASS_LISTS) if unites_lists else (LABELS,)
        if table is None or record.fields.keys().isdisjoint(names):
            return {}
        fields = _whole(record).fields
        try:
            new = {name: relabel_boxes(fields[name], table) for name in names if name in fields}
            return {name: sorted({*of}) if name == CLASS_LISTS and of else of for name, of in new.items()}
        except KeyError as error:
            label = error.args[0]
            name = dict(enumerate(store.manifest.classes)).get(label, "without a class")
            raise OptionError(
                f"{store.place}: record {index} ({record.name}) has a box with the label {label} ({name}), which is "
                "not a class of the copy: leave out such records (--drop), or give all sources the same classes"
            ) from error

    def _events(self, part: Any) -> Iterator[dict[str, str]]:
        """Yield the report lines of all sources. In a partial copy, yield only lines about the records at ``part``."""
        inside = np.zeros(self._names.starts[-1], bool)
        inside[part] = True
        for number, store in enumerate(self._stores):
            start = self._names.starts[number]
            seen: defaultdict[tuple[str, str], count[int]] = defaultdict(count)
            for event in store.events():
                if not self.selection.complete:
                    found = [at for at in self._names.find(event["name"]) if start <= at < start + len(store)]
                    # The report is in the order of the records: the nth line with a name is about the nth such record.
                    nth = next(seen[event["name"], event["event"]]) if len(found) > 1 else 0
                    if event["event"] == "rejected" or nth >= len(found) or not inside[found[nth]]:
                        continue
                yield event


def copy_intact(
    store: Store, writer: Writer, skip: Callable[[str], object], progress: Callable[[int, int], object]
) -> Manifest:
    """Write all intact records, and return the manifest. Call ``skip`` with the reason for each other record.

    New columns and counts are computed from the records. The copy keeps the report up to its first damaged line, and
    adds a line for each record that is left out.

    Raises:
        ConversionError: No record is intact.
        DamagedStoreError: No column confirms the number of records.
    """
    old, total = store.manifest, len(store)
    _check_length(store)
    checksums = None
    with suppress(DamagedStoreError):
        checksums = _verified_checksums(store)
    reasons: list[str] = []
    lost: list[Damage] = []
    changes, depths = Counter[str](), Counter[str]()

    def intact(indices: range) -> Iterator[EncodedRecord]:
        for record, index in read_records(store, indices):
            if isinstance(record, Damage):
                lost.append(record)
            elif checksums is not None and record.crc32 != checksums[index]:
                what = f"{store.place}: record {index} ({record.name}) has been replaced by another record"
                lost.append(Damage(DamagedStoreError(what), index, record.name))
            else:
                whole = _whole(record)
                depths.update(count_depth(whole.image))
                changes.update(kind for kind in _count_change(whole) if kind in old.outcome)
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
        raise ConversionError(f"{store.place}: no record of {total:,} is intact; the first: {reasons[0]}")
    writer.write([], outcome=changes, depths=depths)
    progress(total, total)
    return writer.finish(classes=old.classes, source=old.source, created=None if reasons else old.created)


def _check_length(store: Store) -> None:
    """Raise DamagedStoreError if no column confirms the number of records. A damaged manifest may say any number."""
    for name in COLUMNS[:-1]:
        with suppress(DamagedStoreError):
            store.open_handle().chunks(name)
            return
    store.open_handle().chunks(COLUMNS[-1])


def _whole(record: EncodedRecord) -> Record:
    """Return a record with all its fields."""
    return decode(record.document(0, 0), 0, 0, view=True)


def _count_change(record: Record) -> dict[str, int]:
    """Return ``{"resized": 1}`` or ``{"reencoded": 1}`` if the conversion changed the image, otherwise ``{}``."""
    if not record.resized_from:
        return {}
    return {"reencoded" if record.resized_from == (record.width, record.height) else "resized": 1}


def _verified_checksums(store: Store) -> np.ndarray[Any, Any]:
    """Return the CRC-32 of each record, or raise DamagedStoreError if they disagree with the store's digest."""
    checksums = store.column("crc32")
    if hashlib.sha256(checksums.astype("<u4").tobytes()).hexdigest() != store.manifest.digest:
        raise DamagedStoreError(f"{store.place}: its column crc32 does not match its digest")
    return checksums
