"""Compressed tars: each is decompressed once into a temporary file, in which a member has a position."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import threading
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dbloader.errors import SourceError
from dbloader.sources.base import readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError)
_PIECE = 2**16  # bytes decompressed at once: so many at most are lost before damage


class Decompressed(NamedTuple):
    """What a file holds, in a temporary file without a name, which is removed when it is closed."""

    file: IO[bytes]
    problem: str  # why there is not all of it; "" if there is


class DecompressedFiles:
    """Compressed files that were opened, for any thread; a pickle has none of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, Decompressed | None] = {}

    def __reduce__(self) -> tuple[type[DecompressedFiles], tuple[()]]:
        return DecompressedFiles, ()

    def open(self, path: Path) -> Decompressed | None:
        """Return what a compressed file holds; None if it is not compressed. Its position is shared.

        Raises:
            SourceError: There is no room for it, or no library that reads it.
            OSError: It cannot be read.
        """
        with self._lock:
            if path not in self._files:
                with path.open("rb") as file:
                    start = file.read(6)
                    read = next((read for magic, read in _READERS.items() if start.startswith(magic)), None)
                    file.seek(0)
                    self._files[path] = None if read is None else _decompress(file, read, readable(path))
            return self._files[path]

    def close(self) -> None:
        """Remove all temporary files; the next use makes them again."""
        with self._lock:
            for found in filter(None, self._files.values()):
                found.file.close()
            self._files.clear()


def _decompress(file: IO[bytes], read: Callable[[IO[bytes]], Any], where: str) -> Decompressed:
    into = tempfile.TemporaryFile()  # noqa: SIM115 - DecompressedFiles closes it
    try:
        with read(file) as content:
            problem = _copied(content, into, where)
        into.flush()
        return Decompressed(into, problem)
    except BaseException:
        with suppress(OSError):
            into.close()
        raise


def _copied(content: IO[bytes], into: IO[bytes], where: str) -> str:
    """Copy what can be decompressed, and return why the rest cannot be; "" if all can."""
    while True:
        try:
            data = content.read(_PIECE)
        except _DAMAGED as error:
            return str(error)
        except OSError as error:
            if error.errno is None:  # of bz2 and pyarrow: the data is invalid
                return str(error)
            raise
        if not data:
            return ""
        try:
            into.write(data)
        except OSError as error:
            what = f"{tempfile.gettempdir()} cannot hold it decompressed: {error.strerror or error}"
            raise SourceError(f"{where}: {what}; set TMPDIR to a folder with room") from error


def _zstd(file: IO[bytes]) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
    except ImportError:
        try:
            from pyarrow import CompressedInputStream
        except ImportError:
            raise SourceError(
                f"{readable(file.name)}: reading zstd needs Python 3.14 or pyarrow: decompress it first (unzstd), or "
                "pip install 'dbloader[parquet]'"
            ) from None
        return CompressedInputStream(file, "zstd")
    return zstd.open(file)


_READERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"(\xb5/\xfd": _zstd,
}
