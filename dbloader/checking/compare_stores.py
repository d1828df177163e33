"""Compare a store with another one, record by record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dbloader._machine import cpu_count
from dbloader.checking.compare_files import RecordMatcher, compare_images, rejected_names
from dbloader.conversion.parallel import work_in_order
from dbloader.conversion.transcode import TILES
from dbloader.records.record import Record, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.checking.findings import Findings
    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.records.columns import Array
    from dbloader.stores.base import Store


def compare_stores(
    store: Store, other: Store, findings: Findings, progress: Callable[[int, int], object]
) -> dict[str, int]:
    """Add the differences between two stores to the findings, and return the counts of ``VerifyReport.compared``.

    Only records whose checksums differ are read.
    """
    if store.manifest.classes != other.manifest.classes:
        what = f"{store.place} has other names of classes than {other.place}, or another order of them"
        findings.add("classes", listed=False, index=None, name=None, reason=what)
    compared = Counter[str]()
    partners = _match(store, other, findings, compared)
    order, sizes = np.flatnonzero(partners >= 0), (store.column("nbytes"), other.column("nbytes"))

    def compare(part: slice, hold: Hold, budget: MemoryBudget) -> list[tuple[Record, str, list[str]]]:
        if budget.closed:
            return []
        mine, theirs = order[part], partners[order[part]]
        hold(int(sizes[0][mine].sum() + sizes[1][theirs].sum()))
        pairs = zip(store.read(mine.tolist()), other.read(theirs.tolist()), strict=True)
        return [(replace(mine, image=None), *_compare(mine, theirs)) for mine, theirs in pairs]

    done = 0
    for batch in work_in_order(compare, len(order), cpu_count()):
        for record, kind, differences in batch:
            if differences:
                reason = (
                    f"record {record.index} ({record.name}) has other {', '.join(differences)} than in {other.place}"
                )
                findings.add(*differences, index=record.index, name=record.name, reason=reason)
            else:
                compared[kind] += 1
        done += len(batch)
        progress(done, len(order))
    return dict(compared)


def _match(one: Store, other: Store, findings: Findings, compared: Counter[str]) -> Array:
    """Match the records that differ by name; return int64, shape (records of one,): the index in other, or -1."""
    names, their_names = one.names(), other.names()
    hashes, their_hashes = one.column("name_hash"), other.column("name_hash")
    # Among a million records without names, two often share a CRC-32. Fewer also have the same length.
    keys, their_keys = (
        store.column("crc32").astype("u8") << np.uint64(32) | hashed ^ store.column("nbytes").astype("u4")
        for store, hashed in ((one, hashes), (other, their_hashes))
    )
    common = min(len(keys), len(their_keys))
    left, partners = np.ones(len(their_keys), bool), np.full(len(keys), -1)
    left[:common] = keys[:common] != their_keys[:common]
    rest = np.concatenate([np.flatnonzero(left[:common]), np.arange(common, len(keys))])
    by_content = RecordMatcher(their_keys, left)
    changed = np.array([by_content.take(keys[index]) is None for index in rest], bool)
    del by_content  # 20 bytes a record
    moved, rejected = len(rest) - int(changed.sum()), rejected_names(one)
    by_name = RecordMatcher(their_hashes, left)
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


def _compare(mine: Record, theirs: Record) -> tuple[str, list[str]]:
    """Return how two images compare, and the parts that differ in two records whose checksums differ."""
    image = compare_images(mine, theirs.image)
    differences = ["bytes"] if image == "bytes" else []
    if mine.label != theirs.label:
        differences.append("label")
    if image in ("changed", "repaired"):  # the size and format may differ too
        mine, theirs = (
            Record(fields={name: value for name, value in record.fields.items() if name != TILES})
            for record in (mine, theirs)
        )
    bare = (encode(replace(record, image=None, label=None)).crc32 for record in (mine, theirs))
    if next(bare) != next(bare) or (image == "same" and not differences):  # their checksums differ
        differences.append("fields")
    return image, differences
