"""Store a record in GridFS if one document cannot hold it. A small document, the stub, names the record's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
from gridfs import GridFSBucket
from gridfs.errors import CorruptGridFile, NoFile

from dbloader.errors import DamagedRecordError
from dbloader.records.document import HEAD, UNREADABLE
from dbloader.stores.mongo.schema import LARGE, MAX_ON_SERVER, prefix_range, records_collection

if TYPE_CHECKING:
    from pymongo.database import Database

STUB = "gridfs"
"""A stub's field with the id of the GridFS file that contains the whole record."""

_STUB_KEY = b"\x02gridfs\x00"  # BSON's code for a string, then the key; no field of a record has this name
_ALWAYS_IN_STUB = ("name", "label", "width", "height", "format", "damaged", "resized_from", "crc32")


class LargeRecords:
    """The records of one store that are in GridFS, because they are too large for one document."""

    def __init__(self, database: Database[Any], collection: str, store: str) -> None:
        name = records_collection(collection, store) + LARGE
        self._bucket = GridFSBucket(database, name)
        self._files, self._chunks = database[f"{name}.files"], database[f"{name}.chunks"]

    def put(self, index: int, document: bytes) -> str:
        """Store a record in a new file, and return the file's id. Each call makes a new id."""
        file = f"record/{index:016x}/{bson.ObjectId()}"
        self._bucket.upload_from_stream_with_id(file, file, document)
        return file

    def list_indices(self) -> list[int]:
        """Return the indices of all records that have a GridFS file, even an incomplete file, in ascending order."""
        of_records = prefix_range("record/")
        files = [found["_id"] for found in self._files.find({"_id": of_records}, {"_id": 1})]
        first = self._chunks.find({"files_id": of_records, "n": 0}, {"_id": 0, "files_id": 1})
        return sorted({int(file.split("/")[1], 16) for file in (*files, *(found["files_id"] for found in first))})

    def get(self, file: object) -> bytes:
        """Return the content of a file.

        Raises:
            DamagedRecordError: The file is missing or incomplete.
        """
        try:
            return self._bucket.open_download_stream(file).read()
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            # The driver does not check the file's entry in the collection .files, so damage raises these errors.
            raise DamagedRecordError(f"its entry in GridFS is damaged: {error!r}") from error
        except NoFile as error:
            raise DamagedRecordError("it is missing in GridFS") from error
        except CorruptGridFile as error:
            raise DamagedRecordError(f"it is incomplete in GridFS: {error}") from error


def make_stub(document: bytes, file: object) -> bytes:
    """Return a stub for a large record: the id of its file, and its fields except the image.

    If the stub would still be too large, it lacks the largest extra fields.
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
    """Return whether a stub agrees with the whole record. Queries read only stubs, so a wrong stub is damage.

    A record that cannot be decoded counts as matching, because the check of its CRC-32 reports the damage.
    """
    try:
        return stub == make_stub(document, file)
    except (*UNREADABLE, KeyError):  # KeyError if the record has no _id
        return True


def file_of(document: bytes) -> object:
    """Return the id of the GridFS file that a stub names; None if the document is a whole record."""
    if not document.startswith(_STUB_KEY, HEAD.size):
        return None
    return bson.decode(document)[STUB]
