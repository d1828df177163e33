"""Damaged documents of a store in MongoDB: each use gives the right result, or one clear error.

A trial changes one document of a real store, and then opens, reads, verifies, copies and queries it. Each use must
give the result of the undamaged store, or raise a DBLoaderError. DBLOADER_TRIALS is the number of trials of each
kind (6 by default).
"""

from __future__ import annotations

import os
import random
import resource
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from dbloader import MongoDataset, open_store
from dbloader.errors import DBLoaderError
from dbloader.records.document import seal
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.records import make_records, write_one_by_one
from tests.support.mongo import Mongod
from tests.support.values import LIES

TRIALS = int(os.environ.get("DBLOADER_TRIALS", "6"))
AT_ONCE = 20  # trials in one test
RECORDS = make_records(24)
for _large in (2, 8, 11, 20):
    # Each of these records has three chunks in GridFS and a different length. Its stub has the fields, for queries.
    RECORDS[_large].image = random.Random(_large).randbytes(600_000 + _large)
    RECORDS[_large].fields = {"caption": f"large {_large}", "boxes": [[_large, 1.5], []]}
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
MOST_BYTES = 300 * 2**20  # limit for the growth of the process's peak memory in all trials of a kind

# Elements that the driver cannot decode: text that is not UTF-8, a time out of range, a binary with negative length.
UNDECODABLE = (
    b"\x02x\x00\x03\x00\x00\x00\xff\xfe\x00",
    b"\x09x\x00" + b"\x7f" * 8,
    b"\x02manifest\x00\x02\x00\x00\x00\x80\x00",
    b"\x02event\x00\x02\x00\x00\x00\xc3\x00",
)


class Kind(NamedTuple):
    """A kind of documents.

    Attributes:
        noticed: At least this many of 20 trials must raise an error. In ten runs, the lowest number was twice as high.
        collection: Suffix to the place's name; S is the store's id.
        keys: Pattern of the _ids of the documents. "" means all documents that have the element ``having``.
        field: The element that a trial changes. None means any element.
    """

    noticed: int
    collection: str
    keys: str = ""
    field: str | None = None
    having: str = "_id"


KINDS = {
    "manifest": Kind(9, ".manifest", "^store$", "manifest"),
    "column": Kind(4, ".manifest", "/column/"),
    "event": Kind(3, ".manifest", "/event/"),
    "record": Kind(10, ".S"),
    "stub": Kind(9, ".S", having="gridfs"),
    "GridFS chunk": Kind(6, ".S.large.chunks"),
}


class Snapshot:
    """A copy of all documents at a place, used to restore them."""

    def __init__(self, client: Any, place: str) -> None:
        at = parse(place)
        self.database = client[at.database]
        self.collection = at.collection
        document = self.database[f"{at.collection}.manifest"].find_one({"_id": "store"})
        self.id = document["store"]
        self.names = [name for name in self.database.list_collection_names() if not name.startswith("system.")]
        self.names = [name for name in self.names if name != at.collection]
        self.documents = {name: list(self._raw(name).find()) for name in self.names}

    def _raw(self, name: str) -> Any:
        return self.database.get_collection(name, codec_options=RAW)

    def name(self, kind: Kind) -> str:
        return self.collection + kind.collection.replace("S", self.id)

    def restore(self) -> None:
        for name in self.names:
            self._raw(name).delete_many({})
            self._raw(name).insert_many(self.documents[name])


# ---- Damage


def changed(numbers: random.Random, value: Any) -> Any:
    """Return another value."""
    if isinstance(value, dict) and value and numbers.random() < 0.8:
        return changed_document(numbers, value)
    at = numbers.randrange(len(value)) if isinstance(value, (bytes, str, list)) and value else 0
    if isinstance(value, bytes) and value and numbers.random() < 0.7:
        flipped = bytes([value[at] ^ 1 << numbers.randrange(8)])
        length = (10**12).to_bytes(8, "little")
        new = [b"", flipped + value[at + 1 :], numbers.randbytes(8) + value[at:], length + value[at + 8 :]]
        data = value[:at] + numbers.choice(new)
        return bson.Binary(data, value.subtype) if isinstance(value, bson.Binary) else data
    if isinstance(value, int) and not isinstance(value, bool) and numbers.random() < 0.5:
        return type(value)(numbers.choice([value + 1, value - 1, value * 1000, -value]))
    if isinstance(value, str) and value and numbers.random() < 0.5:
        return value[:at] + numbers.choice(["", "x", "\u202e"]) + value[at + 1 :]
    if isinstance(value, list) and value and numbers.random() < 0.7:
        return [*value[:at], *numbers.choice([[], [changed(numbers, value[at])], [value[at]] * 2]), *value[at + 1 :]]
    return numbers.choice(LIES)


def changed_document(numbers: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with one element changed, removed, added or renamed."""
    keys = [key for key in document if key != "_id"] or ["x"]
    key, step = numbers.choice(keys), numbers.random()
    if step < 0.12:
        return {name: value for name, value in document.items() if name != key}
    if step < 0.2:
        return {(f"{key}x" if name == key else name): value for name, value in document.items()}
    if step < 0.26:
        return {**document, numbers.choice(["x", "gridfs", "crc32", "data", "store"]): numbers.choice(LIES)}
    return {**document, key: changed(numbers, document.get(key))}


def damage(numbers: random.Random, collection: Any, kind: Kind, *, resealed: bool) -> None:
    """Change one document of a kind on the server."""
    raw = collection.with_options(codec_options=RAW)
    which = {"_id": {"$regex": kind.keys}} if kind.keys else {kind.having: {"$exists": True}}
    victims = sorted((found.raw for found in raw.find(which)), key=bytes)
    victim: dict[str, Any] = bson.decode(numbers.choice(victims))
    key, step = victim["_id"], numbers.random()
    if step < 0.06 and kind.field is None:
        collection.delete_one({"_id": key})
    elif step < 0.14 and len(victims) > 1:  # exchanged with another document
        put(collection, key, {**bson.decode(numbers.choice(victims)), "_id": key})
    elif step < 0.2:
        data = bson.encode(victim)[4:-1] + numbers.choice(UNDECODABLE)
        put(collection, key, RawBSONDocument((len(data) + 5).to_bytes(4, "little") + data + b"\0"))
    elif step < 0.25 and kind.field is None:
        keys = [3.5, 3.0, 3, Int64(10**12), "x", None, MaxKey(), -5, bson.Binary(b"x"), f"{key}x"]
        put(collection, key, {**victim, "_id": numbers.choice(keys)})
    elif kind.field is None:
        put(collection, key, changed_document(numbers, victim))
    else:
        part = victim[kind.field]
        for _ in range(numbers.choice([1, 1, 1, 2, 4])):
            part = changed_document(numbers, part)
        if resealed and kind.field == "manifest":
            part = bson.decode(seal({name: value for name, value in part.items() if name != "crc32"}))
        put(collection, key, {**victim, kind.field: numbers.choice(LIES) if numbers.random() < 0.03 else part})


def put(collection: Any, key: Any, document: Any) -> None:
    """Replace a document, or keep the old document if the server refuses the new one."""
    before = collection.with_options(codec_options=RAW).find_one({"_id": key})
    collection.delete_one({"_id": key})
    try:
        collection.insert_one(document)
    except (PyMongoError, bson.errors.BSONError, OverflowError, ValueError):
        collection.insert_one(before)


# ---- Uses


def queried(place: str, query: dict[str, Any]) -> list[str]:
    with MongoDataset(place, query=query, decode=None, fields=("name", "image", "caption")) as dataset:
        return plain(dataset.__getitems__(range(min(len(dataset), 100))))


def trained(place: str) -> list[Any]:
    with MongoDataset(place, decode=None, fields=("name", "label", "image")) as dataset:
        samples = dataset.__getitems__(range(min(len(dataset), 100)))
        return [plain(samples), dataset.targets.tolist(), list(dataset.names), list(dataset.classes)]


def used(function: Callable[[Any], Any]) -> Callable[[str, Path], Any]:
    def use(place: str, _: Path) -> Any:
        with open_store(place) as store:
            return function(store)

    return use


READS: dict[str, Callable[[str, Path], Any]] = {
    "manifest": used(lambda store: repr(store.manifest)),
    "events": used(lambda store: list(store.events())),
    "columns": used(lambda store: [store.column(name).tolist() for name in ("label", "width", "nbytes", "crc32")]),
    "names": used(lambda store: list(store.names())),
    "find": used(lambda store: store.find(RECORDS[5].name)),
    "read": used(lambda store: plain(store.read(range(min(len(store), 100))))),
    "verify": used(lambda store: store.verify()),
    "dataset": lambda place, _: trained(place),
    "query": lambda place, _: queried(place, {"label": 1}),
    "query of further fields": lambda place, _: queried(place, {"caption": {"$ne": None}, "boxes": {"$exists": True}}),
}
# A query may miss an edited record (see docs/mongodb.md), but verify must find it.
NOTICED_BY_VERIFY = "query of further fields"
IN_CI = ("record", "manifest", "column", "event")


def plain(value: Any) -> list[str]:
    return [repr(item) for item in value]


# ---- Trials


@pytest.fixture
def place(mongod_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with some records in GridFS."""
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 500)
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 10_000)
    with create_store(mongod_uri) as writer:
        write_one_by_one(writer, RECORDS)
        writer.finish(classes=("a", "b", "c"))
    monkeypatch.setattr("dbloader.stores.mongo.partial.MAX_ON_SERVER", 2**24)
    return mongod_uri


def outcome(use: Callable[[str, Path], Any], place: str, folder: Path, named: Callable[[str], bool]) -> Any:
    """Return the result of a use, or None if dbloader raises an error, whose text must name the store."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the query finds nothing
            return use(place, folder)
    except DBLoaderError as error:
        text = str(error)
    if "\n" in text or len(text) > 2000 or not named(text):
        raise ValueError(f"the error must be one line with the store's name: {text}")
    return None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, TRIALS, AT_ONCE))
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n not in IN_CI)) for n in KINDS])
def test_damaged_document_raises_or_changes_nothing(
    mongod: Mongod, place: str, name: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_trials(mongod, place, name, first, tmp_path, monkeypatch, READS, lambda text: parse(place).database in text)


def run_trials(
    mongod: Mongod,
    place: str,
    name: str,
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: dict[str, Callable[[str, Path], Any]],
    named: Callable[[str], bool],
) -> None:
    kind = KINDS[name]
    monkeypatch.chdir(tmp_path)
    with mongod.client() as client, closing(Connection(parse(place))):  # all uses share one client
        snapshot = Snapshot(client, place)
        expected = {use: function(place, tmp_path) for use, function in reads.items()}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found, noticed = [], 0
        trials = range(first, min(first + AT_ONCE, TRIALS))
        for number in trials:
            numbers = random.Random(f"{name}/{number}")
            resealed = name == "manifest" and numbers.random() < 0.3
            raised, missed = [], False
            damage(numbers, snapshot.database[snapshot.name(kind)], kind, resealed=resealed)
            for use, function in reads.items():
                try:
                    result = outcome(function, place, tmp_path, named)
                except Exception as error:
                    found.append(f"{number} {use}: {type(error).__name__}: {error}"[:300])
                    continue
                if result is None:
                    raised.append(use)
                elif result != expected[use] and not resealed:
                    missed = use == NOTICED_BY_VERIFY
                    if not missed:
                        found.append(f"{number} {use}: another result in silence")
            if (raised or missed) and "verify" not in raised:
                found.append(f"{number} verify: silent, but these raise: {', '.join(raised)}; a query missed: {missed}")
            noticed += bool(raised)
            snapshot.restore()
    assert not found, f"{len(found)} trials:\n" + "\n".join(found[:40])
    assert noticed >= kind.noticed * len(trials) // AT_ONCE, "the damage does too little to prove anything"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES
