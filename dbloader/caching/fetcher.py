"""Run the fetcher: the one process on a machine that fetches the shards of a cache folder for all readers.

A reader starts the fetcher (``client.py``). The fetcher ends when no reader is connected. It does not import torch.

    readers --- need 17 ---> a thread for each ---> shards.py: present shards, and the next shards
                                                        |  ^
                                                        v  |
    origin --- shards/00017 ---> up to 4 threads that fetch: partial/00017, checked, renamed to shards/00017
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from dbloader.caching.client import Channel, socket_address
from dbloader.caching.fetch_file import as_dbloader_error
from dbloader.caching.folder import PARTIAL, SOCKET
from dbloader.caching.shards import CachedShards, Reader

_FIRST_READER_S = 60.0


def serve(cache: str) -> None:
    """Serve the readers of a cache folder until the last reader disconnects. This process holds the folder's lock."""
    _clean_up(cache)
    shards = CachedShards(cache)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o077)  # only this user may connect
        with socket_address(cache) as address:
            listener.bind(address)
        os.umask(before)
        listener.listen(128)
        listener.settimeout(_FIRST_READER_S)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return  # the reader that started this process has ended
            listener.settimeout(None)
            connection.settimeout(None)
            channel = Channel(connection)
            reader = Reader(channel)
            shards.join(reader)
            threading.Thread(target=_converse, args=(cache, shards, reader, channel), daemon=True).start()


def _clean_up(cache: str) -> None:
    """Remove the socket, and the partial files of a killed fetcher."""
    for path in (Path(cache, SOCKET), *Path(cache, PARTIAL).iterdir()):
        path.unlink(missing_ok=True)


def _converse(cache: str, shards: CachedShards, reader: Reader, channel: Channel) -> None:
    """Handle a reader's messages until it disconnects. When the last reader has disconnected, end this process."""
    try:
        with suppress(OSError, EOFError):  # the reader has disconnected
            while True:
                _obey(shards, reader, channel.receive())
    finally:
        channel.close()
        if not shards.leave(reader):  # a reader that connects just now will start a new fetcher
            with suppress(OSError):  # the folder was removed
                _clean_up(cache)
            os._exit(0)  # does not wait for threads, which may hang while they read the origin


def _obey(shards: CachedShards, reader: Reader, message: dict[str, Any]) -> None:
    if "opened" in message:
        shards.opened(reader)
        return
    try:
        if "need" in message:
            shards.need(reader, message["need"], message.get("damaged_file"))
            return  # the reader gets its answer when the shard is in the cache
        if "open" in message:
            reader.name = message["reader"]
            shards.open(**message["open"])
        else:
            shards.expect(reader, message["expect"], check=message["check"])
    except Exception as error:
        reader.answer(as_dbloader_error(error, "the origin"))
    else:
        reader.answer()
