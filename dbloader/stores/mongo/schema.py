"""Define the collections, keys and indexes of a MongoDB store.

Each conversion makes a store with its own id, and writes its records to the collection ``<collection>.<id>``. One
document in ``<collection>.manifest`` describes the published store, the partial store, the writer's lease, and the
stores to remove. One conditional write to this document publishes a store. ``<collection>`` itself is a view in which
people can look at the published records. docs/format.md lists every field.
"""

from __future__ import annotations

import re
import struct
from typing import TypeGuard

from dbloader.records.document import HEAD, ID

MANIFEST = ".manifest"
"""Suffix of the collection that contains everything except records."""

LARGE = ".large"
"""Suffix of the GridFS bucket for records that are too large for one document."""

STORE = "store"
"""The _id of the document that describes the published store and the partial store."""

# https://www.mongodb.com/docs/manual/reference/limits/
MAX_ON_SERVER = 16 * 2**20

COVERED = ("_id", "label", "width", "height", "name", "crc32")
COLUMNS_INDEX, LABEL_INDEX = "dbloader_columns", "dbloader_label"
INDEXES: dict[str, list[tuple[str, int]]] = {
    COLUMNS_INDEX: [(name, 1) for name in COVERED],
    "dbloader_name": [("name", 1), ("_id", 1)],
    LABEL_INDEX: [("label", 1), ("_id", 1)],
}
"""Indexes of the collection of records. Each contains the _id, so a query for record indices reads no documents."""

_CRC32 = struct.Struct("<q")


def records_collection(collection: str, store: str) -> str:
    """Return the name of the collection with a store's records."""
    return f"{collection}.{store}"


def is_id(store: object) -> TypeGuard[str]:
    """Return whether a value can be the id of a store."""
    return isinstance(store, str) and re.fullmatch("[0-9a-f]{24}", store) is not None


def is_records_collection(name: str, collection: str) -> bool:
    """Return whether ``name`` can be a result of ``records_collection`` for this ``collection``."""
    return name.startswith(f"{collection}.") and is_id(name.removeprefix(f"{collection}."))


def column_key(store: str, name: str, chunk: int) -> str:
    """Return the _id of one chunk of a column."""
    return f"{store}/column/{name}/{chunk:016x}"


def event_key(store: str, number: int) -> str:
    """Return the _id of one line of the report."""
    return f"{store}/event/{number:016x}"


def prefix_range(prefix: str) -> dict[str, str]:
    """Return the query for strings that start with a prefix. The prefix must end in a slash."""
    return {"$gte": prefix, "$lt": prefix[:-1] + "0"}  # "0" is the character after "/"


def index_of(document: bytes | memoryview) -> int | None:
    """Return the index of the record in a document; None if the document's _id is not an int64."""
    if len(document) < HEAD.size:
        return None
    _, key, index = HEAD.unpack_from(document)
    return int(index) if key == ID else None


def stored_crc32(document: bytes) -> int:
    """Return the CRC-32 at the end of a record's document."""
    return int(_CRC32.unpack_from(document, len(document) - 1 - _CRC32.size)[0])
