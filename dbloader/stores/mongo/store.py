"""Reading a store in a MongoDB database."""

from __future__ import annotations

import os
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import numpy as np
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from gridfs.errors import CorruptGridFile, NoFile
from typing_extensions import override

from dbloader.columns import CHUNK, COLUMNS, DTYPES, is_whole, join_names, join_values, name_at
from dbloader.errors import DamagedRecordError, DamagedStoreError, RecordNotFoundError
from dbloader.records import decode, decode_values
from dbloader.stores.base import Store
from dbloader.stores.mongo.handle import ElsewhereError, Handle
from dbloader.stores.mongo.layout import (
    COLUMNS_INDEX,
    COVERED,
    ID_DTYPE,
    MARKER,
    STUB,
    beginning_with,
    column_key,
    event_key,
    fields_of,
    index_of,
    is_stub,
)
from dbloader.stores.mongo.place import MongoPlace, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pymongo.collection import Collection

    from dbloader.columns import Names
    from dbloader.manifest import Manifest
    from dbloader.records import Record

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# Chunks of columns asked for at a time: 64 of names are about 8 MB.
_CHUNKS = 64


class MongoStore(Store):
    """A store in a MongoDB database.

    Each process has a client of its own, made at its first read, which its threads share. What a server leaves
    unanswered that restarts, steps down or drops a connection is asked for again, for up to a minute.

    Args:
        place: ``mongodb://host/database.collection`` or ``mongodb+srv://...``, with the options of MongoDB's connection
            strings. Credentials come into no message, and into a pickle only on its way to a process that is being
            started by multiprocessing.

    Raises:
        PlaceError: The place is no such URI, or names no database or collection.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = parse(place)
        self.place = self._place.shown
        self._handle: Handle | None = None

    @property
    @override
    def manifest(self) -> Manifest:
        return self._open().manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        # The driver decodes large binaries over twice as fast as it hands out raw documents.
        handle = self._open()

        def ask(collection: Collection[Any], wanted: list[Any]) -> dict[Any, Any]:
            return {document["_id"]: document for document in collection.find({"_id": {"$in": wanted}}, **_one(wanted))}

        try:
            found = self._found(handle, indices, ask)
        except BSONError:  # the driver cannot decode one of them: each by itself says which
            return [self._decode(document, int(index)) for index, document in zip(indices, self.documents(indices))]  # noqa: B905
        return [self._record(handle, int(index), found.get(index)) for index in indices]

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        handle = self._open()

        def ask(collection: Collection[Any], wanted: list[Any]) -> dict[Any, Any]:
            raw = collection.with_options(codec_options=_RAW)
            found: dict[Any, Any] = {}
            for document in raw.find({"_id": {"$in": wanted}}, **_one(wanted)):
                index = index_of(document.raw)
                if index is None:
                    found[MARKER] = document
                else:
                    found[index] = document.raw
            return found

        found = self._found(handle, indices, ask)
        return [self._document(handle, int(index), found.get(index)) for index in indices]

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in DTYPES:
            raise ValueError(f"a column is one of {', '.join(DTYPES)}, got {name!r}")
        handle = self._open()
        return join_values(self._chunks(handle, name), name, handle.manifest.length)

    @override
    def names(self) -> Names:
        handle = self._open()
        return join_names(self._chunks(handle, "name"), handle.manifest.length)

    @override
    def name(self, index: int) -> str | None:
        handle = self._open()
        self._check_index(index)
        (chunk,) = self._chunks(handle, "name", range(index // CHUNK, index // CHUNK + 1))
        return name_at(chunk, index % CHUNK) or None

    @override
    def find(self, name: str) -> int:
        handle = self._open()

        def ask(collection: Collection[Any]) -> int | None:
            least = next(collection.find({"name": name}, {"_id": 1}, limit=1, sort=[("name", 1), ("_id", 1)]), None)
            if not handle.is_here(collection):
                raise ElsewhereError
            return None if least is None else int(least["_id"])

        index = handle.of_records(ask) if _is_text(name) else None
        if index is None:
            raise RecordNotFoundError(f"no record of {self.place} is named {name!r}")
        return index

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        number = 0
        while batch := self._events(self._open(), number):
            yield from batch
            number += len(batch)

    def matching(self, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Gives the indices of the records that a query finds: int64, shape (records,), ascending.

        A query about nothing but name, label, width and height is answered from an index, without reading a document.

        Args:
            query: As MongoDB's ``find`` takes it.

        Raises:
            StoreError: The server does not understand the query.
        """
        handle = self._open()
        asked: dict[str, Any] = {"filter": {"$and": [{"_id": {"$gte": 0}}, dict(query)]}, "projection": {"_id": 1}}
        fields = fields_of(query)
        if len(fields) > 1 and fields <= set(COVERED):
            asked["hint"] = COLUMNS_INDEX  # left to itself, the server would look for one field and read the documents

        def ask(collection: Collection[Any]) -> np.ndarray[Any, Any]:
            parts = [np.frombuffer(batch, ID_DTYPE)["_id"] for batch in collection.find_raw_batches(**asked)]
            if not handle.is_here(collection):
                raise ElsewhereError
            return np.concatenate([np.empty(0, np.int64), *parts])

        return np.unique(handle.of_records(ask))

    @override
    def close(self) -> None:
        self._handle = None

    def _events(self, handle: Handle, first: int) -> list[dict[str, Any]]:
        """Gives some events, from one on."""
        keys = {**beginning_with(f"{handle.store}/event/"), "$gte": event_key(handle.store, first)}
        return handle.connection.run(
            lambda: [found["event"] for found in handle.meta.find({"_id": keys}, sort=[("_id", 1)], limit=CHUNK)]
        )

    def _found(
        self,
        handle: Handle,
        indices: Sequence[int],
        ask: Callable[[Collection[Any], list[Any]], dict[Any, Any]],
    ) -> dict[Any, Any]:
        """Gives the documents at some indices by their indices; one that is missing is not among them.

        ``ask`` gives the documents in a collection that have some _ids, by their _ids.
        """
        length = handle.manifest.length
        for index in indices:
            if not 0 <= index < length:
                self._check_index(index)
        if not len(indices):
            return {}
        wanted: list[Any] = [*dict.fromkeys(map(int, indices)), MARKER]

        def ask_here(collection: Collection[Any]) -> dict[Any, Any]:
            found: dict[Any, Any] = ask(collection, wanted)
            if found.get(MARKER, {}).get("store") != handle.store:
                raise ElsewhereError
            return found

        return handle.of_records(ask_here)

    def _record(self, handle: Handle, index: int, values: dict[str, Any] | None) -> Record:
        if values is None:
            raise self._damaged(index, "it is missing")
        try:
            if values.get(STUB) is True:
                return decode(self._large(handle, index), index)
            return decode_values(values, index)
        except DamagedRecordError as error:
            raise self._damaged(index, str(error)) from error

    def _document(self, handle: Handle, index: int, document: bytes | None) -> bytes:
        if document is None:
            raise self._damaged(index, "it is missing")
        return self._large(handle, index) if is_stub(document) else document

    def _large(self, handle: Handle, index: int) -> bytes:
        def ask() -> bytes:
            with handle.large.open_download_stream(index) as stream:
                return stream.read()

        try:
            return handle.connection.run(ask)
        except NoFile:
            raise self._damaged(index, "it is missing in GridFS") from None
        except CorruptGridFile as error:
            raise self._damaged(index, f"it is not whole in GridFS: {error}") from error

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        handle = self._open()
        return {name: next(self._chunks(handle, name, range(number, number + 1))) for name in COLUMNS}

    def _chunks(self, handle: Handle, column: str, numbers: range | None = None) -> Iterator[bytes]:
        """Yields chunks of a column, in order; by default all."""
        length = handle.manifest.length
        if numbers is None:
            numbers = range(-(-length // CHUNK))
        for first in range(numbers.start, numbers.stop, _CHUNKS):
            asked = range(first, min(first + _CHUNKS, numbers.stop))
            keys = [column_key(handle.store, column, number) for number in asked]
            found = handle.connection.run(
                lambda: {document["_id"]: document["data"] for document in handle.meta.find({"_id": {"$in": keys}})}  # noqa: B023
            )
            for number, key in zip(asked, keys, strict=True):
                chunk = found.get(key)
                if chunk is None or not is_whole(column, chunk, min(CHUNK, length - number * CHUNK)):
                    raise DamagedStoreError(
                        f"{self.place}: chunk {number} of its column {column} is missing or damaged; convert again",
                    )
                yield chunk

    def _open(self) -> Handle:
        handle = self._handle
        if handle is None or handle.pid != os.getpid():
            handle = self._handle = Handle(self._place)
        return handle

    def __getstate__(self) -> dict[str, Any]:
        # As multiprocessing does with its own keys: a secret goes through the pipe to a process that is being started,
        # and into no pickle that may be kept.
        place = self._place if get_spawning_popen() is not None else self._place.without_credentials()
        return {"place": self.place, "_place": tuple(place)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _place=MongoPlace(*state["_place"]), _handle=None)


def _one(wanted: Sequence[Any]) -> dict[str, int]:
    """Asks for all documents at once, not for 101 of them at first."""
    return {"batch_size": len(wanted)}


def _is_text(name: str) -> bool:
    """Tells whether a record can have a name at all."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False
