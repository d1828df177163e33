"""Define the keys in the sub-databases ``records`` and ``meta`` of an LMDB store.

docs/format.md describes the keys. A key in ``records`` is a record's index, as 8 bytes in big-endian order.
"""

from __future__ import annotations

import struct

RECORDS, META = b"records", b"meta"
MANIFEST, PROGRESS, EVENT = b"manifest", b"progress", b"event/"
SHARD_INDEX = b"shards"  # marks the index of a sharded store
PARTIAL = ".partial"

# An LMDB file begins with a meta page: a header of 16 bytes, and then this number (LMDB's mdb.c).
MAGIC_AT, MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")

record_key = struct.Struct(">Q").pack


def column_key(name: str, chunk: int) -> bytes:
    """Return the key of a column's chunk in ``meta``."""
    return b"column/%s/%s" % (name.encode(), record_key(chunk))


def event_key(number: int) -> bytes:
    """Return the key of one line of the report in ``meta``."""
    return EVENT + record_key(number)
