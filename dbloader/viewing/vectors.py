"""Read a field of vectors, such as embeddings."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.checking.fingerprints import read_each
from dbloader.errors import DamagedRecordError, OptionError
from dbloader.stores.base import READ_AT_ONCE

if TYPE_CHECKING:
    from dbloader.queries.columns import Array
    from dbloader.stores.base import Store

_MOST_BYTES = 2**29  # largest size of all vectors of a field


def vector_of(value: Any) -> Array | None:
    """Return a vector, scaled to the length 1: float32, shape (values,). Return None if the value is no vector."""
    with suppress(ValueError, TypeError):  # the value has rows of different lengths, or no numbers
        found = np.asarray(value)
        if found.ndim == 1 and found.size > 1 and found.dtype.kind == "f" and np.isfinite(found).all():
            length = np.linalg.norm(found.astype(np.float64))
            return (found / length).astype(np.float32) if length else None
    return None


def read_vectors(store: Store, field: str) -> Array:
    """Read all records, and return their vectors: float32, shape (records, values); NaN for a record without a vector.

    Raises:
        OptionError: No record has a vector in this field, or the vectors need more than 512 MiB.
    """
    vectors: Array | None = None
    for start in range(0, len(store) if field in store.manifest.fields else 0, READ_AT_ONCE):
        for index, record in enumerate(read_each(store, range(start, min(start + READ_AT_ONCE, len(store)))), start):
            found = None if isinstance(record, DamagedRecordError) else vector_of(record.fields.get(field))
            if found is not None and vectors is None:
                if len(store) * found.nbytes > _MOST_BYTES:
                    raise OptionError(f"the vectors of {short_repr(field)} need more than {_MOST_BYTES:,} bytes")
                vectors = np.full((len(store), found.size), np.nan, np.float32)
            if found is not None and vectors is not None and found.size == vectors.shape[1]:
                vectors[index] = found
    if vectors is None:
        raise OptionError(f"no record has a vector in a field {short_repr(field)}")
    return vectors
