"""Compare a store with the files that it was made from, or with another store."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dbloader._machine import cpu_count
from dbloader._parallel import work_in_order
from dbloader._places import is_mongo
from dbloader.conversion.file_list import FileList
from dbloader.conversion.report import left_out
from dbloader.errors import DamagedRecordError, ImageError
from dbloader.ext.comparing.record_keys import record_keys
from dbloader.ext.sources.classes import class_numbers, numbered, use_classes
from dbloader.ext.sources.lmdb_files import find_lmdb, is_store
from dbloader.ext.sources.open import open_source
from dbloader.ext.sources.options import Reading
from dbloader.images.jpeg import State, examine, repair
from dbloader.records.columns import name_hash
from dbloader.records.record import TILES, Record, encode
from dbloader.sources.base import Entry, Listing, Loaded, Problem
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from dbloader._parallel import Hold
    from dbloader.checking.findings import Findings
    from dbloader.records.columns import Array
    from dbloader.sources.base import Source
    from dbloader.stores.base import Store

_T = TypeVar("_T")


def open_against(
    store: Store,
    against: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    notes: list[str],
    opened: ExitStack,
) -> tuple[Callable[[Findings, Callable[[int, int], object]], dict[str, int]], str]:
    """Return a function that compares ``store`` with the source or store ``against``, and the place of ``against``.

    ``opened`` closes ``against`` later. The function adds warnings to ``notes``, and returns ``VerifyReport.compared``.
    """
    if listing is None and _is_store(against):
        other = opened.enter_context(open_store(against))
        len(other)  # raises an error at once if the place is misspelled
        return partial(compare_stores, store, other), other.place
    origin = store.manifest.source
    source = opened.enter_context(
        closing(
            open_source(
                against,
                None if listing is None else Listing(listing, **(origin.get("columns") or {})),
                file_fields=() if listing is None else store.manifest.file_fields,
                reading=Reading(**{option.name: origin.get(option.name) for option in fields(Reading)}),
            )
        )
    )
    given, classes = origin.get("classes"), store.manifest.classes
    if given or (source.classes and {*source.classes} <= class_numbers(source.classes, classes).keys()):
        use_classes(source, given if given == "numbers" else classes)  # --append gives classes other numbers
    return partial(compare_files, store, source, notes), source.place


def _is_store(place: str | os.PathLike[str]) -> bool:
    if is_mongo(place) or is_sharded(place):
        return True
    file = find_lmdb(Path(place))
    return file is not None and is_store(file)


def compare_files(
    store: Store, source: Source, notes: list[str], findings: Findings, progress: Callable[[int, int], object]
) -> dict[str, int]:
    """Compare each record with the file of the same name in the source. Add each difference to ``findings``.

    Warnings about files that the source leaves out are added to ``notes``. Return the counts for
    ``VerifyReport.compared``.
    """
    names, compared = store.names(), Counter[str]()
    rejected = _rejected_names(store)
    left = np.ones(len(store), bool)
    matcher = _RecordMatcher(store.column("name_hash"), left)
    with tempfile.TemporaryFile() as data:
        files = FileList.of_source(source, data, lambda count: progress(0, count))
        notes += left_out(source, files.tally)["warnings"]
        records = np.full(len(files), -1)  # index of the record of each file; -1 for a file without a record
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
            findings.add("extra", index=index, name=name, reason=f"record {index} ({name}) has no file in the source")
        order = np.flatnonzero(records >= 0)

        def compare(part: slice, hold: Hold) -> list[tuple[int, str, str, str]]:
            items = [files[position] for position in order[part]]
            contents = source.load([item for item in items if isinstance(item, Entry)], hold)
            results = []
            for item, index in zip(items, records[order[part]].tolist(), strict=True):
                data = item if isinstance(item, Problem) else next(contents)
                if isinstance(data, Loaded):
                    item, data = data
                if isinstance(item, Entry):
                    item = item._replace(label=numbered(source, item.label))
                kind, reason = _compare_with_file(store, index, item, data)
                results.append((index, item.name, kind, reason))
            return results

        for index, name, kind, reason in _in_order(compare, len(order), progress):
            if reason:
                findings.add(kind, index=index, name=name, reason=f"record {index} ({name}) {reason}")
            else:
                compared[kind] += 1
    return dict(compared)


def _compare_with_file(store: Store, index: int, item: Entry | Problem, data: object) -> tuple[str, str]:
    """Compare a record with its file. Return (kind, reason).

    If they differ, ``kind`` is a key of ``VerifyReport.problems``. Otherwise ``kind`` is a key of
    ``VerifyReport.compared``, and ``reason`` is "".
    """
    if not isinstance(data, bytes):
        return "missing", f"is in the store, but its file {getattr(data, 'reason', '')}"
    try:
        (record,) = store.read([index])
    except DamagedRecordError:
        return "damaged", ""  # verify_store has already reported this record
    assert isinstance(item, Entry)  # ``data`` is bytes only for an Entry
    if item.label != record.label:
        return "label", f"has the label {record.label}, but the label of its file is {item.label}"
    for name, (path, *_) in item.files.items():
        if (stored := record.fields.get(name)) != (file := item.fields[name]) and not _is_repaired(stored, file):
            return "bytes", f"has a field {name!r} that differs from the bytes of the file {path}"
    kind = _compare_images(record, data)
    if kind == "bytes":
        return kind, f"has {len(record.image or b''):,} bytes that differ from the {len(data):,} bytes of its file"
    return kind, ""


def compare_stores(
    store: Store, other: Store, findings: Findings, progress: Callable[[int, int], object]
) -> dict[str, int]:
    """Compare the records of two stores. Add each difference to ``findings``.

    Only records with different checksums are read. Return the counts for ``VerifyReport.compared``.
    """
    if store.manifest.classes != other.manifest.classes:
        what = f"the class names of {store.place} and {other.place}, or the order of the names, differ"
        findings.add("classes", listed=False, index=None, name=None, reason=what)
    compared = Counter[str]()
    partners = _match(store, other, findings, compared)
    order, sizes = np.flatnonzero(partners >= 0), (store.column("nbytes"), other.column("nbytes"))

    def compare(part: slice, hold: Hold) -> list[tuple[Record, str, list[str]]]:
        mine, theirs = order[part], partners[order[part]]
        hold(int(sizes[0][mine].sum() + sizes[1][theirs].sum()))
        pairs = zip(store.read(mine.tolist()), other.read(theirs.tolist()), strict=True)
        return [(replace(mine, image=None), *_compare_records(mine, theirs)) for mine, theirs in pairs]

    for record, kind, differences in _in_order(compare, len(order), progress):
        if differences:
            parts = " and ".join(differences)
            reason = f"record {record.index} ({record.name}) differs from the record in {other.place}: {parts}"
            findings.add(*differences, index=record.index, name=record.name, reason=reason)
        else:
            compared[kind] += 1
    return dict(compared)


def _in_order(
    compare: Callable[[slice, Hold], list[_T]], count: int, progress: Callable[[int, int], object]
) -> Iterator[_T]:
    """Yield the results of ``compare`` for the positions from 0 to ``count`` - 1."""
    done = 0
    for batch in work_in_order(compare, count, cpu_count()):
        yield from batch
        done += len(batch)
        progress(done, count)


def _match(one: Store, other: Store, findings: Findings, compared: Counter[str]) -> Array:
    """Find pairs of records that have the same name but different contents.

    Records with the same content are counted in ``compared``. Records that are in only one store go to ``findings``.

    Returns:
        For each record in ``one``, the index of its partner in ``other``, or -1 without a partner: dtype int64.
    """
    names, their_names = one.names(), other.names()
    hashes, their_hashes = one.column("name_hash"), other.column("name_hash")
    keys = record_keys(one.column("crc32"), hashes, one.column("nbytes"))
    their_keys = record_keys(other.column("crc32"), their_hashes, other.column("nbytes"))
    common = min(len(keys), len(their_keys))
    left, partners = np.ones(len(their_keys), bool), np.full(len(keys), -1)
    left[:common] = keys[:common] != their_keys[:common]
    rest = np.concatenate([np.flatnonzero(left[:common]), np.arange(common, len(keys))])
    by_content = _RecordMatcher(their_keys, left)
    changed = np.array([by_content.take(keys[index]) is None for index in rest], bool)
    del by_content  # frees 20 bytes per record
    moved, rejected = len(rest) - int(changed.sum()), _rejected_names(one)
    by_name = _RecordMatcher(their_hashes, left)
    for index in map(int, rest[changed]):
        name = names[index]
        if index < common and left[index] and their_names[index] == name:
            partner: int | None = index
            left[index] = False
        else:
            partner = by_name.take(hashes[index], lambda at: their_names[at] == name) if name else None  # noqa: B023
        if partner is None:
            reason = f"record {index} ({name}) is not in {other.place}"
            findings.add("extra", index=index, name=name, reason=reason)
        else:
            partners[index] = partner
    for at in map(int, np.flatnonzero(left)):
        name = their_names[at]
        if name in rejected:
            compared["rejected"] += 1
        else:
            reason = f"record {at} ({name}) of {other.place} is not in {one.place}"
            findings.add("missing", listed=False, index=None, name=name, reason=reason)
    same = len(one) - moved - int((partners >= 0).sum()) - findings.counts["extra"]
    compared.update({kind: number for kind, number in (("same", same), ("moved", moved)) if number})
    return partners


def _compare_records(mine: Record, theirs: Record) -> tuple[str, list[str]]:
    """Compare two records with different checksums. Return (result of `_compare_images`, kinds of differences)."""
    image = _compare_images(mine, theirs.image)
    differences = ["bytes"] if image == "bytes" else []
    if mine.label != theirs.label:
        differences.append("label")
    if image in ("changed", "repaired"):  # the conversion may have changed width, height, format and tiles: ignore them
        mine, theirs = (
            Record(fields={name: value for name, value in record.fields.items() if name != TILES})
            for record in (mine, theirs)
        )
    bare = (encode(replace(record, image=None, label=None)).crc32 for record in (mine, theirs))
    # If nothing else differs, the fields must differ, because the checksums differ.
    if next(bare) != next(bare) or (image == "same" and not differences):
        differences.append("fields")
    return image, differences


def _compare_images(record: Record, image: object) -> str:
    """Compare the image of a record with the original image.

    Return "same", or how they differ. "changed": the conversion resized or tiled the image, or stored its pixels.
    "repaired": the conversion appended an end marker. "bytes": any other difference.
    """
    one = record.image
    if isinstance(one, np.ndarray) and isinstance(image, np.ndarray):
        return "same" if one.dtype == image.dtype and np.array_equal(one, image) else "bytes"
    if type(one) is type(image) and one == image:
        return "same"
    if not isinstance(one, bytes) or record.resized_from is not None or TILES in record.fields:
        return "changed"
    return "repaired" if isinstance(image, bytes) and _is_repaired(one, image) else "bytes"


def _is_repaired(stored: object, data: bytes) -> bool:
    """Return whether ``stored`` is the JPEG ``data`` with its missing end marker appended."""
    structure = examine(data)
    with suppress(ImageError):
        return structure.state is State.NO_END and repair(data, structure) == stored
    return False


def _rejected_names(store: Store) -> set[str]:
    """Return the names of the files that the conversion rejected."""
    return {event["name"] for event in store.events() if event["event"] == "rejected"}


class _RecordMatcher:
    """Finds records by a key, such as the hash of the name, and finds each record only once.

    Attributes:
        left: Mask of the records that can still be found: bool, shape (records,).
    """

    def __init__(self, keys: Array, left: Array) -> None:
        self.left = left
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        # At the first position of each key in ``_keys``: the number of its records that `take` skips, because they were
        # found before. Other elements are unused.
        self._taken = np.zeros(len(keys), np.uint32)

    def take(self, key: np.uint64 | np.uint32, accept: Callable[[int], bool] = lambda index: True) -> int | None:
        """Return the index of the first record with this key that ``accept`` accepts; None without one.

        Records that were found before do not count.
        """
        first, end = int(np.searchsorted(self._keys, key)), int(np.searchsorted(self._keys, key, "right"))
        if first == end:
            return None
        for at in range(first + int(self._taken[first]), end):
            index = int(self._order[at])
            if not self.left[index]:
                if at == first + self._taken[first]:
                    self._taken[first] += 1
            elif accept(index):
                self.left[index] = False
                return index
        return None
