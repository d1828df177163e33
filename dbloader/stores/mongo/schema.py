"""What is where in a MongoDB store; docs/format.md tells every document.

Each conversion is a store with an id of its own, and its records stay in a collection of that name,
``<collection>.<id>``. Beside it ``<collection>.manifest`` has one document, STORE, that says all of the place: which
store is there, which is unfinished, who is writing and what may be removed. One write of it publishes a store, at once
and whole, and only for the writer that it names. ``<collection>`` itself is a view of the records, for people.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader.records.document import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = ".manifest"
"""Behind the collection's name: the collection of everything but records."""

LARGE = ".large"
"""Behind the name of a store's own collection: GridFS, with the documents that are over the limit of one."""

STORE = "store"
"""The _id in the manifest collection of the document that says all of the place."""

STUB = "gridfs"
"""The field with the id of the file in GridFS that has the whole of a record, or of a chunk of a column."""

# A document may have 16 MiB (https://www.mongodb.com/docs/manual/reference/limits/).
MAX_ON_SERVER = 16 * 2**20

COVERED = ("_id", "label", "width", "height", "name", "crc32")
COLUMNS_INDEX, LABEL_INDEX = "dbloader_columns", "dbloader_label"
INDEXES: dict[str, list[tuple[str, int]]] = {
    COLUMNS_INDEX: [(name, 1) for name in COVERED],
    "dbloader_name": [("name", 1), ("_id", 1)],
    LABEL_INDEX: [("label", 1), ("_id", 1)],
}
"""The indexes of a collection of records. All end in _id: what they find, they give without touching a document."""

# A document of a covered answer, {_id: int64, crc32: int64}, with its closing zero.
ID_CRC_DTYPE = np.dtype(
    [("length", "<i4"), ("key", "V5"), ("_id", "<i8"), ("crc_key", "V7"), ("crc32", "<i8"), ("end", "u1")]
)

_OF_STUB = ("name", "label", "width", "height", "format", "damaged", "resized_from", "crc32")
_HEAD = struct.Struct("<i5sq")
_INT64_ID = b"\x12_id\x00"
_STUB_KEY = b"\x02gridfs\x00"  # a string; no record has a field of that name
_CRC32 = struct.Struct("<q")


def own_collection(collection: str, store: str) -> str:
    """Return the name of the collection with the records of a store."""
    return f"{collection}.{store}"


def is_id(store: object) -> bool:
    """Tell whether something can be the id of a store."""
    return isinstance(store, str) and len(store) == 24 and set(store) <= set("0123456789abcdef")


def is_own_collection(name: str, collection: str) -> bool:
    """Tell whether a collection has the name of some store's own beside ``collection``."""
    return name.startswith(f"{collection}.") and is_id(name.removeprefix(f"{collection}."))


def column_key(store: str, name: str, chunk: int) -> str:
    """Return the _id in the manifest collection of one chunk of a column."""
    return f"{store}/column/{name}/{chunk:016x}"


def event_key(store: str, number: int) -> str:
    """Return the _id in the manifest collection of one event of the report."""
    return f"{store}/event/{number:016x}"


def beginning_with(prefix: str) -> dict[str, str]:
    """Return the condition that a string begins with a prefix which ends in a slash."""
    return {"$gte": prefix, "$lt": prefix[:-1] + "0"}  # the character that follows on the slash


def record_file(index: int) -> str:
    """Return what the ids in GridFS of a record begin with; each attempt to store it has one of its own."""
    return f"record/{index:016x}/"


def index_of(document: bytes | memoryview) -> int | None:
    """Return the index in a record's document; None if it has no such _id as records have."""
    if len(document) < _HEAD.size:
        return None
    _, key, index = _HEAD.unpack_from(document)
    return int(index) if key == _INT64_ID else None


def crc32_in(document: bytes) -> int:
    """Return the CRC-32 that a record's document names."""
    return int(_CRC32.unpack_from(document, len(document) - 1 - _CRC32.size)[0])


def stub_of(document: bytes, file: object) -> bytes:
    """Return what is kept among the records of one that is too large: all but its image.

    Where that is too large as well, its largest further fields are left out too.
    """
    values: dict[str, Any] = bson.decode(document)
    index, kept = values.pop("_id"), {name: value for name, value in values.items() if name != "image"}
    sizes = {name: len(bson.encode({name: value})) for name, value in kept.items() if name not in _OF_STUB}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if len(bson.encode(kept)) < MAX_ON_SERVER - 2**10:
            break
        del kept[name]
    return bson.encode({"_id": index, STUB: file, **kept})


def fits_stub(stub: bytes, document: bytes, file: object) -> bool:
    """Tell whether what is among the records, which queries are answered from, is what was made of the whole record.

    Args:
        stub: What is among the records.
        document: The whole record, from GridFS. Where it cannot be decoded, its CRC-32 will tell so.
        file: Its id in GridFS.
    """
    try:
        return stub == stub_of(document, file)
    except (*UNREADABLE, KeyError):  # KeyError: it has no _id
        return True


def file_of(document: bytes) -> object:
    """Return the id of the file in GridFS with a record of which only this is among the records; else None.

    Raises:
        BSONError: The document cannot be decoded.
    """
    if not document.startswith(_STUB_KEY, _HEAD.size):
        return None
    return bson.decode(document)[STUB]


def fields_of(query: Mapping[str, Any]) -> set[str]:
    """Return the fields that a query of MongoDB's asks about; of an operator that is not understood, its name."""
    fields: set[str] = set()
    for key, value in query.items():
        if key in ("$and", "$or", "$nor") and isinstance(value, (list, tuple)):
            for part in value:
                fields |= fields_of(part)
        else:
            fields.add(key)
    return fields
