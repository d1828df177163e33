"""MongoStore and MongoWriter: the contract, and what is a server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import bson
import pymongo
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

pytest.register_assert_rewrite("store_contract")
from store_contract import StoreContract  # noqa: E402

from dbloader.stores.mongo.layout import (  # noqa: E402
    MANIFEST,
    MARKER,
    PARTIAL,
    STORE,
    index_of,
    is_own_collection,
    own_collection,
)
from dbloader.stores.mongo.place import parse  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dbloader.stores.mongo.store import MongoStore

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def opener_of(store: MongoStore) -> int | None:
    """Gives the id of the process that opened the handle which a store object holds."""
    return None if store._handle is None else store._handle.pid


class TestMongoStore(StoreContract):
    opener = staticmethod(opener_of)

    @pytest.fixture(autouse=True)
    def _database(self, mongo_uri: str) -> None:
        self.uri = mongo_uri

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return f"{self.uri.rpartition('.')[0]}.{name}"

    def what_is_at(self, place: str) -> list[str]:
        # A store that was replaced is no longer at the place; it is kept for those who still read it.
        at = parse(place)
        database = self.client[at.database]
        meta = database[at.collection + MANIFEST]
        state_of = {found["store"]: found["_id"] for found in meta.find({"_id": {"$in": [STORE, PARTIAL]}})}
        there = []
        for name in database.list_collection_names():
            if name == at.collection or is_own_collection(name, at.collection):
                marker = database[name].find_one({"_id": MARKER}) or {}
                if name == at.collection or marker.get("store") in state_of:
                    there.append(f"records of {state_of.get(marker.get('store'), name)}")
        for key in meta.distinct("_id"):
            store, slash, rest = key.partition("/")
            if not slash or store in state_of:
                there.append(f"{state_of.get(store, store)}{slash}{rest}")
        return sorted(there)

    def remove(self, place: str) -> None:
        at = parse(place)
        with pymongo.MongoClient(place) as client:
            database = client[at.database]
            meta = database[at.collection + MANIFEST]
            pointer = meta.find_one_and_delete({"_id": STORE}) or {"store": None}
            database.drop_collection(at.collection)
            database.drop_collection(own_collection(at.collection, str(pointer["store"])))
            meta.delete_many({"_id": {"$regex": f"^{pointer['store']}/"}})

    def move(self, place: str, to: str) -> None:
        at, other = parse(place), parse(to)
        with pymongo.MongoClient(place) as client:
            database = client[at.database]
            database[at.collection].rename(other.collection)
            documents = list(database[at.collection + MANIFEST].find())
            database[other.collection + MANIFEST].insert_many(documents)
            database.drop_collection(at.collection + MANIFEST)

    def put_something_else(self, place: str) -> None:
        at = parse(place)
        with pymongo.MongoClient(place) as client:
            client[at.database][at.collection].insert_many([{"precious": number} for number in range(10)])

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        at = parse(place)
        with pymongo.MongoClient(place) as client:
            records = client[at.database][at.collection]
            records.delete_many({"_id": {"$in": list(documents)}})
            new = [RawBSONDocument(document) for document in documents.values() if document is not None]
            if new:
                records.insert_many(new)

    def can_hold(self, place: str, index: int, document: bytes) -> bool:
        scratch = self.client[parse(place).database].get_collection("scratch", codec_options=RAW)
        scratch.delete_many({})
        try:
            scratch.insert_one(RawBSONDocument(document))
            (found,) = scratch.find()
        except (PyMongoError, bson.errors.BSONError, IndexError, ValueError):
            return False
        return bytes(found.raw) == document and index_of(document) == index

    @pytest.fixture(autouse=True)
    def _client(self, _database: None) -> Iterator[None]:
        with pymongo.MongoClient(self.uri) as self.client:
            yield
