"""A stand-in for the router of a sharded MongoDB cluster (mongos), in front of one real server.

Tests use the stand-in because mongos is not installed. So they test dbloader, not MongoDB. The stand-in announces
itself as a router, accepts collections to shard, and returns their documents in random order. On request it doubles
results, and refuses to shard. ``python -m tests.stores.mongo.stand_in_router PORT`` runs the stand-in in its own
process, and prints its port.
"""

from __future__ import annotations

import contextlib
import os
import random
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from typing_extensions import override

from tests.support.mongo import HOST, Mongod, Server

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
ROUTED = {"insert", "update", "delete", "find", "getMore", "aggregate", "drop", "createIndexes", "listIndexes"}
OF_A_MESSAGE = ("$db", "$readPreference", "lsid", "$clusterTime")
HOST_UNREACHABLE, ILLEGAL, INVALID_BSON, NO_SHARD_KEY = 6, 20, 22, 61


class StandInRouter(Server):
    """A context manager that runs a server with a stand-in router in front of it."""

    def __init__(self, folder: Path) -> None:
        self._mongod = Mongod(folder)
        self._process: subprocess.Popen[str] | None = None
        super().__init__("")

    def __enter__(self) -> Self:
        try:
            self._mongod.start()
            command = [sys.executable, "-m", __name__, str(self._mongod.port)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # the router ends when this pipe closes, however pytest ends
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
        self._mongod.close()

    @contextlib.contextmanager
    def behaving(self, *, code: int | None = None, double: bool = False) -> Iterator[None]:
        """Inside the block, refuse to shard collections with an error code, or return every document twice."""
        with self.client() as client:
            client.admin.command("standIn", {"code": code, "double": double})
            yield
            client.admin.command("standIn", {})

    def restore(self) -> None:
        self._mongod.restore()


class RefusedError(Exception):
    """The error with which the router answers."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"ok": 0.0, "code": code, "codeName": str(code), "errmsg": message}


class Router:
    """The state of the router, for all connections."""

    def __init__(self, port: int) -> None:
        self.server: MongoClient[Any] = MongoClient(
            HOST, port, directConnection=True, retryWrites=False, retryReads=False
        )
        self.session = self.server.start_session(causal_consistency=False)  # any connection may read the cursors
        self.sharded: set[str] = set()  # collections
        self.random = random.Random(0)
        self.how: dict[str, Any] = {}

    def answer(self, body: dict[str, Any]) -> Any:
        name, database = next(iter(body)), body.get("$db", "admin")
        body = {key: value for key, value in body.items() if key not in OF_A_MESSAGE}
        if name in ("hello", "ismaster", "isMaster"):
            return HELLO
        if name == "standIn":
            self.how = body[name]
            return {"ok": 1.0}
        try:
            return self._run(name, database, body)
        except RefusedError as refused:
            return refused.answer
        except bson.errors.InvalidBSON as error:
            return RefusedError(INVALID_BSON, str(error)).answer
        except PyMongoError as error:
            return RefusedError(HOST_UNREACHABLE, str(error)).answer

    def _run(self, name: str, database: str, body: dict[str, Any]) -> Any:
        if name == "shardCollection":
            return self._shard(body)
        namespace = f"{database}.{body['collection'] if name == 'getMore' else body[name]}"
        if namespace in self.sharded:
            self._check_routable(name, body)
        answer = self.server[database].command(body, check=False, codec_options=RAW, session=self.session)
        return self._mixed(body, answer) if namespace in self.sharded and "cursor" in answer else answer

    def _shard(self, body: dict[str, Any]) -> Any:
        if code := self.how.get("code"):
            raise RefusedError(code, "shardCollection fails as requested")
        database, _, collection = str(body["shardCollection"]).partition(".")
        if body["key"] != {"_id": "hashed"} or set(body) - {"shardCollection", "key"}:
            raise RefusedError(ILLEGAL, f"the stand-in router only knows a hashed _id, got {body}")
        if self.server[database][collection].find_one() is not None:
            raise RefusedError(ILLEGAL, f"{collection} is not empty: the stand-in router moves nothing")
        self.server[database][collection].create_index([("_id", "hashed")])
        self.sharded.add(f"{database}.{collection}")
        return {"ok": 1.0}

    def _check_routable(self, name: str, body: dict[str, Any]) -> None:
        """Refuse the commands that a router refuses for a sharded collection."""
        if name not in ROUTED:
            raise RefusedError(ILLEGAL, f"the stand-in router refuses {name} for a sharded collection")
        for one in body.get("updates", body.get("deletes", ())):
            many = one.get("multi") or one.get("limit") == 0
            if not many and isinstance(one["q"].get("_id", {}), dict):
                raise RefusedError(NO_SHARD_KEY, f"{name} of one document without its _id")

    def _mixed(self, body: dict[str, Any], answer: Any) -> Any:
        """Shuffle and double the documents of a query's first answer, unless they are sorted or few are requested."""
        cursor = dict(answer["cursor"].items())
        if "firstBatch" in cursor and not body.keys() & {"sort", "limit", "pipeline"}:
            cursor["firstBatch"] = [*cursor["firstBatch"]] * (2 if self.how.get("double") else 1)
            self.random.shuffle(cursor["firstBatch"])
        return {**dict(answer.items()), "cursor": cursor}


class Connection(socketserver.StreamRequestHandler):
    """One connection of a client. Reads commands and writes responses."""

    disable_nagle_algorithm = True

    @override
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            self._serve()

    def _serve(self) -> None:
        while header := self.rfile.read(HEADER.size):
            length, request, _, code = HEADER.unpack(header)
            data = self.rfile.read(length - HEADER.size)
            answer = bson.encode(self.server.router.answer(_command(code, data)))  # type: ignore[attr-defined]
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
        raw = name == b"documents"  # records stay unchanged, byte for byte
        sequences[name.decode()] = bson.decode_all(documents, RAW) if raw else bson.decode_all(documents)
    return {**body, **sequences}


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int) -> None:
        super().__init__((HOST, 0), Connection)
        self.router = Router(port)


if __name__ == "__main__":
    listener = Listener(int(sys.argv[1]))
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    sys.stdout.write(f"{listener.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()  # run until the process that started the router ends
    os._exit(0)
