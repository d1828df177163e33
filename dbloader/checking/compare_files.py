"""Compare a store with the files that it was made from."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from dbloader._machine import cpu_count
from dbloader.conversion.file_list import FileList
from dbloader.conversion.parallel import work_in_order
from dbloader.conversion.report import left_out
from dbloader.conversion.transcode import TILES
from dbloader.errors import DamagedRecordError, ImageError
from dbloader.images.jpeg import State, examine, repair
from dbloader.records.columns import name_hash
from dbloader.sources.base import Entry, Loaded, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.checking.findings import Findings
    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.records.columns import Array
    from dbloader.records.record import Record
    from dbloader.sources.base import Source
    from dbloader.stores.base import Store


def compare_files(
    store: Store, source: Source, notes: list[str], findings: Findings, progress: Callable[[int, int], object]
) -> dict[str, int]:
    """Add what differs to the findings, and what the source leaves out to the notes; return the counts."""
    names, compared = store.names(), Counter[str]()
    rejected = rejected_names(store)
    left = np.ones(len(store), bool)
    matcher = RecordMatcher(store.column("name_hash"), left)
    with tempfile.TemporaryFile() as data:
        files = FileList.of_source(source, data, lambda count: progress(0, count))
        notes += left_out(source, files.tally)["warnings"]
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
    """Return the names of the files that the conversion rejected."""
    return {event["name"] for event in store.events() if event["event"] == "rejected"}


def compare_images(record: Record, image: object) -> str:
    """Return "same", "changed" (resized, tiled or raw), "repaired" or "bytes" for a record's image and its source."""
    one = record.image
    if isinstance(one, np.ndarray) and isinstance(image, np.ndarray):
        return "same" if one.dtype == image.dtype and np.array_equal(one, image) else "bytes"
    if type(one) is type(image) and one == image:
        return "same"
    if not isinstance(one, bytes) or record.resized_from is not None or TILES in record.fields:
        return "changed"
    return "repaired" if isinstance(image, bytes) and _is_repaired(one, image) else "bytes"


def _compare(store: Store, index: int, item: Entry | Problem, data: object) -> tuple[str, str]:
    """Return the kind of the comparison, and the problem or ""."""
    if not isinstance(data, bytes):
        return "missing", f"is in the store, but its file {getattr(data, 'reason', '')}"
    try:
        (record,) = store.read([index])
    except DamagedRecordError:
        return "damaged", ""  # reported already
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
    """Return whether the stored image is this JPEG with its missing end marker."""
    structure = examine(data)
    with suppress(ImageError):
        return structure.state is State.NO_END and repair(data, structure) == stored
    return False


class RecordMatcher:
    """Finds each record once by a number that few records share, such as the hash of the name.

    Attributes:
        left: bool, shape (records,): True for records that are not taken yet.
    """

    def __init__(self, keys: Array, left: Array) -> None:
        self.left = left
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._taken = np.zeros(len(keys), np.uint32)  # records to skip, by the position of a key's first record

    def take(self, key: np.uint64 | np.uint32, accept: Callable[[int], bool] = lambda index: True) -> int | None:
        """Take and return the first record with this key that ``accept`` accepts, or None."""
        first, end = int(np.searchsorted(self._keys, key)), int(np.searchsorted(self._keys, key, "right"))
        if first == end:
            return None
        for at in range(first + int(self._taken[first]), end):
            index = int(self._order[at])
            if not self.left[index]:
                self._taken[first] += at == first + self._taken[first]
            elif accept(index):
                self.left[index] = False
                return index
        return None
