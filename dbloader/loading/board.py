"""What worker processes share to make batches together: the tasks, who makes which part, and finished parts.

Each batch under way has a cell. A message to the workers is the number of a cell, 8 bytes in one pipe that all workers
read, so the next free worker takes it. A killed worker leaves no half-read message. The parts of a batch are numbered,
and each worker that has the message of its cell takes the next number until none is left.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import BaseContext

_MESSAGE = 8
# The file holds the shared numbers first, then a task for each cell, then the parked parts of each cell. They start at
# multiples of _STRIDE bytes. The gaps between them take no memory.
_STRIDE = 2**36
_FINISHED = -1


class Board:
    """The cells of the batches under way, in memory of all worker processes of a loader.

    Attributes:
        run: A shared array with one number, of the run whose batches are wanted.
        lock: Held while ``counts`` are read and changed.
        counts: A shared int64 array of shape (cells, 4): the number of parts that workers have taken, the number of all
            parts, the number of unfinished parts or -1 for a finished batch, and the bytes of parked parts.

    Raises:
        OSError: The process may open no more files.
    """

    def __init__(self, context: BaseContext, cells: int) -> None:
        self.lock = context.Lock()
        self._file = os.memfd_create("dbloader")
        os.ftruncate(self._file, 8 * (1 + 4 * cells))
        self._reader, self._writer = os.pipe()
        self._map(cells)

    def _map(self, cells: int) -> None:
        numbers = np.frombuffer(mmap.mmap(self._file, 8 * (1 + 4 * cells)), np.int64)
        self.run, self.counts = numbers[:1], numbers[1:].reshape(-1, 4)

    # The training's process

    def put(self, cell: int, parts: int, task: bytes) -> None:
        """Put a new batch into a free cell."""
        self.counts[cell] = 0, parts, parts, 0
        os.pwrite(self._file, len(task).to_bytes(8, "little") + task, (2 * cell + 1) * _STRIDE)

    def send(self, cell: int) -> None:
        """Let one more worker make parts of a cell's batch."""
        os.write(self._writer, cell.to_bytes(_MESSAGE, "little"))

    def parts_left(self, cell: int) -> int:
        """Return how many parts of a batch are left for further workers; the first worker takes at least one part."""
        taken, parts = self.counts[cell, :2].tolist()
        return int(parts - max(1, taken))

    def close(self) -> None:
        """Let the workers end after the messages that are in the pipe."""
        for file in (self._reader, self._writer, self._file):
            os.close(file)

    # A worker process

    def messages(self) -> Iterator[int]:
        """Yield the cells of the messages for this worker, until the training's process ends or closes the board."""
        os.close(self._writer)
        while message := os.read(self._reader, _MESSAGE):
            yield int.from_bytes(message, "little")

    def task(self, cell: int) -> bytes:
        """Return the task of a cell."""
        place = (2 * cell + 1) * _STRIDE
        return self._read(place + 8, int.from_bytes(self._read(place, 8), "little"))

    def is_wanted(self, run: int) -> bool:
        """Return whether the training still wants the batches of a run."""
        return bool(self.run[0] == run)

    def take(self, cell: int, run: int, *, all_parts: bool = False) -> range:
        """Return the next part, or all that are left; none if the run is not wanted any more."""
        if not self.is_wanted(run):
            self.skip(cell)
        with self.lock:
            taken, parts, *_ = self.counts[cell].tolist()
            end = parts if all_parts else min(parts, taken + 1)
            self.counts[cell, 0] = end
        return range(taken, end)

    def skip(self, cell: int) -> None:
        """Leave out the parts that no worker has taken, after an error of another part."""
        with self.lock:
            taken, parts, *_ = self.counts[cell].tolist()
            self.counts[cell, 0] = parts
            self.counts[cell, 2] -= parts - taken

    def finish(self, cell: int, count: int) -> bool:
        """Return whether a worker's finished parts are the last ones of the batch; one worker gets True."""
        with self.lock:
            last = bool(self.counts[cell, 2] == count)
            if last:
                self.counts[cell, 2] = _FINISHED
        return last

    def park(self, cell: int, count: int, parts: bytes) -> bool:
        """Keep finished parts for the worker that finishes last; return whether that is this worker now."""
        with self.lock:
            start = int(self.counts[cell, 3])
            self.counts[cell, 3] += 8 + len(parts)
        place = (2 * cell + 2) * _STRIDE + start
        data = memoryview(len(parts).to_bytes(8, "little") + parts)
        while data:
            written = os.pwrite(self._file, data, place)
            place, data = place + written, data[written:]
        with self.lock:
            self.counts[cell, 2] -= count
        return self.finish(cell, 0)

    def parked(self, cell: int) -> Iterator[bytes]:
        """Yield what workers have parked for a batch."""
        start = (2 * cell + 2) * _STRIDE
        end = start + int(self.counts[cell, 3])
        while start < end:
            length = int.from_bytes(self._read(start, 8), "little")
            yield self._read(start + 8, length)
            start += 8 + length

    def _read(self, place: int, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            data += os.pread(self._file, length - len(data), place + len(data))
        return bytes(data)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.lock, len(self.counts), *map(DupFd, (self._reader, self._writer, self._file))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.lock, cells, *files = state
        self._reader, self._writer, self._file = [file.detach() for file in files]
        self._map(cells)
