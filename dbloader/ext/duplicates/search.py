"""Find images with the same bytes, or with nearly the same picture, in one store or in two stores.

Each image has a hash of 128 bits, and similar pictures have similar hashes. The search does not compare all pairs of
hashes. A hash has eight parts of 16 bits. If two hashes differ in at most 7 bits, at least one part is equal. If they
differ in at most 15 bits, at least one part differs in at most one bit. So only pairs with an equal or nearly equal
part are compared (Norouzi et al., "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012).
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import print_pretty, report_in_lines
from dbloader._options import whole_number
from dbloader.checking.findings import collect_findings
from dbloader.ext.duplicates.fingerprints import (
    BYTES_ONLY,
    DUPLICATE,
    HASHED,
    Groups,
    compute_fingerprints,
    fingerprint_path,
    load_fingerprints,
    load_groups,
    save_fingerprints,
)
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.ext.duplicates.fingerprints import Fingerprints
    from dbloader.records.columns import Array
    from dbloader.stores.base import Store

    Progress = Callable[[str, int, int], object]
    Save = Callable[..., None]

DISTANCE = 8
"""Default of ``distance``. docs/duplicates.md shows why it is 8."""

MAX_DISTANCE = 15

_MAX_PROBLEMS = 1000
_PARTS, _VALUES = 8, 2**16
_PAIRS = 2**20  # number of pairs that are compared at a time; 2**20 pairs take about 50 MB
_BIT_COUNTS = np.array([number.bit_count() for number in range(_VALUES)], np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesReport:
    """The result of `find_duplicates`.

    Attributes:
        places: The stores.
        records: The number of records in each store.
        distance: Pictures are similar if at most this many of the 128 bits of their hashes differ.
        groups: Number of originals that have duplicates. Between two stores, the originals are in the first store.
        duplicates: Number of duplicates: ``same`` (the same bytes) and ``near`` (a similar picture).
        bytes_only: Number of images that are compared only by their bytes: images of one color, gradients, and images
            with values that cannot be converted to 8 bits.
        unreadable: Number of damaged records and of images that cannot be decoded. Only the bytes of these images are
            compared.
        first: The first thousand duplicates, each with these keys: ``index``, ``name``, ``difference`` ("same" or
            "near"), ``bits`` (number of different bits), ``of`` (index of the original) and ``of_name`` (name of the
            original).
        problems: Reasons why records are unreadable, for the first thousand unreadable records.
        files: Paths of the files with fingerprints, if they could be written.
    """

    places: tuple[str, ...]
    records: tuple[int, ...]
    distance: int
    groups: int
    duplicates: dict[str, int]
    bytes_only: int
    unreadable: int
    first: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()

    __str__, _repr_pretty_ = report_in_lines, print_pretty


def find_duplicates(
    place: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    distance: int = DISTANCE,
    output: str | os.PathLike[str] | None = None,
    progress: Progress = lambda title, done, total: None,
) -> DuplicatesReport:
    """Find duplicates in one store, or images of ``other`` that are also in ``place``.

    The file ``<place>.duplicates`` keeps the fingerprints of all images in a store, and the duplicates within the
    store. For MongoDB, the file is ``<database>.<collection>.duplicates`` in the working directory. If the records
    change, the next search makes the file again.

    Args:
        place: Place of a store.
        other: Place of a second store. With a second store, only duplicates between the two stores are reported.
        distance: Pictures are similar if at most this many of the 128 bits of their hashes differ: 0 to 15.
        output: New file with a JSON line for each duplicate, which ``copy --drop`` can read.
        progress: Called with the name of the step, the number of records done, and the number of all records.

    Raises:
        OptionError: ``output`` exists, or ``distance`` is out of range.
        StoreError: A store cannot be read.
        OSError: ``output`` cannot be written.
    """
    whole_number("distance", distance, 0, MAX_DISTANCE)
    with ExitStack() as opened:
        stores = [opened.enter_context(open_store(one)) for one in (place, other) if one is not None]
        findings = opened.enter_context(collect_findings(output))
        if other is None:
            found, groups = search_store(stores[0], distance, progress, _save_or_warn)
            prints = [found]
        else:
            prints = [fingerprints_of(store, progress, _save_or_warn) for store in stores]
            groups = find_across(prints, 1, distance)
        for row in describe_rows(groups.rows, stores[0], stores[-1]):
            findings.add(row.pop("difference"), **row)
        return DuplicatesReport(
            places=tuple(store.place for store in stores),
            records=tuple(map(len, stores)),
            distance=distance,
            groups=len(groups.begins) - 1,
            duplicates=dict(findings.counts),
            bytes_only=sum(int((values["kind"] == BYTES_ONLY).sum()) for values, _ in prints),
            unreadable=sum(len(reasons) for _, reasons in prints),
            first=findings.first,
            problems=[reason for _, reasons in prints for reason in reasons.values()][:_MAX_PROBLEMS],
            files=tuple(str(path) for store in stores if (path := fingerprint_path(store.place)).exists()),
        )


def search_store(
    store: Store, distance: int, progress: Progress, save: Save = save_fingerprints
) -> tuple[Fingerprints, Groups]:
    """Find the duplicates in one store. If an earlier search with this ``distance`` saved its result, load the result.

    See `find_duplicates` for the arguments.

    Raises:
        StoreError: The store cannot be read.
        OSError: The result cannot be written.
    """
    prints, groups = fingerprints_of(store, progress, save), load_groups(store)
    if groups is None or groups.distance != distance:
        groups = _find_groups(prints.values, distance, 0)
        save(store, prints, groups)
    return prints, groups


def find_across(prints: Sequence[Fingerprints], number: int, distance: int) -> Groups:
    """Find the records of one store that are also in other stores.

    In the result, ``of`` is the position of the nearest record among the records of all other stores, in order.

    Args:
        prints: The fingerprints of all stores.
        number: Position in ``prints`` of the store whose duplicates are found.
        distance: Largest number of different bits in similar pictures, 0 to 15.
    """
    others = [found.values for found in prints]
    own = others.pop(number)
    return _find_groups(np.concatenate([*others, own]), distance, sum(map(len, others)))


def fingerprints_of(store: Store, progress: Progress, save: Save = save_fingerprints) -> Fingerprints:
    """Load the fingerprints of a store, or compute and save them."""
    prints = load_fingerprints(store)
    if prints is None:
        prints = compute_fingerprints(store, lambda done: progress("Looking", done, len(store)))
        save(store, prints)
    return prints


def _save_or_warn(store: Store, *found: Any) -> None:
    """Save fingerprints for the next search. If they cannot be saved, warn, because this search can go on."""
    try:
        save_fingerprints(store, *found)
    except OSError as error:
        what = f"{fingerprint_path(store.place)} cannot be written: {error.strerror or error}"
        warnings.warn(f"{what}; the next search must decode all images again", UserWarning, stacklevel=2)


def _find_groups(values: Array, distance: int, others: int) -> Groups:
    """Return all groups of duplicates. See `find_originals` for the arguments."""
    originals = find_originals(values, distance, others)
    found = np.flatnonzero(originals != np.arange(len(values)))
    found = found[np.argsort(originals[found], kind="stable")]
    rows = np.zeros(len(found), DUPLICATE)
    rows["index"], rows["of"] = found - others, originals[found]
    one, two = values[found], values[rows["of"]]
    rows["bits"] = np.where(one["kind"] == HASHED, _count_bits(one["seen"], two["seen"]), 0)
    rows["same"] = (one["content"] == two["content"]).all(axis=1)
    return Groups(distance, rows, np.append(np.flatnonzero(np.diff(rows["of"], prepend=-1)), len(rows)))


def describe_rows(rows: Array, store: Store, other: Store) -> Iterator[dict[str, Any]]:
    """Yield each duplicate in ``other`` and its original in ``store`` as a row of ``DuplicatesReport.first``."""
    for index, of, bits, same in map(np.void.item, rows):
        row = {"index": index, "name": other.name(index), "difference": "same" if same else "near", "bits": bits}
        yield {**row, "of": of, "of_name": store.name(of)}


def find_originals(values: Array, distance: int, others: int = 0) -> Array:
    """Return the index of each record's original. A record that is not a duplicate is its own original.

    In one store, the records are processed in order. A record that is not a duplicate becomes the original of later
    records that have no original yet and differ from it in at most ``distance`` bits.

    Args:
        values: Fingerprints of all records: dtype FINGERPRINT, shape (records,).
        distance: Largest number of different bits in similar pictures, 0 to 15.
        others: Position in ``values`` where a second store begins; 0 for one store. The original of a record in the
            second store is the nearest record in the first store.

    Returns:
        int64, shape (records,).
    """
    indices = np.arange(len(values))
    original = _first_alike(values)
    left = np.flatnonzero((original == indices) & (values["kind"] == HASHED))
    one, two = (left[left < others], left[left >= others]) if others else (left, left)
    seen = values["seen"]
    near = _near_pairs(seen[one], seen[two] if others else None, distance)
    pairs = [(one[i], two[j], bits) for i, j, bits in near]
    first, second, bits = map(np.concatenate, zip(*pairs, strict=True)) if pairs else (indices[:0],) * 3
    found = indices.copy()
    if others:
        order = np.lexsort((first, bits))[::-1]  # the nearest record is assigned last, so it replaces the others
        found[second[order]] = first[order]
    else:
        ordered = zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist(), strict=True)
        for i, j in sorted(set(ordered)):
            if found[i] == i and found[j] == j:
                found[j] = i
    original = found[original]
    return np.where((indices >= others) & (original < others), original, indices) if others else original


def _count_bits(one: Array, two: Array) -> Array:
    """Return the number of different bits in pairs of hashes: int64, shape (n,). Hashes are uint64, shape (n, 2)."""
    different = np.ascontiguousarray(one ^ two)
    counts = np.bitwise_count(different) if hasattr(np, "bitwise_count") else _BIT_COUNTS[different.view(np.uint16)]
    bits: Array = counts.sum(axis=1, dtype=np.int64)
    return bits


def _first_alike(values: Array) -> Array:
    """Return, for each record, the index of the first record with the same dHash: int64, shape (records,).

    Images without a dHash are compared by their bytes.
    """
    hashed = values["kind"] == HASHED
    codes = np.where(hashed[:, None], values["seen"], values["content"])
    order = np.lexsort((codes[:, 1], codes[:, 0], hashed))
    begins = np.ones(len(values), bool)
    ordered = codes[order]
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) | (hashed[order][1:] != hashed[order][:-1])
    begins |= ~(hashed | values["content"].any(axis=1))[order]  # a record without an image equals no other record
    first = np.empty(len(values), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))]
    return first


def _near_pairs(one: Array, two: Array | None, distance: int) -> Iterator[tuple[Array, Array, Array]]:
    """Find pairs of hashes that differ in at most ``distance`` bits: one hash in ``one``, the other in ``two``.

    Without ``two``, both hashes are in ``one``. Yield (positions in ``one``, positions in ``two``, numbers of different
    bits). A pair may be repeated. Without ``two``, a pair may also be repeated in reverse order.
    """
    flips = [0] if distance < _PARTS else [0, *(1 << bit for bit in range(16))]
    for part in range(_PARTS):
        # Sort the hashes by this part, so that hashes to be compared are neighbors in memory.
        keys, order = _sorted_parts(one, part)
        wanted, other_order = (keys, order) if two is None else _sorted_parts(two, part)
        ordered = one[order]
        others = ordered if two is None else two[other_order]
        starts = np.searchsorted(keys, np.arange(_VALUES + 1))
        for flip in flips:
            first, end = starts[wanted ^ flip], starts[(wanted ^ flip) + 1]
            if two is None:  # compare each pair only once
                first, end = (first, np.where(wanted & flip, first, end)) if flip else (np.arange(len(one)) + 1, end)
            total = np.concatenate([[0], np.cumsum(end - first)])
            at = 0
            while at < len(wanted):
                stop = max(at + 1, int(np.searchsorted(total, total[at] + _PAIRS, "right")) - 1)
                counts = np.diff(total[at : stop + 1])
                j = np.repeat(np.arange(at, stop), counts)
                i = np.arange(total[at], total[stop]) + np.repeat(first[at:stop] - total[at:stop], counts)
                near = _count_bits(ordered[i, :1], others[j, :1]) <= distance
                i, j = i[near], j[near]
                bits = _count_bits(ordered[i], others[j])
                near = bits <= distance
                yield order[i[near]], other_order[j[near]], bits[near]
                at = stop


def _sorted_parts(hashes: Array, part: int) -> tuple[Array, Array]:
    """Return (one part of the hashes in ascending order, positions of these hashes)."""
    values = np.ascontiguousarray(hashes).view(np.uint16)[:, part].astype(np.int64)
    order = np.argsort(values, kind="stable")
    return values[order], order
