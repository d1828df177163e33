"""What is where in a MongoDB store; docs/format.md tells every document.

Each conversion is a store with an id of its own. Beside the collection of records, ``<collection>.manifest`` has one
document ``store`` with the id and the manifest of the store that is at the place: writing it publishes a store, at
once and whole. Among the records one document names their store, and every read asks for it too: records of a store
that has come to the place meanwhile cannot be taken for those asked for.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = ".manifest"
"""Behind the collection's name: the collection of everything but records."""

LARGE = ".large"
"""Behind the name of a store's own collection: GridFS, with the documents that are over the limit of one."""

STORE, PARTIAL, CLAIM = "store", "partial", "writer"
"""The _ids in the manifest collection of the finished store, of the unfinished one, and of who is writing."""

MARKER = "store"
"""The _id of the document among the records that names their store; a string, so behind all indices."""

STUB = "gridfs"
"""The field, true, of a record of which the whole is in GridFS."""

COVERED = ("_id", "label", "width", "height", "name", "crc32")
COLUMNS_INDEX = "dbloader_columns"
INDEXES: dict[str, list[tuple[str, int]]] = {
    COLUMNS_INDEX: [(name, 1) for name in COVERED],
    "dbloader_name": [("name", 1), ("_id", 1)],
    "dbloader_label": [("label", 1), ("_id", 1)],
}
"""The indexes of a collection of records. All end in _id: what they find, they give without touching a document."""

# In the order of a covered answer: {_id: int64} and {_id: int64, crc32: int64}, each with its closing zero.
ID_DTYPE = np.dtype([("length", "<i4"), ("key", "V5"), ("_id", "<i8"), ("end", "u1")])
ID_CRC_DTYPE = np.dtype(
    [("length", "<i4"), ("key", "V5"), ("_id", "<i8"), ("crc_key", "V7"), ("crc32", "<i8"), ("end", "u1")]
)

_STUB_END = b"\x08gridfs\x00\x01"
_OF_STUB = ("_id", "name", "label", "width", "height", "format")
# More than the name of a file and a format need.
_MAX_STUB = 2**20
_HEAD = struct.Struct("<i5sq")
_INT64_ID = b"\x12_id\x00"


def own_collection(collection: str, store: str) -> str:
    """Gives the name of the collection where a store is while it is not the one at the place."""
    return f"{collection}.{store}"


def is_own_collection(name: str, collection: str) -> bool:
    """Tells whether a collection, or a part of one's GridFS, is some store's own beside ``collection``."""
    store = name.removeprefix(f"{collection}.").split(".")[0]
    return name.startswith(f"{collection}.") and len(store) == 24 and set(store) <= set("0123456789abcdef")


def column_key(store: str, name: str, chunk: int) -> str:
    """Gives the _id in the manifest collection of one chunk of a column."""
    return f"{store}/column/{name}/{chunk:016x}"


def event_key(store: str, number: int) -> str:
    """Gives the _id in the manifest collection of one event of the report."""
    return f"{store}/event/{number:016x}"


def beginning_with(prefix: str) -> dict[str, str]:
    """Gives the condition that a string begins with a prefix which ends in a slash."""
    return {"$gte": prefix, "$lt": prefix[:-1] + "0"}  # the character that follows on the slash


def index_of(document: bytes | memoryview) -> int | None:
    """Gives the index in a record's document, or None: then it is the marker."""
    _, key, index = _HEAD.unpack_from(document)
    return int(index) if key == _INT64_ID else None


def stub_of(document: bytes) -> bytes:
    """Gives what is kept among the records of one that is too large: all but its image and further fields."""
    values: dict[str, Any] = bson.decode(document)
    kept: dict[str, Any] = {
        name: values[name] for name in ("_id", "name", "label", "width", "height", "format") if name in values
    }
    return bson.encode({**kept, STUB: True, "crc32": values["crc32"]})


def is_stub(document: bytes) -> bool:
    """Tells whether a record's document is only what is kept among the records of one that is too large."""
    return len(document) < _MAX_STUB and _STUB_END in document and bson.decode(document).get(STUB) is True


def fields_of(query: Mapping[str, Any]) -> set[str]:
    """Gives the fields that a query of MongoDB's asks about; of an operator that is not understood, its name."""
    fields: set[str] = set()
    for key, value in query.items():
        if key in ("$and", "$or", "$nor") and isinstance(value, (list, tuple)):
            for part in value:
                fields |= fields_of(part)
        else:
            fields.add(key)
    return fields
