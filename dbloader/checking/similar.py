"""Find fingerprints that differ in few bits, without comparing all pairs.

Two hashes of 128 bits that differ in at most 7 bits share one of their eight parts of 16 bits. If they differ in at
most 15 bits, one part differs in at most one bit (Norouzi et al., "Fast Search in Hamming Space with Multi-Index
Hashing", CVPR 2012). So only hashes with such a part are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dbloader.checking.fingerprints import HASHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.columns import Array

MAX_DISTANCE = 15

_PARTS, _VALUES = 8, 2**16
_PAIRS = 2**20  # compared at a time: some 50 MB
_BIT_COUNTS = np.array([number.bit_count() for number in range(_VALUES)], np.uint8)


def find_originals(values: Array, distance: int, others: int = 0) -> Array:
    """Return the index of each record's original, which is its own index if it is no duplicate.

    In one store, a record that is no duplicate becomes the original of all later records within ``distance`` bits that
    have no original yet.

    Args:
        values: FINGERPRINT of all records.
        distance: Most bits in which similar pictures differ, from 0 to 15.
        others: Start of a second store in ``values``; 0 for one store. With two stores, the original of a record in the
            second is the nearest record in the first.
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
        order = np.lexsort((first, bits))[::-1]  # the nearest is assigned last
        found[second[order]] = first[order]
    else:
        ordered = zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist(), strict=True)
        for i, j in sorted(set(ordered)):
            if found[i] == i and found[j] == j:
                found[j] = i
    original = found[original]
    return np.where((indices >= others) & (original < others), original, indices) if others else original


def count_bits(one: Array, two: Array) -> Array:
    """Return the number of bits in which pairs of hashes differ; both are uint64, shape (n, 2)."""
    different = np.ascontiguousarray(one ^ two)
    counts = np.bitwise_count(different) if hasattr(np, "bitwise_count") else _BIT_COUNTS[different.view(np.uint16)]
    bits: Array = counts.sum(axis=1, dtype=np.int64)
    return bits


def _first_alike(values: Array) -> Array:
    """Return the index of the first record with the same hash, or without a hash with the same bytes."""
    hashed = values["kind"] == HASHED
    codes = np.where(hashed[:, None], values["seen"], values["content"])
    order = np.lexsort((codes[:, 1], codes[:, 0], hashed))
    begins = np.ones(len(values), bool)
    ordered = codes[order]
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) | (hashed[order][1:] != hashed[order][:-1])
    begins |= ~(hashed | values["content"].any(axis=1))[order]  # nothing to compare
    first = np.empty(len(values), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))]
    return first


def _near_pairs(one: Array, two: Array | None, distance: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield pairs of positions whose hashes differ in at most ``distance`` bits, and the bits; some pairs repeatedly.

    Without ``two``, both are in ``one``, in either order.
    """
    flips = [0] if distance < _PARTS else [0, *(1 << bit for bit in range(16))]
    for part in range(_PARTS):
        # Sorted by this part, so memory is read in order.
        keys, order = _sorted_parts(one, part)
        wanted, other_order = (keys, order) if two is None else _sorted_parts(two, part)
        ordered = one[order]
        others = ordered if two is None else two[other_order]
        starts = np.searchsorted(keys, np.arange(_VALUES + 1))
        for flip in flips:
            first, end = starts[wanted ^ flip], starts[(wanted ^ flip) + 1]
            if two is None:  # each pair once
                first, end = (first, np.where(wanted & flip, first, end)) if flip else (np.arange(len(one)) + 1, end)
            total = np.concatenate([[0], np.cumsum(end - first)])
            at = 0
            while at < len(wanted):
                stop = max(at + 1, int(np.searchsorted(total, total[at] + _PAIRS, "right")) - 1)
                counts = np.diff(total[at : stop + 1])
                j = np.repeat(np.arange(at, stop), counts)
                i = np.arange(total[at], total[stop]) + np.repeat(first[at:stop] - total[at:stop], counts)
                near = count_bits(ordered[i, :1], others[j, :1]) <= distance
                i, j = i[near], j[near]
                bits = count_bits(ordered[i], others[j])
                near = bits <= distance
                yield order[i[near]], other_order[j[near]], bits[near]
                at = stop


def _sorted_parts(hashes: Array, part: int) -> tuple[Array, Array]:
    """Return one part of the hashes in ascending order, and their positions."""
    values = np.ascontiguousarray(hashes).view(np.uint16)[:, part].astype(np.int64)
    order = np.argsort(values, kind="stable")
    return values[order], order
