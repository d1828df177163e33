"""The MongoDB backend of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pymongo
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from dbloader.stores.mongo.schema import MANIFEST, STORE, index_of, is_records_collection, records_collection
from dbloader.stores.mongo.uri import parse
from tests.contracts.backend import Backend
from tests.support.mongo import records_of

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def client_of(place: str) -> pymongo.MongoClient[Any]:
    # By default, a client waits for news of its server, and then takes 0.5 s to close. Polling avoids this delay.
    return pymongo.MongoClient(place, serverMonitoringMode="poll")


class MongoBackend(Backend):
    """Stores on a server. ``mongo_uri`` is a place on it."""

    commit_bytes = 32 * 2**20

    @pytest.fixture(autouse=True)
    def _database(self, mongo_uri: str) -> None:
        self.uri = mongo_uri

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return f"{self.uri.rpartition('.')[0]}.{name}"

    def what_is_at(self, place: str) -> list[str]:
        # Leave out a replaced store, which is kept only for its readers.
        at = parse(place)
        database = self.client[at.database]
        meta = database[at.collection + MANIFEST]
        found = meta.find_one({"_id": STORE}) or {}
        state_of = {found.get("store"): "store", found.get("partial", {}).get("store"): "partial"}
        there = [name for name in found if name in ("store", "partial", "writer")]
        for info in database.list_collections():
            if info["name"] == at.collection:
                there.append(f"{info['type']} {state_of.get(info['options'].get('viewOn', '').rpartition('.')[2])}")
            if is_records_collection(info["name"], at.collection):
                store = info["name"].rpartition(".")[2]
                if store not in found.get("replaced", ()):
                    there.append(f"records of {state_of.get(store, store)}")
        for key in meta.distinct("_id"):
            store, slash, rest = key.partition("/")
            if slash and store not in found.get("replaced", ()):
                there.append(f"{state_of.get(store, store)}/{rest}")
        return sorted(there)

    def remove(self, place: str) -> None:
        at = parse(place)
        with client_of(place) as client:
            database = client[at.database]
            meta = database[at.collection + MANIFEST]
            found = meta.find_one({"_id": STORE}) or {}
            meta.update_one({"_id": STORE}, {"$unset": {"store": "", "manifest": ""}})
            database.drop_collection(at.collection)
            database.drop_collection(records_collection(at.collection, str(found.get("store"))))
            meta.delete_many({"_id": {"$regex": f"^{found.get('store')}/"}})

    def move(self, place: str, to: str) -> None:
        at, other = parse(place), parse(to)
        with client_of(place) as client:
            database = client[at.database]
            documents = {document["_id"]: document for document in database[at.collection + MANIFEST].find()}
            store = documents[STORE]["store"]
            database[records_collection(at.collection, store)].rename(records_collection(other.collection, store))
            database.drop_collection(at.collection)
            there = database[other.collection + MANIFEST]
            # another store may have been begun there
            there.update_one({"_id": STORE}, {"$set": documents.pop(STORE)}, upsert=True)
            if documents:
                there.insert_many(documents.values())
            database.drop_collection(at.collection + MANIFEST)

    def put_something_else(self, place: str) -> None:
        at = parse(place)
        with client_of(place) as client:
            client[at.database][at.collection].insert_many([{"precious": number} for number in range(10)])

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        with client_of(place) as client:
            records = records_of(client, place)
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
        with client_of(self.uri) as self.client:
            yield
