"""The rows of Parquet and Arrow files, block by block, and the images of blocks, which threads share."""

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
"""Exceptions that pyarrow raises for a file that is damaged or hostile."""

# https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
_END = b"\xff\xff\xff\xff\0\0\0\0"
_PIECE = 32 * 2**20  # bytes of images that are decoded at once, in a row group that has more than twice as many
_PIECES = 3  # kept of such a row group: threads that take turns ask for rows a little out of their order
_HELD = 96 * 2**20  # bytes of decoded images that are kept of all blocks
_STARTS = 20  # times that a row group of many pieces is read from its start
_FILES = 4  # whose headers are kept


class ParquetFile:
    """A Parquet file, whose blocks are its row groups."""

    def __init__(self, path: Path) -> None:
        self._path, self._metadata = path, pq.read_metadata(path)
        self.schema = self._metadata.schema.to_arrow_schema()
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        self.rows = array("Q", [group.num_rows for group in groups])

    def rows_at_once(self, block: int, column: str) -> int:
        """Return how many rows of a block to decode at once, by the bytes that a column has."""
        group, rows = self._metadata.row_group(block), self.rows[block]
        parts = map(group.column, range(group.num_columns))
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.startswith(column))
        return max(1, int(rows * _PIECE // size) if size > 2 * _PIECE else rows)

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield columns of a block, so many rows at once; ``image.path`` is a part of a column."""
        # Without buffer_size, all of a column is read before its first row.
        options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(self._path, metadata=self._metadata, **options) as file:
            yield from file.iter_batches(rows, row_groups=[block], columns=[*columns], use_threads=False)


class ArrowFile:
    """A file of an Arrow stream, whose blocks are its record batches; their values stay in the file until used."""

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
        """Return the number of rows of a block, whatever the column."""
        del column
        return max(1, self.rows[block])

    def batches(self, block: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the columns of a block which ``columns`` names or has parts of, so many rows at once."""
        message = pa.ipc.read_message(pa.BufferReader(self._data.slice(self._starts[block])))
        batch = pa.ipc.read_record_batch(message, self.schema)
        wanted = [*columns, *(column.rpartition(".")[0] for column in columns)]
        batch = batch.select([name for name in batch.schema.names if name in wanted])
        batch.validate(full=True)  # its offsets may lead anywhere
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _Block:
    """The images of a block, in pieces that are decoded one after the other."""

    def __init__(self, file: ParquetFile | ArrowFile, block: int, column: str) -> None:
        self._file, self._block, self._column = file, block, column
        self._rows = file.rows_at_once(block, column)
        self._lock = threading.Lock()
        self._pieces: OrderedDict[int, Any] = OrderedDict()
        self._batches: Iterator[Any] = iter(())
        self._next, self._starts = 2**63, 0
        self.nbytes = 0

    def value(self, row: int) -> Any:
        piece, offset = divmod(row, self._rows)
        with self._lock:
            if piece not in self._pieces and piece < self._next:
                self._batches, self._next = self._file.batches(self._block, [self._column], self._rows), 0
                self._starts += 1
                if self._starts > _STARTS:
                    raise ValueError(
                        f"its row group {self._block} is too large to be read in a random order: leave shuffle "
                        "(--shuffle) out, or write row groups of 100 images"
                    )
            while piece not in self._pieces:
                batch = next(self._batches, None)
                if batch is None or len(batch) != min(
                    self._rows, self._file.rows[self._block] - self._next * self._rows
                ):
                    raise ValueError("it has not as many rows as it says")
                self._pieces[self._next] = batch.column(self._column)
                self._next += 1
                while len(self._pieces) > _PIECES:
                    self._pieces.popitem(last=False)
            self.nbytes = sum(part.nbytes for part in self._pieces.values())
            return self._pieces[piece][offset]


class Files:
    """Files and their images, opened and decoded when any thread asks for them; a pickle has none of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, ParquetFile | ArrowFile] = OrderedDict()
        self._blocks: OrderedDict[tuple[Path, int], _Block] = OrderedDict()

    def __reduce__(self) -> tuple[type[Files], tuple[()]]:
        return Files, ()

    def open(self, path: Path) -> ParquetFile | ArrowFile:
        """Return a file; SourceError if it cannot be read."""
        with self._lock:
            return self._open(path)

    def _open(self, path: Path) -> ParquetFile | ArrowFile:
        try:
            found = self._files.pop(path, None) or (ArrowFile if path.suffix == ".arrow" else ParquetFile)(path)
        except UNREADABLE as error:
            raise SourceError(f"{readable(path)}: cannot be read: {why(error)}") from error
        self._files[path] = found
        if len(self._files) > _FILES:
            self._files.popitem(last=False)
        return found

    def value(self, path: Path, block: int, row: int, column: str) -> Any:
        """Return the value in a row of a block; SourceError, or one of ``UNREADABLE``, if it cannot be read."""
        with self._lock:
            shared = self._blocks.pop((path, block), None) or _Block(self._open(path), block, column)
            self._blocks[path, block] = shared
            while len(self._blocks) > 1 and sum(other.nbytes for other in self._blocks.values()) > _HELD:
                self._blocks.popitem(last=False)
        return shared.value(row)

    def close(self) -> None:
        """Close all files; the next use opens them again."""
        with self._lock:
            self._files.clear()
            self._blocks.clear()


def why(error: BaseException) -> str:
    """Return the message of an error of pyarrow, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
