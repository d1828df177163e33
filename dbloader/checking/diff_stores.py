"""Compare two stores, record by record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._machine import cpu_count
from dbloader.checking.findings import Findings
from dbloader.checking.record_matcher import RecordMatcher
from dbloader.conversion.parallel import work_in_order
from dbloader.conversion.resize import load_pixels
from dbloader.errors import ImageError
from dbloader.records.record import encode
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dbloader.conversion.memory_budget import MemoryBudget
    from dbloader.conversion.parallel import Hold
    from dbloader.records.names import Array
    from dbloader.records.record import Record
    from dbloader.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """The result of comparing two stores.

    Attributes:
        places: The two stores, A and B.
        records: Their numbers of records.
        same: Records that are the same in both, at the same index.
        moved: Records that are the same in both, at different indices.
        differences: Other records by how they differ: ``only in A``, ``only in B``; and of those with the same name
            ``bytes`` (of the image), ``pixels``, ``label``, ``fields`` (all else). A record can count several times.
        classes: Whether the names of the classes are the same.
        first: The first thousand differences: ``index`` (in A, or None), ``name``, ``difference``.
    """

    places: tuple[str, str]
    records: tuple[int, int]
    same: int
    moved: int
    differences: dict[str, int]
    classes: bool
    first: list[dict[str, Any]] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return self.classes and not self.moved and not self.differences


def diff_stores(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    pixels: bool = False,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> DiffReport:
    """Compare the records of two stores by index, name and content.

    Images are read only of records whose checksums differ.

    Args:
        a: Place of a store.
        b: Place of another one.
        pixels: Decode the images whose bytes differ, and compare their pixels.
        output: New file of JSON lines, one for each record of A that differs or that B lacks. Records that only
            moved are not in it.
        progress: Called with the number of records compared, and of all whose checksums differ.

    Raises:
        OptionError: ``output`` exists.
        StoreError: One of the stores cannot be read.
        DamagedRecordError: A record is damaged.
    """
    with open_store(a) as one, open_store(b) as other, Findings(output) as findings:
        partners, moved = _match(one, other, findings)
        order, sizes = np.flatnonzero(partners >= 0), (one.column("nbytes"), other.column("nbytes"))

        def compare(part: slice, hold: Hold, budget: MemoryBudget) -> list[tuple[int, str | None, list[str]]]:
            if budget.closed:
                return []
            mine, his = order[part], partners[order[part]]
            hold(int(sizes[0][mine].sum() + sizes[1][his].sum()))
            pairs = zip(one.read(mine.tolist()), other.read(his.tolist()), strict=True)
            return [(mine.index or 0, mine.name, _differences(mine, his, pixels=pixels)) for mine, his in pairs]

        done = 0
        for batch in work_in_order(compare, len(order), cpu_count()):
            for index, name, kinds in batch:
                findings.add(*kinds, index=index, name=name)
            done += len(batch)
            progress(done, len(order))
        return DiffReport(
            places=(one.place, other.place),
            records=(len(one), len(other)),
            same=len(one) - moved - len(order) - findings.counts["only in A"],
            moved=moved,
            differences=dict(findings.counts),
            classes=one.manifest.classes == other.manifest.classes,
            first=findings.first,
        )


def _match(one: Store, other: Store, findings: Findings) -> tuple[Array, int]:
    """Return the record of B for each of A that has the same name, -1 for the others, and how many just moved."""
    names, their_names = one.names(), other.names()
    hashes, their_hashes = one.column("name_hash"), other.column("name_hash")
    # Two of a million records without names often have the same CRC-32; fewer of them are equally long, too.
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
    moved = len(rest) - int(changed.sum())
    by_name = RecordMatcher(their_hashes, left)
    for index in map(int, rest[changed]):
        name = names[index]
        if index < common and left[index] and their_names[index] == name:
            partner: int | None = index
            left[index] = False
        else:
            partner = by_name.take(hashes[index], lambda at: their_names[at] == name) if name else None  # noqa: B023
        if partner is None:
            findings.add("only in A", index=index, name=name)
        else:
            partners[index] = partner
    for at in map(int, np.flatnonzero(left)):
        findings.add("only in B", listed=False, index=None, name=their_names[at])
    return partners, moved


def _differences(mine: Record, his: Record, *, pixels: bool) -> list[str]:
    kinds = []
    if not _same_image(mine.image, his.image):
        kinds.append("bytes")
        if pixels and not _same_image(_pixels(mine.image), _pixels(his.image)):
            kinds.append("pixels")
    if mine.label != his.label:
        kinds.append("label")
    bare = (encode(replace(record, image=None, label=None)).crc32 for record in (mine, his))
    return kinds if next(bare) == next(bare) and kinds else [*kinds, "fields"]  # their checksums differ


def _same_image(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(type(one) is type(other) and one == other)


def _pixels(image: Any) -> Any:
    """Return the pixels of an image file; an image that does not decode is the same as no other."""
    if isinstance(image, bytes):
        try:
            return load_pixels(image, None)
        except ImageError:
            return np.array(np.nan)
    return image
