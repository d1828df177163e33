"""Shared memory and a pipe, through which worker processes make batches together.

A part is some samples of a batch. Each unfinished batch has a cell in the memory. The cell contains a description of
the batch (the task), counts of its parts, and finished parts. All workers read messages from one pipe. A message is the
number of a cell. The next free worker reads the message, and makes one part of this cell's batch after another until no
part is left. A worker reads all 8 bytes of a message at once, so no killed worker leaves half a message.

The states of a cell with n parts, by its counts::

    taken 0, unfinished n
      |  take: taken + 1, or all that are left       skip: taken n, unfinished minus the parts that nobody took
    taken n, unfinished = the parts that workers are making
      |  store_parts: stored bytes + the bytes of these parts, unfinished minus the parts of this worker
    unfinished 0, or only the parts of the worker that calls finish
      |  finish: this worker loads the stored parts, joins all parts, and replies
    unfinished -1
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.batches.shared_memory import file_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import BaseContext

_MESSAGE = 8  # bytes
# The file begins with ``run`` and ``counts``. Then each cell has two areas: one for its task, one for stored parts.
# The stride is the distance between the starts of two areas; ulimit -f may lower it. The gaps take no memory.
_LARGEST_STRIDE, _LEAST_STRIDE = 2**36, 2**26  # bytes; the task of 10 million samples takes less than 2**26
_FINISHED = -1


class Board:
    """The cells of all unfinished batches of a loader, shared by its worker processes.

    Attributes:
        run: A shared array of one number: the iteration whose batches are wanted, or 0 if no batch is wanted.
        lock: Held while ``counts`` are read and changed.
        counts: A shared int64 array, shape (cells, 4). The columns count the parts that workers have taken, all
            parts, the unfinished parts (-1 for a finished batch), and the bytes of the stored parts.

    Raises:
        LoaderError: The limit on the size of files (ulimit -f) is too low.
        OSError: Too many files are open.
    """

    def __init__(self, context: BaseContext, cells: int) -> None:
        areas = 1 + 2 * cells
        self._stride = min(_LARGEST_STRIDE, file_limit(areas * _LEAST_STRIDE) // areas)
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
        """Write a batch's task to a free cell. Raise LoaderError if the task is larger than ulimit -f allows."""
        file_limit((1 + 2 * len(self.counts)) * (8 + len(task)))
        self.counts[cell] = 0, parts, parts, 0
        self._write((2 * cell + 1) * self._stride, task)

    def send(self, cell: int) -> None:
        """Send a message. The worker that reads the message makes parts of the cell's batch."""
        os.write(self._writer, cell.to_bytes(_MESSAGE, "little"))

    def parts_left(self, cell: int) -> int:
        """Return how many parts of a batch are left for other workers, after one worker has taken the first part."""
        taken, parts = self.counts[cell, :2].tolist()
        return int(parts - max(1, taken))

    def close(self) -> None:
        """Close the pipe. The workers end after they have read the messages in it."""
        files = self._reader, self._writer, self._file
        self._reader = self._writer = self._file = -1  # because the system may give these numbers to other files
        for file in files:
            os.close(file)

    # A worker process

    def messages(self) -> Iterator[int]:
        """Yield the cell of each message that this worker reads, until the training ends or closes the board."""
        os.close(self._writer)
        while message := os.read(self._reader, _MESSAGE):
            yield int.from_bytes(message, "little")

    def task(self, cell: int) -> bytearray:
        """Return the task of a cell."""
        return self._read((2 * cell + 1) * self._stride)

    def is_wanted(self, run: int) -> bool:
        """Return whether the training still wants the batches of an iteration."""
        return bool(self.run[0] == run)

    def take(self, cell: int, run: int, *, all_parts: bool = False) -> range:
        """Take one or all remaining parts of a batch. Return the numbers of these parts: none if ``run`` has ended."""
        if not self.is_wanted(run):
            self.skip(cell)
        with self.lock:
            taken, parts, *_ = self.counts[cell].tolist()
            end = parts if all_parts else min(parts, taken + 1)
            self.counts[cell, 0] = end
        return range(taken, end)

    def skip(self, cell: int) -> None:
        """Leave out all parts that no worker has taken, because the batch has an error or is no longer wanted."""
        with self.lock:
            taken, parts, *_ = self.counts[cell].tolist()
            self.counts[cell, 0] = parts
            self.counts[cell, 2] -= parts - taken

    def finish(self, cell: int, count: int) -> bool:
        """Return whether this worker must join all parts, because its ``count`` parts were the last."""
        with self.lock:
            last = bool(self.counts[cell, 2] == count)
            if last:
                self.counts[cell, 2] = _FINISHED
        return last

    def store_parts(self, cell: int, count: int, parts: bytes) -> bool:
        """Store finished parts for the worker that will join all parts. Return whether this worker must join them."""
        with self.lock:
            start = int(self.counts[cell, 3])
            fits = start + 8 + len(parts) <= self._stride  # else the joining worker makes these parts again
            self.counts[cell, 3] += fits * (8 + len(parts))
        if fits:
            self._write((2 * cell + 2) * self._stride + start, parts)
        with self.lock:
            self.counts[cell, 2] -= count
        return self.finish(cell, 0)

    def stored_parts(self, cell: int) -> Iterator[bytearray]:
        """Yield the bytes that each worker has stored for a batch."""
        start = (2 * cell + 2) * self._stride
        end = start + int(self.counts[cell, 3])
        while start < end:
            yield (parts := self._read(start))
            start += 8 + len(parts)

    def _write(self, place: int, data: bytes) -> None:
        os.pwrite(self._file, len(data).to_bytes(8, "little"), place)
        place, left = place + 8, memoryview(data)
        while left:  # Linux writes less than 2 GiB at once
            written = os.pwrite(self._file, left, place)
            place, left = place + written, left[written:]

    def _read(self, place: int) -> bytearray:
        data = bytearray(int.from_bytes(os.pread(self._file, 8, place), "little"))
        place, left = place + 8, memoryview(data)
        while left:  # Linux reads less than 2 GiB at once
            read = os.preadv(self._file, [left], place)
            place, left = place + read, left[read:]
        return data

    def __getstate__(self) -> tuple[Any, ...]:
        return self.lock, self._stride, len(self.counts), *map(DupFd, (self._reader, self._writer, self._file))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.lock, self._stride, cells, *files = state
        self._reader, self._writer, self._file = [file.detach() for file in files]
        self._map(cells)
