"""Define the keys in the sub-databases ``records`` and ``meta`` of an LMDB store, and check the path of its file.

docs/format.md describes the keys. A key in ``records`` is a record's index, as 8 bytes in big-endian order.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dbloader.errors import PlaceError
from dbloader.remote.places import is_remote, parse_place
from dbloader.stores.mongo.uri import is_mongo

RECORDS, META = b"records", b"meta"
MANIFEST, PROGRESS, EVENT = b"manifest", b"progress", b"event/"
SHARD_INDEX = b"shards"  # marks the index of a sharded store
PARTIAL = ".partial"
_PLACE = "the path of an LMDB file or mongodb://host/database.collection"

# An LMDB file begins with a meta page: a header of 16 bytes, and then this number (LMDB's mdb.c).
MAGIC_AT, MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")

record_key = struct.Struct(">Q").pack


def column_key(name: str, chunk: int) -> bytes:
    """Return the key of one chunk of a column in ``meta``."""
    return b"column/%s/%s" % (name.encode(), record_key(chunk))


def event_key(number: int) -> bytes:
    """Return the key of one line of the report in ``meta``."""
    return EVENT + record_key(number)


def path_beside(place: str, ending: str) -> Path:
    """Return the path of a file beside a store. The place may end in a slash, or be "."."""
    path = Path(place) if Path(place).name.strip(".") else Path(place).resolve()
    return path.with_name(f"{path.name}{ending}")


def checked_path(place: str | os.PathLike[str]) -> str:
    """Return a place as a file path, or raise an error. No message repeats a URI, because it may contain a password."""
    if not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"a place must be {_PLACE}, got {type(place).__name__}")
    path = os.fspath(place)
    if not path.strip():
        raise PlaceError(f"a place must be {_PLACE}, got {path!r}")
    if is_mongo(path):
        raise PlaceError("expected the path of a file, got a place in MongoDB (MongoDataset reads from MongoDB)")
    if is_remote(path):
        raise PlaceError(
            f"{parse_place(path)} is in object storage, which this operation does not support: dbloader convert "
            "--shards makes a store there, dbloader copy uploads or downloads a store, and LMDBDataset(..., "
            "cache=FOLDER) trains from it"
        )
    if "://" in path:
        scheme = path.split("://", 1)[0]
        raise PlaceError(
            f"{scheme}:// is not a place that this version of dbloader supports; "
            f"give {_PLACE}, or s3://, gs:// or az://bucket/key"
        )
    if path.startswith("-"):
        raise PlaceError(f"a place must be {_PLACE}, got {path!r}, which looks like an option; such a file is ./{path}")
    return path
