"""Compressed tars: each is decompressed once into a temporary file, so its members can be read by position."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dbloader.errors import SourceError
from dbloader.sources.base import readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError)
_PIECE = 2**16  # bytes to decompress in one step; if a step finds damage, its good bytes are lost


class Decompressed(NamedTuple):
    """The content of a file, in a temporary file without a name, which vanishes when it is closed."""

    file: IO[bytes]
    problem: str  # why the content is not whole; "" if it is


def decompress(path: Path) -> Decompressed | None:
    """Decompress a file into a temporary file, which the caller closes; return None if it is not compressed.

    Raises:
        SourceError: The disk lacks room for the content, or no library reads the format.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(6)
        read = next((read for magic, read in _READERS.items() if start.startswith(magic)), None)
        file.seek(0)
        return None if read is None else _decompress(file, read, readable(path))


def _decompress(file: IO[bytes], read: Callable[[IO[bytes]], Any], where: str) -> Decompressed:
    into = tempfile.TemporaryFile()  # noqa: SIM115 - the source closes it
    try:
        with read(file) as content:
            problem = _copied(content, into, where)
        into.flush()
        return Decompressed(into, problem)
    except BaseException:
        with suppress(OSError):  # if the disk is full, closing fails too, but the first error is the clear one
            into.close()
        raise


def _copied(content: IO[bytes], into: IO[bytes], where: str) -> str:
    """Copy the content up to its end or to damage. Return the error that the damage caused; "" without damage."""
    while True:
        try:
            data = content.read(_PIECE)
        except _DAMAGED as error:
            return str(error)
        except OSError as error:
            if error.errno is None:  # bz2 and pyarrow raise it for invalid data
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
