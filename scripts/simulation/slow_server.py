"""A web server that serves the files of a folder slowly, like object storage over the networks of several nodes."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import numpy as np

from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from simulation.throttle import Throttle

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized
    from pathlib import Path

_CHUNK = 1 << 14
_PATH = re.compile(r"(HEAD|GET) /node(\d+)/(\S+) ")
_RANGE = re.compile(r"range: bytes=(\d+)-(\d+)", re.IGNORECASE)


def serve(
    folder: Path,
    latency_s: float,
    latency_spread: float,
    speeds: tuple[float, float, float],
    port: Connection,
    answering: Synchronized[float],
) -> None:
    """Serve ``/nodeN/FILE`` until the process is ended.

    Args:
        folder: The files.
        latency_s: Median wait before each answer.
        latency_spread: Sigma of its lognormal distribution.
        speeds: Bytes/s for each node, for each answer, and for all answers together.
        port: Receives the number of the port.
        answering: Seconds from each request for a shard to the end of its answer, summed over all requests.
    """
    rng, total, nodes = np.random.default_rng(0), Throttle(speeds[2]), dict[str, Throttle]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                began = time.monotonic()
                passed = began + latency_s * rng.lognormal(0, latency_spread)
                await asyncio.sleep(passed - time.monotonic())
                found = _PATH.match(head)
                assert found, head
                method, node, name = found.groups()
                data = (folder / name).read_bytes()
                part = _RANGE.search(head)
                body = data[int(part[1]) : int(part[2]) + 1] if part else data
                status = "206 Partial Content" if part else "200 OK"
                about = f"Content-Range: bytes {part[1]}-{part[2]}/{len(data)}\r\n" if part else ""
                writer.write(f'HTTP/1.1 {status}\r\n{about}Content-Length: {len(body)}\r\nETag: "1"\r\n\r\n'.encode())
                throttles = (Throttle(speeds[1]), nodes.setdefault(node, Throttle(speeds[0])), total)
                for begin in range(0, len(body) if method == "GET" else 0, _CHUNK):
                    chunk = body[begin : begin + _CHUNK]
                    passed = max(one.take(len(chunk), passed) for one in throttles)
                    await asyncio.sleep(passed - time.monotonic())
                    writer.write(chunk)
                await writer.drain()
                answering.value += (time.monotonic() - began) * (SHARD_FOLDER in name)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has disconnected
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1")
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
