"""The rows of one Parquet or Arrow file, block by block, and images of blocks that threads share."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dbloader.errors import SourceError
from dbloader.sources.base import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, RecursionError)
"""Exceptions that pyarrow raises for a file that is damaged, or was written by a hostile program."""

# The end of a stream: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
_END = b"\xff\xff\xff\xff\0\0\0\0"
# Bytes of images that are decoded at once, of a row group that has more than twice as many.
_PIECE = 32 * 2**20
# Pieces of a row group that are kept: rows are asked for a little out of their order, since threads take turns.
_PIECES = 3
# Bytes of decoded images that are kept.
_HELD = 96 * 2**20
# How often a row group of several pieces is read from its start.
_RESTARTS = 20
_FILES = 4


def why(error: BaseException) -> str:
    """Return the message of an error of pyarrow in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


class ParquetFile:
    """A Parquet file, whose blocks are its row groups; any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path, self._metadata = path, pq.read_metadata(path)
        self.schema = self._metadata.schema.to_arrow_schema()
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        self.rows = array("Q", [group.num_rows for group in groups])

    def rows_at_once(self, block: int, column: str) -> int:
        """Return how many rows of a block to read at once, for the sake of the memory that a column takes."""
        group, rows = self._metadata.row_group(block), self.rows[block]
        columns = map(group.column, range(group.num_columns))
        size = sum(part.total_uncompressed_size for part in columns if part.path_in_schema.split(".")[0] == column)
        return max(1, int(rows * _PIECE // size) if size > 2 * _PIECE else rows)

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield columns of a block, so many rows at once; ``image.path`` is a part of a column."""
        # Without buffer_size, all of a column of the row group would be read before its first row, however large.
        options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(self._path, metadata=self._metadata, **options) as file:
            yield from file.iter_batches(rows, row_groups=[block], columns=[*columns], use_threads=False)


class ArrowFile:
    """An Arrow stream in a file, whose blocks are its record batches; any thread may use it."""

    def __init__(self, path: Path) -> None:
        stream = pa.memory_map(str(path))
        self.schema = pa.ipc.read_schema(stream)
        self._starts, self.rows = array("Q"), array("Q")
        while stream.tell() < stream.size() - len(_END):
            self._starts.append(stream.tell())
            message = pa.ipc.read_message(stream)
            if message.type != "record batch":
                raise ValueError(f"it has a {message.type}, which dbloader cannot read: write it as Parquet")
            self.rows.append(pa.ipc.read_record_batch(message, self.schema).num_rows)
        if stream.read() != _END:
            raise ValueError("it is cut short: copy it again")
        stream.seek(0)
        self._data = stream.read_buffer()  # a view of the map

    def rows_at_once(self, block: int, column: str) -> int:
        """Return the number of rows of a block: its values stay in the file."""
        del column
        return max(1, self.rows[block])

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the whole columns of a block that ``columns`` has parts of, so many rows at once."""
        message = pa.ipc.read_message(pa.BufferReader(self._data.slice(self._starts[block])))
        batch = pa.ipc.read_record_batch(message, self.schema)
        wanted = [*columns, *(column.rpartition(".")[0] for column in columns)]
        batch = batch.select([name for name in self.schema.names if name in wanted])
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            part.validate(full=True)  # its offsets may lead anywhere
            yield part


class _Block:
    """Pieces of the images of one block."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pieces: OrderedDict[int, Any] = OrderedDict()
        self.reader: Iterator[Any] = iter(())
        self.next = 2**63
        self.starts = 0
        self.nbytes = 0


class Files:
    """Files that are opened when they are used, and their images, which all threads share; a pickle has none of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, ParquetFile | ArrowFile] = OrderedDict()
        self._blocks: OrderedDict[tuple[Path, int], _Block] = OrderedDict()

    def __reduce__(self) -> tuple[type[Files], tuple[()]]:
        return Files, ()

    def open(self, path: Path) -> ParquetFile | ArrowFile:
        """Return a file; SourceError if it cannot be read."""
        with self._lock:
            found = self._files.pop(path, None)
            try:
                found = found or (ArrowFile if path.suffix.lower() == ".arrow" else ParquetFile)(path)
            except UNREADABLE as error:
                raise SourceError(f"{readable(path)}: cannot be read: {why(error)}") from error
            self._files[path] = found
            while len(self._files) > _FILES:
                self._files.popitem(last=False)
            return found

    def value(self, path: Path, block: int, row: int, column: str) -> Any:
        """Return the value in a row of a block; SourceError or one of ``UNREADABLE`` if it cannot be read."""
        with self._lock:
            shared = self._blocks.pop((path, block), None) or _Block()
            self._blocks[path, block] = shared
            while len(self._blocks) > 1 and sum(other.nbytes for other in self._blocks.values()) > _HELD:
                self._blocks.popitem(last=False)
        file = self.open(path)
        rows = file.rows_at_once(block, column)
        piece, offset = divmod(row, rows)
        with shared.lock:
            if piece not in shared.pieces and piece < shared.next:
                shared.starts += 1
                if shared.starts > _RESTARTS:
                    raise SourceError(
                        f"{readable(path)}: its row group {block} is too large to be read in another order than its "
                        "own: leave shuffle (--shuffle) out, or write row groups of 100 images"
                    )
                shared.reader, shared.next = file.batches(block, [column], rows), 0
            while piece not in shared.pieces:
                part = next(shared.reader, None)
                if part is None or part.num_rows != min(rows, file.rows[block] - shared.next * rows):
                    raise ValueError("it has not the number of rows that it says")
                shared.pieces[shared.next] = part.column(column)
                shared.next += 1
                while len(shared.pieces) > _PIECES:
                    shared.pieces.popitem(last=False)
            shared.nbytes = sum(part.nbytes for part in shared.pieces.values())
            return shared.pieces[piece][offset]

    def close(self) -> None:
        """Close all files; the next use opens them again."""
        with self._lock:
            self._files.clear()
            self._blocks.clear()
