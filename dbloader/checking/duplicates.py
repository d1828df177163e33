"""Find duplicate images in one store or between two: the same bytes, or nearly the same picture."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._options import whole_number
from dbloader.checking.findings import Findings
from dbloader.checking.fingerprints import (
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
from dbloader.checking.similar import MAX_DISTANCE, count_bits, find_originals
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from dbloader.checking.fingerprints import Fingerprints
    from dbloader.records.columns import Array
    from dbloader.stores.base import Store

DISTANCE = 8
"""Most of 128 bits in which similar pictures differ. docs/duplicates.md has the measurement."""

_MAX_PROBLEMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesReport:
    """The result of `find_duplicates`.

    Attributes:
        places: The stores.
        records: The number of records in each store.
        distance: Most of 128 bits in which similar pictures differ.
        groups: Number of originals, which have duplicates. Between two stores, originals are in the first.
        duplicates: Number of duplicates: ``same`` (the same bytes) and ``near`` (a similar picture).
        bytes_only: Images of one color or a gradient, or with values of unknown range. These are compared only by their
            bytes.
        unreadable: Damaged records, and images that do not decode. The latter are compared only by their bytes.
        first: The first thousand duplicates: ``index``, ``name``, ``difference`` (same or near), ``bits`` (in which the
            pictures differ), and ``of`` and ``of_name``, the original.
        problems: Why records are ``unreadable``, the first thousand.
        files: The files of fingerprints.
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


def find_duplicates(
    place: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    distance: int = DISTANCE,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], object] = lambda title, done, total: None,
) -> DuplicatesReport:
    """Find duplicates in one store, or images of ``other`` that are also in ``place``.

    The file ``<place>.duplicates`` keeps the fingerprints of all images, and the duplicates of a search in one store.
    For MongoDB it is ``<database>.<collection>.duplicates`` in the working directory. It is made again if the records
    change.

    Args:
        place: Place of a store.
        other: Place of a second store. Then only duplicates between the two are reported.
        distance: Most of 128 bits in which similar pictures differ, from 0 to 15.
        output: New file with a JSON line for each duplicate, as ``copy --drop`` takes it.
        progress: Called with the step, the number of records done, and the total.

    Raises:
        OptionError: ``output`` exists, or ``distance`` is out of range.
        StoreError: A store cannot be read.
        OSError: The fingerprints cannot be written.
    """
    whole_number("distance", distance, 0, MAX_DISTANCE)
    with ExitStack() as opened:
        stores = [opened.enter_context(open_store(one)) for one in (place, other) if one is not None]
        findings = opened.enter_context(Findings(output))
        prints = [fingerprints_of(store, progress) for store in stores]
        values = np.concatenate([values for values, _ in prints])
        groups = load_groups(stores[0]) if other is None else None
        if groups is None or groups.distance != distance:
            groups = _find_groups(values, distance, 0 if other is None else len(stores[0]))
            if other is None:
                save_fingerprints(stores[0], prints[0], groups)
        for row in describe_rows(groups.rows, stores[0], stores[-1]):
            findings.add(row.pop("difference"), **row)
        return DuplicatesReport(
            places=tuple(store.place for store in stores),
            records=tuple(map(len, stores)),
            distance=distance,
            groups=len(groups.begins) - 1,
            duplicates=dict(findings.counts),
            bytes_only=int((values["kind"] == BYTES_ONLY).sum()),
            unreadable=sum(len(reasons) for _, reasons in prints),
            first=findings.first,
            problems=[reason for _, reasons in prints for reason in reasons.values()][:_MAX_PROBLEMS],
            files=tuple(str(fingerprint_path(store.place)) for store in stores),
        )


def fingerprints_of(store: Store, progress: Callable[[str, int, int], object]) -> Fingerprints:
    """Load the fingerprints of a store, or compute and save them."""
    prints = load_fingerprints(store)
    if prints is None:
        prints = compute_fingerprints(store, lambda done: progress("Looking", done, len(store)))
        save_fingerprints(store, prints)
    return prints


def _find_groups(values: Array, distance: int, start: int) -> Groups:
    """Return all duplicates. For the arguments see `find_originals`."""
    originals = find_originals(values, distance, start)
    found = np.flatnonzero(originals != np.arange(len(values)))
    found = found[np.argsort(originals[found], kind="stable")]
    rows = np.zeros(len(found), DUPLICATE)
    rows["index"], rows["of"] = found - start, originals[found]
    one, two = values[found], values[rows["of"]]
    rows["bits"] = np.where(one["kind"] == HASHED, count_bits(one["seen"], two["seen"]), 0)
    rows["same"] = (one["content"] == two["content"]).all(axis=1)
    return Groups(distance, rows, np.append(np.flatnonzero(np.diff(rows["of"], prepend=-1)), len(rows)))


def describe_rows(rows: Array, store: Store, other: Store) -> Iterator[dict[str, Any]]:
    """Yield each duplicate in ``other`` and its original in ``store`` as a row of ``DuplicatesReport.first``."""
    for index, of, bits, same in map(np.void.item, rows):
        row = {"index": index, "name": other.name(index), "difference": "same" if same else "near", "bits": bits}
        yield {**row, "of": of, "of_name": store.name(of)}
