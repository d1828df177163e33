"""Collect records and report lines until the next commit, and commit them in a thread."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.records.columns import CHUNK, ColumnChunk, seal_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    from dbloader.records.record import EncodedRecord


class Commit(NamedTuple):
    """The content of one commit.

    Attributes:
        first: Index of the first record.
        documents: The records' BSON documents.
        chunks: The changed column chunks: ``chunks[number][column]`` is packed and sealed.
        events: New lines of the report.
    """

    first: int
    documents: list[bytes]
    chunks: dict[int, dict[str, bytes]]
    events: list[dict[str, str]]


class WriteBuffer:
    """Records and lines of the report that are not committed yet.

    Attributes:
        salt: The store's salt.
        length: Number of records in the store, including the records in the buffer.
        nbytes: Total size of the documents in the buffer, in bytes.
        began_at: When the buffer was last emptied (`time.monotonic`).
    """

    def __init__(
        self, salt: int, length: int = 0, chunk: ColumnChunk | None = None, fields: Iterable[str] = ()
    ) -> None:
        self.salt = salt
        self.length = length
        self._fields = set(fields)  # further fields that already have packed chunks
        self._chunk = ColumnChunk() if chunk is None else chunk
        self._begin()

    def _begin(self) -> None:
        self.nbytes = 0
        self.began_at = time.monotonic()
        self._next_commit = Commit(self.length, [], {}, [])

    def add(self, record: EncodedRecord) -> None:
        """Add a record at the next index."""
        document = record.document(self.length, self.salt)
        self._next_commit.documents.append(document)
        self.nbytes += len(document)
        self._chunk.append(record)
        self.length += 1
        if len(self._chunk) == CHUNK:
            self._pack((self.length - 1) // CHUNK)
            self._chunk = ColumnChunk()

    def report(self, events: Iterable[Mapping[str, str]]) -> None:
        """Add lines of the report."""
        self._next_commit.events.extend(map(dict, events))

    def take(self) -> Commit:
        """Return the content of the buffer, and empty it."""
        if len(self._chunk):
            self._pack(self.length // CHUNK)
        commit = self._next_commit
        self._begin()
        return commit

    def _pack(self, number: int) -> None:
        for earlier, packed in self._chunk.pack_columns(number, self._fields):
            sealed = {name: seal_chunk(name, earlier, chunk, self.salt) for name, chunk in packed.items()}
            self._next_commit.chunks.setdefault(earlier, {}).update(sealed)


class Committer:
    """A thread that runs one commit at a time, while its caller prepares the next records."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dbloader-commit")
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Start the thread now. If the first commit started it, Ctrl-C at that moment could leave a running commit."""
        self._executor.submit(os.getpid).result()

    def begin(self, function: Callable[..., None], *arguments: Any) -> None:
        """Wait for the running commit, then start the next commit by calling the function."""
        self.wait()
        self._running = self._executor.submit(function, *arguments)

    def wait(self) -> None:
        """Wait for the running commit. If a commit has failed, this and every later call raises its error."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def close(self) -> None:
        """Wait for the running commit, and end the thread."""
        self._executor.shutdown()
