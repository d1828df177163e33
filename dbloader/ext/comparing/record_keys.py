"""Find equal records of two stores by their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dbloader.records.columns import Array


def record_keys(crc32s: Array, name_hashes: Array, nbytes: Array) -> Array:
    """Return a key of each record: uint64, shape (n,). Records with the same name, fields and image have the same key.

    A key combines CRC-32, name hash and length, because among a million records, some share a CRC-32 by chance.
    """
    keys: Array = crc32s.astype("u8") << np.uint64(32) | name_hashes ^ nbytes.astype("u4")
    return keys
