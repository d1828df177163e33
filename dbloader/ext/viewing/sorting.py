"""Sort the records of a search by a column, or by the similarity of vectors such as embeddings."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import listed, short_repr
from dbloader.errors import DamagedRecordError, OptionError
from dbloader.ext.duplicates.fingerprints import read_each
from dbloader.ext.queries.columns import parts
from dbloader.stores.base import READ_AT_ONCE

if TYPE_CHECKING:
    from dbloader.ext.queries.columns import Array, Columns
    from dbloader.ext.viewing.selection import Selections
    from dbloader.stores.base import Store

ODD = "odd"  # the order that puts images with a rare size (width and height) first
LIKE = "like:"  # like:embedding:17 compares the vectors in the field embedding with the vector of record 17
_MOST_BYTES = 2**29  # most bytes of all vectors of a field together
_DIGITS = 18  # most digits of an index; int() raises an error for thousands of digits


def sort_records(selections: Selections, query: str, by: str) -> Any:
    """Return the indices of the records that match a query, sorted by a column.

    Records with equal values are in the order of their indices. Records without a value are always last. ``by`` is the
    name of a column, ``ODD``, or ``like:FIELD:INDEX`` (see ``LIKE``). A ``-`` before the name reverses the order. ""
    means the order of the store.

    Raises:
        OptionError: The query is wrong, or the store has no such column or vectors.
    """
    indices = selections.select(query)
    if not by:
        return indices
    name, columns = by.removeprefix("-"), selections.columns
    if name.startswith(LIKE):
        return selections.orders.get((selections.key(query), by), lambda: _by_similarity(selections, indices, by))
    if name not in (*columns.sortable, ODD):
        known = listed((*columns.sortable, ODD))
        raise OptionError(f"sort must be one of {known}, or one of these after a -, got {short_repr(by, 50)}")
    make = _by_rarity if name == ODD else _by_column
    return selections.orders.get(
        (selections.key(query), selections.key(by)), lambda: make(columns, indices, name, descending=by[0] == "-")
    )


def find_position(selections: Selections, query: str, by: str, index: int) -> int | None:
    """Return the position of a record in the result of `sort_records`; None if the record is not in the result.

    But without ``by``, return the position of the next higher index, if there is one.
    """
    indices = sort_records(selections, query, by)
    if by:
        found = np.flatnonzero(indices == index)
        return int(found[0]) if len(found) else None
    at = min(index, len(selections.store))
    at = at if isinstance(indices, range) else int(indices.searchsorted(indices.dtype.type(at)))
    return at if at < len(indices) else None


def _by_column(columns: Columns, indices: Any, name: str, *, descending: bool) -> Array:
    keys, known = np.empty(len(indices), np.uint64), np.empty(len(indices), bool)
    for part, here in parts(indices):
        values, known[part] = columns.known(name, here)
        keys[part] = _ordered(values)
    return _at(indices, _argsort(keys, known, descending=descending))


def _by_similarity(selections: Selections, indices: Any, by: str) -> Array:
    field, _, index = by.removeprefix("-").removeprefix(LIKE).rpartition(":")
    if not index.isdecimal() or len(index) > _DIGITS or int(index) >= len(selections.store):
        raise OptionError(f"sort must be {LIKE}FIELD:INDEX, with the index of a record, got {short_repr(by, 50)}")
    vectors = selections.vectors.get(field, lambda: _read_vectors(selections.store, field))
    if np.isnan(vectors[int(index)]).all():
        raise OptionError(f"record {index} has no vector in {short_repr(field)} with the length of the first vector")
    cosines = (vectors @ vectors[int(index)])[np.asarray(indices)]
    return np.asarray(indices)[np.argsort(cosines if by[0] == "-" else -cosines, kind="stable")]  # NaN is last


def _by_rarity(columns: Columns, indices: Any, _: str, *, descending: bool) -> Array:
    """Sort by the number of records with the same size. Records of the same size stay together."""
    width, height = (columns.get(side)[np.asarray(indices)].astype(np.uint64) for side in ("width", "height"))
    sides = (width << np.uint64(32)) | height
    sizes, counts = np.unique(sides, return_inverse=True, return_counts=True)[1:]
    rarity = (counts.max(initial=0) - counts if descending else counts).astype(np.uint64) << np.uint64(32)
    return _at(indices, _argsort(rarity[sizes] | sizes.astype(np.uint64), width > 0))


def _at(indices: Any, order: Array) -> Array:
    return order if isinstance(indices, range) else indices[order]


def _ordered(values: Array) -> Array:
    """Return uint64 keys. Sorting the keys gives the same order as sorting the values."""
    if values.dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
        return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(2**63))
    return values.astype(np.int64).view(np.uint64) ^ np.uint64(2**63)


def _argsort(keys: Array, known: Array, *, descending: bool = False) -> Array:
    """Return the positions of the sorted keys, unknown keys last: uint32, shape (keys,)."""
    order = np.argsort(~keys if descending else keys, kind="stable").astype(np.uint32)
    return np.concatenate([order[known[order]], np.flatnonzero(~known).astype(np.uint32)])


def _read_vectors(store: Store, field: str) -> Array:
    """Read all records, and return their vectors: float32, shape (records, values); NaN for a record without a vector.

    Raises:
        OptionError: No record has a vector in this field, or the vectors need more than 512 MiB.
    """
    vectors: Array | None = None
    for start in range(0, len(store) if field in store.manifest.fields else 0, READ_AT_ONCE):
        for index, record in enumerate(read_each(store, range(start, min(start + READ_AT_ONCE, len(store)))), start):
            found = None if isinstance(record, DamagedRecordError) else vector_of(record.fields.get(field))
            if found is None:
                continue
            if vectors is None:
                if len(store) * found.nbytes > _MOST_BYTES:
                    raise OptionError(f"the vectors of {short_repr(field)} need more than {_MOST_BYTES:,} bytes")
                vectors = np.full((len(store), found.size), np.nan, np.float32)
            if found.size == vectors.shape[1]:
                vectors[index] = found
    if vectors is None:
        raise OptionError(f"no record has a vector in a field {short_repr(field)}")
    return vectors


def vector_of(value: Any) -> Array | None:
    """Return a vector, scaled to the length 1: float32, shape (values,). Return None if the value is no vector."""
    with suppress(ValueError, TypeError):  # the value has rows of different lengths, or no numbers
        found = np.asarray(value)
        if found.ndim == 1 and found.size > 1 and found.dtype.kind == "f" and np.isfinite(found).all():
            length = np.linalg.norm(found.astype(np.float64))
            return (found / length).astype(np.float32) if length else None
    return None
