"""A stand-in for the router of a sharded MongoDB cluster (mongos), in front of two real servers.

It tests dbloader, not MongoDB; no mongos can be installed for these tests. It announces itself as a router, divides
sharded collections by a hash of ``_id``, and returns documents in random order. On request it doubles results, and
fails like a router while chunks move. Everything else goes to the first server.
``python -m tests.stores.mongo.stand_in_router PORT PORT`` runs it in a process of its own, and prints its port.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socketserver
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from typing_extensions import override

from dbloader.stores.mongo.schema import index_of
from tests.support.mongo import HOST, Mongod, Server

if TYPE_CHECKING:
    from collections.abc import Iterator


RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)
HEADER = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
LARGEST = 16 * 2**20
HELLO = {
    "ismaster": True,
    "isWritablePrimary": True,
    "msg": "isdbgrid",
    "maxBsonObjectSize": LARGEST,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 17,
    "helloOk": True,
    "ok": 1.0,
}
WRITES = {"insert": "documents", "update": "updates", "delete": "deletes"}
OF_A_MESSAGE = ("$db", "$readPreference", "lsid", "$clusterTime")
HOST_UNREACHABLE, ILLEGAL, INVALID_BSON, CURSOR_NOT_FOUND, NO_SHARD_KEY = 6, 20, 22, 43, 61


class StandInRouter(Server):
    """A context manager: two servers with a stand-in router in front of them.

    Attributes:
        shards: The servers.
    """

    def __init__(self, folder: Path) -> None:
        self.shards = [Mongod(folder / str(number)) for number in range(2)]
        self._process: subprocess.Popen[str] | None = None
        super().__init__("")

    def __enter__(self) -> Self:
        try:
            for shard in self.shards:
                shard.launch()
            for shard in self.shards:
                shard.wait_until_up()
            command = [sys.executable, "-m", __name__, *(str(shard.port) for shard in self.shards)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end, however pytest ends, ends the router
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            )
            assert self._process.stdout is not None
            self._uri = f"mongodb://{HOST}:{int(self._process.stdout.readline())}/"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            with self._process:
                self._process.kill()
        for shard in self.shards:
            shard.close()

    @contextlib.contextmanager
    def behaving(self, *commands: str, **how: Any) -> Iterator[None]:
        """Change what the router does inside the block; check that all requested failures have happened.

        Args:
            commands: Names of commands that fail.
            how: ``code`` of their failure; how many ``times`` they fail (default 1); ``half``: only writes to a
                sharded collection fail, and one shard does its part of them; ``double``: results come twice.
        """
        with self.client() as client:
            client.admin.command("standIn", {"commands": commands, "times": 1, **how})
        try:
            yield
        finally:
            with self.client() as client:
                left = client.admin.command("standIn", {})["left"]
        assert not (commands and left), f"{left} of the failures of {commands} have not happened"

    def restore(self) -> None:
        for shard in self.shards:
            shard.restore()


class RefusedError(Exception):
    """The error that the router answers."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"ok": 0.0, "code": code, "codeName": str(code), "errmsg": message}


class Cluster:
    """The servers and the state of the router, for all connections."""

    def __init__(self, ports: list[int]) -> None:
        options: dict[str, Any] = {"directConnection": True, "retryWrites": False, "retryReads": False}
        self.shards: list[MongoClient[Any]] = [MongoClient(HOST, port, **options) for port in ports]
        # Any connection may read the cursors of its session.
        self.sessions = [shard.start_session(causal_consistency=False) for shard in self.shards]
        self.lock = threading.Lock()
        self.sharded: set[str] = set()  # collections
        self.cursors: dict[int, list[Any]] = {}
        self.numbers = itertools.count(1)
        self.random = random.Random(0)
        self.how: dict[str, Any] = {}

    def answer(self, body: dict[str, Any]) -> Any:
        name, database = next(iter(body)), body.get("$db", "admin")
        body = {key: value for key, value in body.items() if key not in OF_A_MESSAGE}
        if name in ("hello", "ismaster", "isMaster"):
            return HELLO
        if name == "listShards":
            return {"shards": [{"_id": str(number)} for number in range(len(self.shards))], "ok": 1.0}
        if name == "standIn":
            before, self.how = self.how, body[name]
            return {"ok": 1.0, "left": before.get("times", 0)}
        try:
            if not self.how.get("half") and self._fails(name):
                return RefusedError(self.how["code"], f"{name} fails as it was asked to").answer
            return self._run(name, database, body)
        except RefusedError as refused:
            return refused.answer
        except bson.errors.InvalidBSON as error:
            return RefusedError(INVALID_BSON, str(error)).answer
        except PyMongoError as error:  # a shard is away
            return RefusedError(HOST_UNREACHABLE, str(error)).answer

    def _fails(self, name: str) -> bool:
        with self.lock:
            if name not in self.how.get("commands", ()) or not self.how["times"]:
                return False
            self.how["times"] -= 1
            return True

    def _run(self, name: str, database: str, body: dict[str, Any]) -> Any:
        if name == "getMore":
            if f"{database}.{body['collection']}" not in self.sharded:
                return self._on(0, database, body)
            return self._batch(body["getMore"], f"{database}.{body['collection']}", body.get("batchSize"), "nextBatch")
        if name == "enableSharding":  # needed before version 6.0
            return {"ok": 1.0}
        if name == "shardCollection":
            return self._shard(body)
        if name == "dropDatabase":
            self.sharded = {full for full in self.sharded if full.partition(".")[0] != database}
            return self._on_all(database, body)
        namespace = str(body[name]) if name == "renameCollection" else f"{database}.{body[name]}"
        if namespace not in self.sharded:
            return self._on(0, database, body)
        if name in WRITES:
            return self._write(name, database, body)
        if name in ("find", "aggregate"):
            return self._read(name, database, body)
        if name == "drop":
            self.sharded.discard(namespace)
        if name in ("drop", "createIndexes", "dropIndexes"):
            return self._on_all(database, body)
        raise RefusedError(ILLEGAL, f"the stand-in router refuses {name} for the sharded collection {namespace}")

    def _on(self, shard: int, database: str, body: dict[str, Any]) -> Any:
        session = self.sessions[shard]
        return self.shards[shard][database].command(dict(body), check=False, codec_options=RAW, session=session)

    def _on_all(self, database: str, body: dict[str, Any]) -> Any:
        answers = [self._on(number, database, body) for number in range(len(self.shards))]
        return next((answer for answer in answers if not answer["ok"]), answers[0])

    def _shard(self, body: dict[str, Any]) -> Any:
        database, _, collection = str(body["shardCollection"]).partition(".")
        if body["key"] != {"_id": "hashed"} or set(body) - {"shardCollection", "key"}:
            raise RefusedError(ILLEGAL, f"the stand-in router only knows a hashed _id, got {body}")
        if self.shards[0][database][collection].find_one() is not None:
            raise RefusedError(ILLEGAL, f"{collection} is not empty: the stand-in router moves nothing")
        for shard in self.shards:
            shard[database][collection].create_index([("_id", "hashed")])
        self.sharded.add(f"{database}.{collection}")
        return {"ok": 1.0}

    def _write(self, name: str, database: str, body: dict[str, Any]) -> Any:
        """Send each shard its documents, updates or deletions, and merge the answers."""
        field, fails = WRITES[name], self.how.get("half") and self._fails(name)
        parts: list[list[int]] = [[] for _ in self.shards]
        for number, one in enumerate(body[field]):
            key = key_of(one) if name == "insert" else one["q"].get("_id", {})
            exact = not isinstance(key, dict)
            if not exact and not (one.get("multi") or one.get("limit") == 0):
                raise RefusedError(NO_SHARD_KEY, f"{name} of one document without its _id")
            for shard, part in enumerate(parts):
                if not exact or shard == shard_of(key):
                    part.append(number)
        merged: dict[str, Any] = {"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [], "upserted": []}
        for shard, part in enumerate(parts):
            if not part:
                continue
            answer: Any = {"ok": 1.0, "n": 0, "writeErrors": [{"index": at} for at in range(len(part))]}
            if not (fails and shard == 1):
                answer = self._on(shard, database, {**body, field: [body[field][number] for number in part]})
                if not answer["ok"]:
                    return answer
            for count in ("n", "nModified"):
                merged[count] += answer.get(count, 0)
            for found in ("writeErrors", "upserted"):
                for one in answer.get(found, ()):
                    failure = {"code": self.how["code"], "errmsg": "as asked"} if fails and shard == 1 else {}
                    merged[found].append({**dict(one.items()), **failure, "index": part[one["index"]]})
        return {key: value for key, value in merged.items() if value != []}

    def _read(self, name: str, database: str, body: dict[str, Any]) -> Any:
        whole = {**body, **({"batchSize": 10**6} if name == "find" else {"cursor": {"batchSize": 10**6}})}
        found: list[Any] = []
        for number in range(len(self.shards)):
            answer = self._on(number, database, whole)
            while answer["ok"]:
                cursor = answer["cursor"]
                found += cursor.get("firstBatch") or cursor.get("nextBatch") or []
                if not cursor["id"]:
                    break
                answer = self._on(number, database, {"getMore": cursor["id"], "collection": body[name]})
            else:
                return answer
        groups = [stage["$group"] for stage in body.get("pipeline", ()) if "$group" in stage]
        if groups:
            found = _add_up(found, groups[-1])
        elif "sort" in body:
            for field, direction in reversed(body["sort"].items()):
                found.sort(key=lambda document: (document.get(field) is not None, document.get(field)))
                found = found if direction > 0 else found[::-1]
        else:
            found = found * 2 if self.how.get("double") else found
            self.random.shuffle(found)
        found = found[: body.get("limit") or None]
        with self.lock:
            number = next(self.numbers)
            self.cursors[number] = found
        size = body.get("batchSize", 101) if name == "find" else body["cursor"].get("batchSize", 101)
        return self._batch(number, f"{database}.{body[name]}", size, "firstBatch", last=body.get("singleBatch", False))

    def _batch(self, cursor: int, namespace: str, size: int | None, field: str, *, last: bool = False) -> Any:
        if cursor not in self.cursors:
            raise RefusedError(CURSOR_NOT_FOUND, f"cursor {cursor} not found")
        left, nbytes, count = self.cursors[cursor], 0, 0
        while count < min(len(left), size or len(left)) and (not count or nbytes + len(_raw(left[count])) <= LARGEST):
            nbytes += len(_raw(left[count]))
            count += 1
        batch, self.cursors[cursor] = left[:count], left[count:]
        if last or not self.cursors[cursor]:
            del self.cursors[cursor]
        return {"cursor": {"id": bson.Int64(cursor in self.cursors and cursor), "ns": namespace, field: batch}, "ok": 1}


def shard_of(key: object) -> int:
    return zlib.crc32(repr(key).encode()) % 2


def key_of(document: RawBSONDocument) -> object:
    """Return the _id of a document, even of a record that cannot be decoded."""
    index = index_of(document.raw)
    return document["_id"] if index is None else index


def _raw(document: Any) -> bytes:
    return bytes(document.raw) if isinstance(document, RawBSONDocument) else bson.encode(document)


def _add_up(found: list[Any], group: dict[str, Any]) -> list[Any]:
    """Add the counts of all shards for each group."""
    sums: dict[bytes, dict[str, Any]] = {}
    for document in found:
        total = sums.setdefault(bson.encode({"": document["_id"]}), {"_id": document["_id"]})
        for name in set(group) - {"_id"}:
            total[name] = total.get(name, 0) + document[name]
    return list(sums.values())


class Connection(socketserver.StreamRequestHandler):
    """One connection of a client: reads commands, writes answers."""

    disable_nagle_algorithm = True

    @override
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            self._serve()

    def _serve(self) -> None:
        while header := self.rfile.read(HEADER.size):
            length, request, _, code = HEADER.unpack(header)
            data = self.rfile.read(length - HEADER.size)
            answer = bson.encode(self.server.cluster.answer(_command(code, data)))  # type: ignore[attr-defined]
            before = struct.pack("<iqii", 8, 0, 0, 1) if code == OP_QUERY else b"\0\0\0\0\0"
            size, kind = HEADER.size + len(before) + len(answer), OP_REPLY if code == OP_QUERY else OP_MSG
            self.wfile.write(HEADER.pack(size, 0, request, kind) + before + answer)


def _command(code: int, data: bytes) -> dict[str, Any]:
    """Return the command of a message."""
    if code == OP_QUERY:  # the first message of a driver
        return dict(bson.decode(data[data.index(b"\0", 4) + 9 :]))
    assert code == OP_MSG, code
    at, body = 4, {}
    sequences: dict[str, Any] = {}
    while at < len(data):
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 5], "little")
        part = data[at + 1 : at + 1 + size]
        at += 1 + size
        if kind == 0:
            body = bson.decode(part)
            continue
        name, _, documents = part[4:].partition(b"\0")
        raw = name == b"documents"  # records stay byte for byte
        sequences[name.decode()] = bson.decode_all(documents, RAW) if raw else bson.decode_all(documents)
    return {**body, **sequences}


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, ports: list[int]) -> None:
        super().__init__((HOST, 0), Connection)
        self.cluster = Cluster(ports)


if __name__ == "__main__":
    listener = Listener([int(port) for port in sys.argv[1:]])
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    sys.stdout.write(f"{listener.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the process that started it ends
    os._exit(0)
