"""Compare a store with the files that it was made of."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from dbloader._machine import cpu_count
from dbloader.checking.record_matcher import RecordMatcher
from dbloader.conversion.file_list import FileList
from dbloader.conversion.parallel import work_in_order
from dbloader.conversion.transcode import TILES
from dbloader.errors import DamagedRecordError, ImageError
from dbloader.images.jpeg import State, examine, repair
from dbloader.records.columns import name_hash
from dbloader.sources.base import Entry, Loaded, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.checking.findings import Findings
    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.records.record import Record
    from dbloader.sources.base import Source
    from dbloader.stores.base import Store


def compare_files(
    store: Store, source: Source, findings: Findings, progress: Callable[[int, int], object]
) -> dict[str, int]:
    """Add to the findings which files of a source are not in a store as they are, and which records are in no file.

    Returns the counts of ``VerifyReport.compared``.
    """
    names, compared = store.names(), Counter[str]()
    rejected = rejected_names(store)
    left = np.ones(len(store), bool)
    matcher = RecordMatcher(store.column("name_hash"), left)
    with tempfile.TemporaryFile() as data:
        files = FileList.of_source(source, data, lambda count: progress(0, count))
        records = np.full(len(files), -1)  # by the position of the file
        for position in range(len(files)):
            name = files[position].name
            index = matcher.take(np.uint32(name_hash(name.encode())), lambda at: names[at] == name)  # noqa: B023
            if index is not None:
                records[position] = index
            elif name in rejected:
                compared["rejected"] += 1
            else:
                findings.add("missing", index=None, name=name, reason=f"{name} is not in {store.place}")
        for index in map(int, np.flatnonzero(left)):
            name = names[index]
            findings.add(
                "extra", index=index, name=name, reason=f"record {index} ({name}) belongs to no file of the source"
            )
        order, done = np.flatnonzero(records >= 0), 0

        def compare(part: slice, hold: Hold, budget: MemoryBudget) -> list[tuple[int, str, str, str]]:
            items = [files[position] for position in order[part]]
            contents = source.load([item for item in items if isinstance(item, Entry)], hold)
            results = []
            for item, index in zip(items, records[order[part]].tolist(), strict=True):
                data = item if isinstance(item, Problem) or budget.closed else next(contents)
                if isinstance(data, Loaded):
                    item, data = data
                kind, reason = _compare(store, index, item, data)
                results.append((index, item.name, kind, reason))
            return results

        for batch in work_in_order(compare, len(order), cpu_count()):
            for index, name, kind, reason in batch:
                if reason:
                    findings.add(kind, index=index, name=name, reason=f"record {index} ({name}) {reason}")
                else:
                    compared[kind] += 1
            done += len(batch)
            progress(done, len(order))
    return dict(compared)


def rejected_names(store: Store) -> set[str]:
    """Return the names of the files that the conversion of a store has rejected."""
    return {event["name"] for event in store.events() if event["event"] == "rejected"}


def compare_images(record: Record, image: object) -> str:
    """Return how a record's image compares with what it was made of: same, changed, repaired or bytes."""
    one = record.image
    if isinstance(one, np.ndarray) and isinstance(image, np.ndarray):
        return "same" if one.dtype == image.dtype and np.array_equal(one, image) else "bytes"
    if type(one) is type(image) and one == image:
        return "same"
    if not isinstance(one, bytes) or record.resized_from is not None or TILES in record.fields:
        return "changed"
    return "repaired" if isinstance(image, bytes) and _is_repaired(one, image) else "bytes"


def _compare(store: Store, index: int, item: Entry | Problem, data: object) -> tuple[str, str]:
    """Return the kind of a comparison, and what is wrong; "" if nothing is."""
    if not isinstance(data, bytes):
        return "missing", f"is in the store, but its file {getattr(data, 'reason', '')}"
    try:
        (record,) = store.read([index])
    except DamagedRecordError:
        return "damaged", ""  # which was found before
    assert isinstance(item, Entry)  # as there are bytes
    if item.label != record.label:
        return "label", f"has the label {record.label}, but its file {item.label}"
    for name, (path, *_) in item.files.items():
        if (stored := record.fields.get(name)) != (file := item.fields[name]) and not _is_repaired(stored, file):
            return "bytes", f"has other bytes in {name!r} than the file {path}"
    kind = compare_images(record, data)
    if kind == "bytes":
        return kind, f"has {len(record.image or b''):,} bytes that are not the {len(data):,} of its file"
    return kind, ""


def _is_repaired(stored: object, data: bytes) -> bool:
    """Return whether what is stored is a file that lacked only its end marker, with the marker."""
    structure = examine(data)
    with suppress(ImageError):
        return structure.state is State.NO_END and repair(data, structure) == stored
    return False
