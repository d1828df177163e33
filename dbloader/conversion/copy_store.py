"""Copy stores to another place, of either kind: record by record, byte for byte."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dbloader._options import whole_number
from dbloader.conversion.copy_plan import Plan, make_plan
from dbloader.conversion.name_listing import RecordNames
from dbloader.conversion.sample_encoder import checked_names
from dbloader.conversion.stored_records import common_values
from dbloader.conversion.write_store import count_depth
from dbloader.errors import DamagedStoreError, OptionError, StoreError
from dbloader.records.columns import NO_LABEL
from dbloader.records.decode import decode
from dbloader.records.record import relabel
from dbloader.sources.base import full_path
from dbloader.stores.damage import READ_AT_ONCE
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import create_store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer

    Place = str | os.PathLike[str]

_CHANGES = ("resized", "reencoded")  # outcomes that records tell of; for all others the report has lines


@overload
def copy_store(source: Place | Sequence[Place], destination: Place, **options: Any) -> Manifest: ...
@overload
def copy_store(
    source: Place | Sequence[Place], destination: Sequence[Place], *, split: Sequence[float], **options: Any
) -> list[Manifest]: ...
def copy_store(  # type: ignore[misc] # the overloads do not name the options again
    source: Place | Sequence[Place],
    destination: Place | Sequence[Place],
    *,
    select: Place | None = None,
    drop: Place | None = None,
    classes: Sequence[str] = (),
    where: Sequence[str] = (),
    labels: Place | None = None,
    rename_classes: Mapping[str, str] | None = None,
    split: Sequence[float] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Manifest | list[Manifest]:
    """Copy a store, a selection of its records, or several stores into one, or divide them among several.

    Images are not decoded: they stay byte for byte, and every record is checked before it is written. A single source
    without options gives the same store: the same records, report and manifest. Otherwise the records are those that a
    conversion of the same files would make. They stay in the order of the sources.

    First all destinations are written, then each is published. An interruption or a damaged record before that leaves
    all of them as they were; ``resume`` continues after the last commit.

    Args:
        source: Place of the store, or several places. Classes are united by their names.
        destination: Place of the copy; with ``split`` one for each fraction.
        select: Listing of the records to copy: a ``.txt`` with a name on each line, or a ``.jsonl``, ``.json``,
            ``.csv`` or ``.tsv`` with a column ``name`` or ``path``. If it has a column ``index``, that is the position
            in the first source. It is an error if a record is missing.
        drop: Listing of the records to leave out; a warning counts those that are missing.
        classes: Names of classes; copy only their records. Only these classes are left, with labels from 0 on.
        where: Conditions that each record must fulfil, such as ``"width<64"``: ``width``, ``height``, ``nbytes`` (of
            the image) or ``label``, then ``<``, ``<=``, ``>``, ``>=``, ``==`` or ``!=``, then an integer. A record
            without the value does not fulfil it.
        labels: Listing with a column ``label``, ``class`` or ``target``: integers or names of classes. Records that it
            does not name keep their labels. If it names all, its classes are those of the copy.
        rename_classes: New name for each of some classes; the name of another class unites the two.
        split: Fractions of the records, whose sum is 1: divide them at random, each label in these proportions.
        seed: Seed of ``split``.
        overwrite: Replace the store at a destination, once the copy is finished.
        resume: Continue an interrupted copy; begin if none was interrupted. Refused if the sources have changed, or an
            option that decides the records.
        progress: Called with the number of records copied, and of all that will be.

    Returns:
        The manifest; with ``split`` one for each destination.

    Raises:
        TypeError: ``overwrite`` or ``resume`` is not True or False, or ``seed`` is not an int.
        OptionError: An option is wrong, or no record is left, or the labels of two sources cannot be united.
        SourceError: A listing cannot be read, or names a record that is not there.
        StoreError: A source cannot be read, or a destination cannot be written, or is taken.
        DamagedRecordError: A record of a source is damaged.
        DamagedStoreError: A record is not damaged, but differs from its source's columns or digest.
    """
    places = _each(destination)
    if len(places) != (1 if split is None else len(split)):
        wanted = "one destination without split" if split is None else f"a destination for each of {len(split)} parts"
        raise OptionError(f"split (--split): there must be {wanted}, got {len(places)}")
    if len(set(map(str, places))) < len(places):
        raise OptionError(
            "split (--split): each part needs a place of its own, and two of the destinations are the same"
        )
    options: dict[str, Any] = {
        "select": None if select is None else Path(select),  # an empty path is true then, and an error later
        "drop": None if drop is None else Path(drop),
        "classes": checked_names("classes", classes, "('cat', 'dog')"),
        "where": checked_names("where", where, "('width<64', 'label==3')"),
        "labels": None if labels is None else Path(labels),
        "rename_classes": dict(rename_classes or {}),
        "split": None if split is None else tuple(map(float, split)),
        "seed": whole_number("seed", seed),
    }
    done: list[Manifest | None] = [None] * len(places)
    with ExitStack() as stack:
        copy = _Copy([stack.enter_context(open_store(place)) for place in _each(source)], options)
        if split and resume:
            done = [_published(place, copy.source(number)) for number, place in enumerate(places)]
            done = done if None in done else [None] * len(places)  # a writer says that there is nothing to resume
        writers = {
            number: stack.enter_context(create_store(place, overwrite=overwrite, resume=resume, resumable=True))
            for number, place in enumerate(places)
            if done[number] is None
        }
        for number, writer in writers.items():
            writer.check_settings(copy.settings(number))
        for number, writer in writers.items():
            copy.write(number, writer, progress)
        for number, writer in writers.items():
            done[number] = writer.finish(classes=copy.plan.classes, source=copy.source(number), created=copy.created)
            if writer.replaces:  # a report in the working directory may be that of the same place on another server
                with suppress(OSError):
                    writer.report_path.unlink()  # of the store that was there before
    manifests = [manifest for manifest in done if manifest]
    return manifests[0] if split is None else manifests


class _Copy:
    """What is copied from some stores; ``number`` counts the destinations."""

    def __init__(self, stores: Sequence[Store], options: dict[str, Any]) -> None:
        self._stores = stores
        self._names = RecordNames(stores)
        self._manifests = [store.manifest for store in stores]
        self._checksums = np.concatenate([_checksums(store) for store in stores])
        used = {name: value for name, value in options.items() if value and name != "seed"}
        if "split" in used:
            used["seed"] = options["seed"]
        self._chosen = {name: _plain(value) for name, value in used.items()}
        self._is_same = len(stores) == 1 and not self._chosen
        if self._is_same:
            self.plan = Plan([range(len(stores[0]))], None, self._manifests[0].classes, complete=True)
        else:
            self.plan = make_plan(self._names, options)
        self.created = self._manifests[0].created if self._is_same else None

    def settings(self, number: int) -> dict[str, str]:
        """Return the settings that a resumed copy must share."""
        settings = {
            "digest of the records": ", ".join(manifest.digest for manifest in self._manifests),
            "created": ", ".join(manifest.created for manifest in self._manifests),
        }
        return settings if self._is_same else {**settings, "choice of records and labels": self.plan.digest(number)}

    def source(self, number: int) -> dict[str, Any]:
        """Return the ``source`` of a manifest."""
        if self._is_same:
            return self._manifests[0].source
        common = common_values([manifest.source for manifest in self._manifests])
        common.pop("listing", None)
        places = [store.place if is_mongo(store.place) else full_path(store.place) for store in self._stores]
        copied = {**self._chosen, "part": number, "stores": places, **self.settings(number)}
        return {**common, "path": ", ".join(places), "copy": copied}

    def write(self, number: int, writer: Writer, progress: Callable[[int, int], object]) -> None:
        """Write the records of a destination, and the lines of the report that are about them."""
        part = self.plan.parts[number]
        before, total = (sum(map(len, parts)) for parts in (self.plan.parts[:number], self.plan.parts))
        lines: Counter[str] = Counter()
        # The writer's position counts the lines that a resumed copy has already.
        for at, event in enumerate(self._events(part)):
            lines[event["event"]] += 1
            if at >= writer.position:
                writer.write([], events=[event], position=at + 1)
        while writer.length < len(part):
            progress(before + writer.length, total)
            outcome, depths = Counter[str](), Counter[str]()
            records = self._records(part[writer.length : writer.length + READ_AT_ONCE], outcome, depths)
            writer.write(records, outcome=outcome, depths=depths)
        progress(before + writer.length, total)
        files, depths = Counter[str](), Counter[str]()
        for manifest in self._manifests:
            files.update(manifest.outcome)
            depths.update(manifest.depths)
        if not self.plan.complete:  # those of the records are counted already
            files, depths = Counter({kind: lines[kind] for kind in files if kind not in _CHANGES}), Counter()
        missing = {kind: count - writer.totals.outcome[kind] for kind, count in files.items()}
        writer.write([], outcome=missing, depths=None if writer.totals.depths else depths)

    def _records(self, positions: Any, files: Counter[str], depths: Counter[str]) -> Iterator[EncodedRecord]:
        """Yield records with their new labels; count what was done to the files, unless all records are copied."""
        positions = np.asarray(positions)
        stores = np.searchsorted(self._names.starts, positions, "right") - 1
        for number in np.unique(stores).tolist():
            store, here = self._stores[number], positions[stores == number].tolist()
            indices = [position - self._names.starts[number] for position in here]
            for position, index, document in zip(here, indices, store.documents(indices), strict=True):
                record = store.verified(document, index)
                if record.crc32 != self._checksums[position]:
                    what = f"record {index} ({record.name}) has been exchanged for another one"
                    raise DamagedStoreError(f"{store.place}: {what}")
                if not self.plan.complete:
                    whole = decode(document, index, view=True)
                    depths.update(count_depth(whole))
                    if whole.resized_from:
                        files["reencoded" if whole.resized_from == (whole.width, whole.height) else "resized"] += 1
                label = record.label if self.plan.labels is None else int(self.plan.labels[position])
                label = None if label == NO_LABEL else label
                yield record if label == record.label else relabel(record, label)

    def _events(self, part: Any) -> Iterator[dict[str, str]]:
        """Yield the lines of all reports, or those that are about the records of one part of many."""
        for number, store in enumerate(self._stores):
            start = self._names.starts[number]
            seen: defaultdict[tuple[str, str], count[int]] = defaultdict(count)
            for event in store.events():
                if not self.plan.complete:
                    found = [at for at in self._names.find(event["name"]) if start <= at < start + len(store)]
                    # The lines about several records of one name are in the order of the records.
                    nth = next(seen[event["name"], event["event"]]) if len(found) > 1 else 0
                    if event["event"] == "rejected" or nth >= len(found) or not _contains(part, found[nth]):
                        continue
                yield event


def _contains(part: Any, position: int) -> bool:
    at = int(np.searchsorted(part, position))
    return at < len(part) and bool(part[at] == position)


def _published(place: Place, source: dict[str, Any]) -> Manifest | None:
    """Return the manifest of the store at a place, if it is the finished copy that has this ``source``."""
    with suppress(StoreError), open_store(place) as store:
        if store.manifest.source == source:
            return store.manifest
    return None


def _each(places: Place | Sequence[Place]) -> list[Place]:
    return [places] if isinstance(places, (str, bytes, os.PathLike)) else [*places]


def _plain(value: Any) -> Any:
    """Return the value of an option as a manifest holds it."""
    return full_path(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def _checksums(store: Store) -> np.ndarray[Any, Any]:
    """Return the CRC-32 of each record, checked against the store's digest."""
    checksums = store.column("crc32")
    if hashlib.sha256(checksums.astype("<u4").tobytes()).hexdigest() != store.manifest.digest:
        raise DamagedStoreError(f"{store.place}: its column crc32 does not tell of the records that its digest is of")
    return checksums
