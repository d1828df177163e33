"""Read blocks of rows from Parquet and Arrow files. Threads share the open files and the decoded images."""

from __future__ import annotations

import threading
from array import array
from collections import Counter, OrderedDict, deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dbloader._machine import cpu_count
from dbloader._parallel import TASK_FILES, max_tasks
from dbloader.errors import SourceError
from dbloader.ext.sources.arrow_columns import field_names
from dbloader.sources.base import NOT_THE_FILE, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, RecursionError)
"""Exceptions that pyarrow raises for a file that is damaged or hostile."""

# https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
_END = b"\xff\xff\xff\xff\0\0\0\0"
_KEPT = 64 * 2**20  # bytes of decoded images to keep; a larger block is decoded in pieces
_PIECE = 2**20  # bytes of a piece
_MAX_PASSES = 3  # limit for passes through one large block
_OPEN_FILES = 4


class ParquetFile:
    """A Parquet file. Each row group of the file is a block of rows."""

    def __init__(self, path: Path) -> None:
        self._path, self._metadata = path, pq.read_metadata(path)
        self.schema = self._metadata.schema.to_arrow_schema()
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        self.rows = array("Q", [group.num_rows for group in groups])

    def image_bytes(self, block: int, column: str) -> int:
        """Return how many bytes a column of a block takes after decoding."""
        group = self._metadata.row_group(block)
        parts = map(group.column, range(group.num_columns))
        return sum(int(part.total_uncompressed_size) for part in parts if part.path_in_schema.startswith(column))

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Generator[Any]:
        """Yield a block in batches of ``rows`` rows. ``columns`` may name parts of columns, such as ``image.path``."""
        # Without buffer_size, pyarrow reads a whole column before it returns the first row.
        options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(self._path, metadata=self._metadata, **options) as file:
            yield from file.iter_batches(rows, row_groups=[block], columns=[*columns], use_threads=False)


class ArrowFile:
    """A memory-mapped file in Arrow's streaming format. Each record batch of the file is a block of rows."""

    def __init__(self, path: Path) -> None:
        stream = pa.memory_map(str(path))
        self.schema = pa.ipc.read_schema(stream)
        self._starts, self.rows = array("Q"), array("Q")
        while stream.tell() < stream.size() - len(_END):
            self._starts.append(stream.tell())
            message = pa.ipc.read_message(stream)
            if message.type != "record batch":
                raise ValueError(f"it has a {message.type}, which dbloader cannot read: write a Parquet file instead")
            self.rows.append(pa.ipc.read_record_batch(message, self.schema).num_rows)
        if stream.read() != _END:
            raise ValueError("it is cut short: copy it again")
        stream.seek(0)
        self._data = stream.read_buffer(stream.size())  # a view of the mapped file

    def image_bytes(self, block: int, column: str) -> int:
        """Return 0: nothing has to be decoded."""
        del block, column
        return 0

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Generator[Any]:
        """Yield a block in batches of ``rows`` rows. For ``image.path``, yield the whole column ``image``."""
        message = pa.ipc.read_message(pa.BufferReader(self._data.slice(self._starts[block])))
        batch = pa.ipc.read_record_batch(message, self.schema)
        wanted = [*columns, *(column.rpartition(".")[0] for column in columns)]
        batch = batch.select([name for name in batch.schema.names if name in wanted])
        batch.validate(full=True)  # offsets in a damaged file may point outside of its data
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def open_table(path: Path) -> ParquetFile | ArrowFile:
    """Open a Parquet or Arrow file; SourceError if it cannot be read."""
    try:
        return ArrowFile(path) if path.suffix == ".arrow" else ParquetFile(path)
    except UNREADABLE as error:
        raise SourceError(f"{readable(path)}: cannot be read: {why(error)}") from error


class _Block:
    """The images in one column of a block.

    A pass decodes the rows in order, batch by batch, and keeps only the last batches. Earlier rows need another pass.
    """

    def __init__(
        self, file: ParquetFile | ArrowFile, block: int, column: str, count_pass: Callable[[int], None]
    ) -> None:
        size, self._length = file.image_bytes(block, column), file.rows[block]
        self.is_large = size > _KEPT
        self.size = min(size, _KEPT)
        # number of rows in a batch
        self._rows = max(1, int(self._length * _PIECE // size)) if self.is_large else self._length
        self._decode = partial(file.batches, block, [column], self._rows)
        self._count_pass = partial(count_pass, size)
        self._batches: Generator[Any] | None = None
        rows_ahead = TASK_FILES * max_tasks(cpu_count())  # one thread may be this far ahead of a slower thread
        self._kept: deque[Any] = deque(maxlen=1 + -(-rows_ahead // self._rows))
        self._decoded = 0  # number of batches that this pass has decoded
        self._lock, self._error = threading.Lock(), ""

    def read(self, row: int, hold: Callable[[int], object]) -> bytes | str | None:
        """Return the bytes or the path in a row; None without either. Raise one of ``UNREADABLE`` for damage."""
        with self._lock:
            number = row // self._rows
            if self._error:
                raise ValueError(self._error)
            if self._batches is None or number < self._decoded - len(self._kept):
                if self.is_large:
                    self._count_pass()
                self._batches, self._decoded = self._decode(), 0
                self._kept.clear()
            try:
                while self._decoded <= number:
                    batch = next(self._batches, ())
                    if len(batch) != min(self._rows, self._length - self._decoded * self._rows):
                        raise ValueError("it has fewer rows than its header says")
                    self._kept.append(batch)
                    self._decoded += 1
                if self._decoded * self._rows >= self._length:
                    self._batches.close()
            except UNREADABLE as error:
                check_machine(error)
                self._error = why(error)
                raise
            batch = self._kept[number - self._decoded]
        return _content(batch.column(0)[row % self._rows], hold)


def _content(value: Any, hold: Callable[[int], object]) -> bytes | str | None:
    """Return the bytes or the path in a value of the image column."""
    path: str | None = None
    if value.is_valid and types.is_struct(value.type):
        path, value = value["path"].as_py() if "path" in field_names(value.type) else None, value["bytes"]
    elif types.is_string(value.type):
        path, value = value.as_py(), pa.scalar(None, pa.binary())
    if not value.is_valid:
        return path or None
    data: Any = value.as_buffer()
    hold(len(data))
    return bytes(data)


class Files:
    """A cache of opened files and decoded blocks. Threads share it."""

    def __init__(self) -> None:
        self.open = lru_cache(_OPEN_FILES)(open_table)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[Path, int, str], _Block] = OrderedDict()
        self._passes: Counter[tuple[Path, int, str]] = Counter()  # number of passes through each large block

    def read(self, path: Path, block: int, row: int, column: str, hold: Callable[[int], object]) -> bytes | str | None:
        """Return the bytes or the path of an image; None if there is neither.

        Raises:
            SourceError: The file cannot be read, or its row groups are too large for a random order.
            Exception: The row is damaged. The type is one of ``UNREADABLE``.
        """
        key = path, block, column
        with self._lock:
            shared = self._blocks.pop(key, None) or _Block(
                self.open(path), block, column, partial(self._count_pass, key)
            )
            self._blocks[key] = shared
            kept = [other for other in self._blocks if other[2] == column]
            while len(kept) > 2 and sum(self._blocks[other].size for other in kept) > _KEPT:
                del self._blocks[kept.pop(0)]
        return shared.read(row, hold)

    def _count_pass(self, key: tuple[Path, int, str], size: int) -> None:
        self._passes[key] += 1
        if self._passes[key] > _MAX_PASSES:
            what = f"its row groups, such as number {key[1]} with {size:,} bytes, are too large for a random order"
            raise SourceError(f"{readable(key[0])}: {what}: leave shuffle_seed (--shuffle-seed) out")

    def close(self) -> None:
        """Close all files; the next use opens them again."""
        with self._lock:
            self.open.cache_clear()
            self._blocks.clear()


def check_machine(error: Exception) -> None:
    """Raise an error again if the machine caused it. Continuing would reject good files."""
    if isinstance(error, (MemoryError, SourceError)) or getattr(error, "errno", None) in NOT_THE_FILE:
        raise error


def why(error: BaseException) -> str:
    """Return the message of an error of pyarrow, in one line."""
    if isinstance(error, FileNotFoundError):
        return "No such file or directory"
    return " ".join(str(error).split())[:200] or type(error).__name__
