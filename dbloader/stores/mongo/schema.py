"""Where everything of a MongoDB store is: collections, keys, indexes, and the stub of a large record.

Each conversion makes a store with its own id, and writes its records to the collection ``<collection>.<id>``. One
document in ``<collection>.manifest``, STORE, describes the place: the published store, the partial one, the writer's
lease, and the stores to remove. One conditional write to it publishes a store. ``<collection>`` is a view of the
published records, for people. docs/format.md lists every field.
"""

from __future__ import annotations

import struct
from typing import Any

import bson
import numpy as np

from dbloader.records.document import HEAD, ID, UNREADABLE

MANIFEST = ".manifest"
"""Suffix of the collection that holds everything but records."""

LARGE = ".large"
"""Suffix of the GridFS bucket with the records that are too large for one document."""

STORE = "store"
"""The _id of the document that describes the place."""

STUB = "gridfs"
"""The field of a stub with the id of the GridFS file that holds the whole record."""

# https://www.mongodb.com/docs/manual/reference/limits/
MAX_ON_SERVER = 16 * 2**20

COVERED = ("_id", "label", "width", "height", "name", "crc32")
COLUMNS_INDEX, LABEL_INDEX = "dbloader_columns", "dbloader_label"
INDEXES: dict[str, list[tuple[str, int]]] = {
    COLUMNS_INDEX: [(name, 1) for name in COVERED],
    "dbloader_name": [("name", 1), ("_id", 1)],
    LABEL_INDEX: [("label", 1), ("_id", 1)],
}
"""Indexes of the records. Each ends in _id, so a query for indices reads no document."""

# A document {_id: int64, crc32: int64} of a covered answer, with its closing zero.
ID_CRC_DTYPE = np.dtype(
    [("length", "<i4"), ("key", "V5"), ("_id", "<i8"), ("crc_key", "V7"), ("crc32", "<i8"), ("end", "u1")]
)

_ALWAYS_IN_STUB = ("name", "label", "width", "height", "format", "damaged", "resized_from", "crc32")
_STUB_KEY = b"\x02gridfs\x00"  # a string; no field of a record has this name
_CRC32 = struct.Struct("<q")


def records_collection(collection: str, store: str) -> str:
    """Return the name of the collection with a store's records."""
    return f"{collection}.{store}"


def is_id(store: object) -> bool:
    """Tell whether a value can be the id of a store."""
    return isinstance(store, str) and len(store) == 24 and set(store) <= set("0123456789abcdef")


def is_records_collection(name: str, collection: str) -> bool:
    """Tell whether a collection's name is that of a store's records next to ``collection``."""
    return name.startswith(f"{collection}.") and is_id(name.removeprefix(f"{collection}."))


def column_key(store: str, name: str, chunk: int) -> str:
    """Return the _id of one chunk of a column."""
    return f"{store}/column/{name}/{chunk:016x}"


def event_key(store: str, number: int) -> str:
    """Return the _id of one event of the report."""
    return f"{store}/event/{number:016x}"


def prefix_range(prefix: str) -> dict[str, str]:
    """Return the condition that a string starts with a prefix, which ends in a slash."""
    return {"$gte": prefix, "$lt": prefix[:-1] + "0"}  # "0" is the character after "/"


def index_of(document: bytes | memoryview) -> int | None:
    """Return the index in a record's document; None if its _id is not an int64."""
    if len(document) < HEAD.size:
        return None
    _, key, index = HEAD.unpack_from(document)
    return int(index) if key == ID else None


def stored_crc32(document: bytes) -> int:
    """Return the CRC-32 that a record's document ends with."""
    return int(_CRC32.unpack_from(document, len(document) - 1 - _CRC32.size)[0])


def make_stub(document: bytes, file: object) -> bytes:
    """Return what stands for a large record in the collection: everything but its image, and its file in GridFS.

    If that is too large as well, the largest of its further fields are left out.
    """
    values: dict[str, Any] = bson.decode(document)
    index, kept = values.pop("_id"), {name: value for name, value in values.items() if name != "image"}
    sizes = {name: len(bson.encode({name: value})) for name, value in kept.items() if name not in _ALWAYS_IN_STUB}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if len(bson.encode(kept)) < MAX_ON_SERVER - 2**10:
            break
        del kept[name]
    return bson.encode({"_id": index, STUB: file, **kept})


def stub_matches(stub: bytes, document: bytes, file: object) -> bool:
    """Tell whether a stub, from which queries are answered, is the one made of the whole record.

    An undecodable record counts as matching: its CRC-32 reports it.
    """
    try:
        return stub == make_stub(document, file)
    except (*UNREADABLE, KeyError):  # KeyError: without _id
        return True


def file_of(document: bytes) -> object:
    """Return the id of the GridFS file that a stub names; None if the document is a whole record."""
    if not document.startswith(_STUB_KEY, HEAD.size):
        return None
    return bson.decode(document)[STUB]
