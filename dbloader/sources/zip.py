"""An image folder in zip files: the class of an image is the folder below those that all images share, as in a tar."""

from __future__ import annotations

import os
import posixpath
import struct
from typing import TYPE_CHECKING

from isal import isal_zlib
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.archive import ArchiveSource, number_folders
from dbloader.sources.base import MAX_BYTES, Entry, Problem, Tally, read_file, readable
from dbloader.sources.folder import EXTENSIONS, LOOKED_FOR
from dbloader.sources.zip_files import DEFLATED, LOCAL, LOCAL_MAGIC, zipped_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dbloader.sources.zip_files import ZippedFile


def read_zips(place: str | os.PathLike[str], paths: Sequence[Path]) -> ZipSource:
    """Return the source of the images in zip files, in that order; SourceError if they hold no image.

    Their directories are read here, for the classes, and again by each iteration. Memory holds the folders.
    """
    folders: set[str] = set()
    first = ""
    for path in paths:
        for item in _images(path, Tally()):
            if isinstance(item, Problem):
                first = first or f"; {item.name}: {item.reason}"
            else:
                folders.add(posixpath.dirname(item[0]))
    if not folders:
        what = f"there is not one image in it: {LOOKED_FOR}{first}"
        raise SourceError(f"{readable(place)}: {what}")
    return ZipSource(place, paths, *number_folders(folders, readable(place)))


class ZipSource(ArchiveSource):
    """The images in zip files; made by ``read_zips``."""

    reads = "zip files"

    @override
    def _found(self, path: Path, tally: Tally) -> Iterator[Entry | Problem]:
        for item in _images(path, tally):
            if isinstance(item, Problem):
                yield item
            else:
                name, found = item
                what = b"%d %d %08x " % (found.method, found.size, found.crc32)
                span = found.start, found.packed
                yield Entry(name, what + os.fsencode(path.absolute()), self._label(path, name), {}, span)

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for entry in entries:
            method, size, crc32, path = entry.path.split(b" ", 3)
            assert entry.span is not None
            start, packed = entry.span
            header = read_file(entry.name, path, (start, LOCAL.size), hold)
            if isinstance(header, Problem):
                yield header
                continue
            magic, name_bytes, extra_bytes = LOCAL.unpack(header)
            if magic != LOCAL_MAGIC:
                yield Problem(entry.name, f"is not where the directory of {readable(path)} says: it is damaged")
                continue
            data = read_file(entry.name, path, (start + LOCAL.size + name_bytes + extra_bytes, packed), hold)
            if isinstance(data, bytes) and int(method) == DEFLATED:
                data = _unpacked(entry.name, data, int(size), hold)
            if isinstance(data, bytes) and (len(data), isal_zlib.crc32(data)) != (int(size), int(crc32, 16)):
                data = Problem(entry.name, f"is damaged in {readable(path)}: its size or its CRC-32 is another one")
            yield data


def _unpacked(name: str, data: bytes, size: int, hold: Callable[[int], object]) -> bytes | Problem:
    """Return the bytes of a deflated file; of one that is larger than it says, one byte more than that."""
    if size > MAX_BYTES:
        return Problem(name, f"has {size:,} bytes, more than a record can hold ({MAX_BYTES:,})")
    hold(size)
    try:
        return isal_zlib.decompressobj(-isal_zlib.MAX_WBITS).decompress(data, size + 1)
    except isal_zlib.error as error:  # type: ignore[misc]  # it is an exception, whatever its stub says
        return Problem(name, f"cannot be unpacked: {error}")


def _images(path: Path, tally: Tally) -> Iterator[tuple[str, ZippedFile] | Problem]:
    """Yield the images in a zip, by their paths, and a problem for each that cannot be read."""
    where = readable(path)
    try:
        with path.open("rb") as file:
            for found in zipped_files(file):
                name = posixpath.normpath(found.name).lstrip("/")
                if found.name.endswith("/"):
                    continue
                if posixpath.basename(name).startswith("."):
                    tally.hidden += 1
                elif not name.lower().endswith(EXTENSIONS):
                    tally.skip(os.fsencode(posixpath.basename(name)))
                elif found.problem:
                    yield Problem(name, f"{found.problem} ({where})")
                else:
                    yield name, found
    except (ValueError, struct.error) as error:
        yield Problem(where, f"is damaged, and files after that are missing: {error}")
    except OSError as error:
        raise SourceError(f"{where}: cannot be read: {error.strerror or error}") from error
