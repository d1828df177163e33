"""A folder of shards that serves its files slowly through named pipes, like a network file system."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from simulation.throttle import Throttle

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

_CHUNK = 1 << 20


def serve(store: Path, folder: Path, rate: float, ready: Connection) -> None:
    """Serve the files of a store until the process is ended. Readers must read each file from beginning to end.

    Args:
        store: A folder of shards.
        folder: The new folder, with a named pipe for each file. Only the manifest is an ordinary file.
        rate: Bytes/s of all files together.
        ready: Receives True when the folder is complete.
    """
    throttle = Throttle(rate)
    (folder / "shards").mkdir(parents=True)
    shutil.copyfile(store / "manifest.bson", folder / "manifest.bson")
    for path in (*store.glob("index*"), *(store / "shards").iterdir()):
        place = folder / path.relative_to(store)
        os.mkfifo(place)
        threading.Thread(target=_give, args=(path, place, throttle), daemon=True).start()
    ready.send(True)
    threading.Event().wait()


def _give(path: Path, place: Path, throttle: Throttle) -> None:
    """Serve a file to one reader after another."""
    while True:
        pipe = os.open(place, os.O_WRONLY)  # waits for a reader
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CHUNK)
        # The next reader gets a new pipe, because it must not get the rest of this reader's bytes.
        following = place.with_suffix(".following")
        os.mkfifo(following)
        following.replace(place)
        with path.open("rb") as file, suppress(BrokenPipeError):
            while moved := os.splice(file.fileno(), pipe, _CHUNK):
                throttle.wait(moved)
        os.close(pipe)
