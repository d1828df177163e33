"""Read images from zip files. `number_folders` explains which folder of a path is the class.

Python's zipfile reads the central directory, which is the zip's list of files. The list gives the files' positions.
Threads read the bytes there without zipfile, and share no open zip.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import struct
import unicodedata
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from isal import isal_zlib
from typing_extensions import override

from dbloader._describe import counted
from dbloader.errors import SourceError
from dbloader.ext.sources.archive import (
    ArchiveSource,
    ArchiveTally,
    encoding_warning,
    is_left_out,
    number_folders,
)
from dbloader.ext.sources.options import UNDECIDED
from dbloader.sources.base import MAX_BYTES, Entry, FieldFile, Problem, read_file, readable
from dbloader.sources.folder import EXTENSIONS, LOOKED_FOR, SIDECARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Tally

# Sections 4.3.7, 4.3.14 and 4.3.16 of https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
_LOCAL, _LOCAL_MAGIC = struct.Struct("<4s22x2H"), b"PK\3\4"  # header: lengths of name and extra field
_END, _END64, _LOCATOR_BYTES = struct.Struct("<4s6xH10x"), struct.Struct("<4s28xQ16x"), 20  # end: number of files
_EXTRA, _UNICODE_PATH = struct.Struct("<HHBI"), 0x7075
_ENCRYPTED, _IS_UTF8 = 1, 2**11  # bits of a file's flags
_UNIX = 3
# Python raises these errors for a damaged central directory.
_WRONG = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error)


class _Location(NamedTuple):
    """The position of an image in a zip."""

    path: bytes  # path of the zip
    start: int  # where the image's header begins
    packed: int  # number of compressed bytes
    size: int  # number of bytes after unpacking
    crc32: int
    method: int


class ZipSource(ArchiveSource):
    """Reads the images in zip files, in the order of ``paths``. Raises SourceError if there is no image.

    The constructor reads each zip's list of files to find the classes. Each iteration reads the list again. This takes
    about 600 bytes of memory for each file of one zip.
    """

    def __init__(self, place: str | os.PathLike[str], paths: Sequence[Path], reading: Reading = UNDECIDED) -> None:
        folders: set[str] = set()
        first, tally = "", ArchiveTally()
        for path in paths:
            for item in _images(path, tally, reading.encoding):
                if isinstance(item, Problem):
                    first = first or f"; {item.name}: {item.reason}"
                else:
                    folders.add(posixpath.dirname(item.name))
        if not folders:
            raise SourceError(f"{readable(place)}: there is not one image in it: {LOOKED_FOR}{first}")
        super().__init__(place, paths, *number_folders(folders, readable(place), reading))
        self.follows += ("encoding",)
        self.warnings += tuple(tally.warnings)

    @override
    def _found(self, path: Path, tally: ArchiveTally) -> Iterator[Entry | Problem]:
        for item in _images(path, tally, self._reading.encoding):
            yield item if isinstance(item, Problem) else item._replace(label=self._label(item.name))
        tally.warnings.clear()  # the constructor has already given these warnings

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        return read_members(entries, hold)


def read_members(entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
    """Yield the bytes of each file in a zip, or a Problem. The arguments are as in ``Source.read``."""
    for entry in entries:
        path, start, packed, size, crc32, method = _Location(*entry.location)
        header = read_file(entry.name, path, hold, start, _LOCAL.size)
        if isinstance(header, Problem):
            yield header
            continue
        magic, name_bytes, extra_bytes = _LOCAL.unpack(header)
        if magic != _LOCAL_MAGIC:
            yield Problem(entry.name, f"is not at its position in {readable(path)}: the zip is damaged")
            continue
        data = read_file(entry.name, path, hold, start + _LOCAL.size + name_bytes + extra_bytes, packed)
        if isinstance(data, bytes) and method == zipfile.ZIP_DEFLATED:
            data = _unpacked(entry.name, data, size, hold)
        if isinstance(data, bytes) and (len(data), isal_zlib.crc32(data)) != (size, crc32):
            data = Problem(entry.name, f"is damaged in {readable(path)}: its size or its CRC-32 is wrong")
        yield data


def index_zips(paths: Sequence[Path], tally: Tally, encoding: str | None) -> dict[str, _Location]:
    """Return {path: location} for the files in zips, with paths in Unicode's form NFC. Leave out ambiguous paths.

    A file may have several paths. If all files of ``a.zip`` are in the folder ``top``, ``top/x.jpg`` is also
    ``x.jpg``, ``a/top/x.jpg`` and ``a/x.jpg``. The paths with ``a/`` fit a zip that was extracted into a folder ``a``.
    """
    exact, others = dict[str, _Location | None](), dict[str, _Location | None]()
    for path in paths:
        there = [item for item in read_directory(path, tally, encoding) if not isinstance(item, Problem)]
        there = [(name, member) for name, member in there if not is_left_out(name, tally) and not _problem(member)]
        top = {name.partition("/")[0] if "/" in name else "" for name, _ in there}
        for name, member in there:
            inner = name.partition("/")[2] if len(top) == 1 and "" not in top else name
            exact[name] = None if name in exact else _location(path, member)
            for key in {inner, f"{path.stem}/{name}", f"{path.stem}/{inner}"}:
                others[key] = None if key in others else _location(path, member)
    found = {unicodedata.normalize("NFC", key): location for key, location in {**others, **exact}.items()}
    return {key: location for key, location in found.items() if location is not None}


def _unpacked(name: str, data: bytes, size: int, hold: Callable[[int], object]) -> bytes | Problem:
    """Decompress a deflated file, but at most ``size`` + 1 bytes: the caller rejects a file of another size."""
    if size > MAX_BYTES:
        return Problem(name, f"has {size:,} bytes, more than a record can hold ({MAX_BYTES:,})")
    hold(size)
    try:
        return isal_zlib.decompressobj(-isal_zlib.MAX_WBITS).decompress(data, size + 1)
    except isal_zlib.error as error:  # type: ignore[misc]  # it is an exception, whatever its stub says
        return Problem(name, f"cannot be unpacked: {error}")


def _images(path: Path, tally: ArchiveTally, encoding: str | None = None) -> Iterator[Entry | Problem]:
    """Yield an entry without a label for each image in a zip. Yield a Problem for an unreadable image or zip."""
    members, images, beside = read_directory(path, tally, encoding), [], dict[str, dict[str, FieldFile]]()
    for item in members:
        if isinstance(item, Problem):
            yield item
            continue
        name, found = item
        if is_left_out(name, tally):
            continue
        stem, extension = posixpath.splitext(name)
        if name.lower().endswith(EXTENSIONS):
            images.append(item)
        elif extension.lower().encode() in SIDECARS and not _problem(found):
            beside.setdefault(stem, {})[extension[1:].lower()] = FieldFile(name, _location(path, found))
        else:
            tally.skip_path(name, is_link=_is_link(found))
    for name, found in images:
        if problem := _problem(found):
            yield Problem(name, f"{problem} ({readable(path)})")
            continue
        files = beside.get(posixpath.splitext(name)[0]) or beside.get(name) or {}
        tally.count_beside(files)
        yield Entry(name, _location(path, found), None, {}, files=dict(sorted(files.items())))
    taken = {key for name, _ in images for key in (name, posixpath.splitext(name)[0])}
    for file in (file for stem, files in beside.items() if stem not in taken for file in files.values()):
        tally.skip_path(file.name)


def read_directory(
    path: Path, tally: Tally, encoding: str | None = None
) -> Iterator[tuple[str, zipfile.ZipInfo] | Problem]:
    """Yield (normalized name, ZipInfo) for each file in a zip. For a damaged zip, yield one Problem instead."""
    where = readable(path)
    try:
        with path.open("rb") as opened, zipfile.ZipFile(opened) as file:
            members = file.infolist()
            _check_count(opened, len(members))
    except _WRONG as error:
        yield Problem(where, f"is damaged or cut short, and none of its files is read: {error}")
        return
    except OSError as error:
        raise SourceError(f"{where}: cannot be read: {error.strerror or error}") from error
    old = list[str]()
    for found in members:
        if not found.flag_bits & _IS_UTF8 and not found.orig_filename.isascii():
            if encoding is None and (name := _unicode_path(found)):
                found.filename = name
            else:
                old.append(found.filename)
    as_utf8 = {name: utf8 for name in old if (utf8 := _decoded(name, "utf-8"))}
    if encoding is not None:
        names = {name: _decoded(name, encoding) for name in old}
    else:
        names = as_utf8 if len(as_utf8) == len({*old}) else {}
    if wrong := next((name for name in old if not names.get(name, name)), None):
        raise SourceError(f"{where}: the name {wrong!r} is not in the encoding {encoding!r}: give another (--encoding)")
    if old and not names:
        tally.warnings.append(encoding_warning(where, old))
    for found in members:
        name = names.get(found.filename) or found.filename
        if "\\" in name:
            tally.backslashes += 1
            name = name.replace("\\", "/")
        if not name.endswith("/"):
            yield posixpath.normpath(name).lstrip("/"), found


def _unicode_path(found: zipfile.ZipInfo) -> str:
    """Return the name in the extra field of Info-ZIP and 7-Zip (section 4.6.9 of APPNOTE.TXT); "" without one."""
    extra = found.extra
    while len(extra) >= _EXTRA.size:
        kind, size, version, crc32 = _EXTRA.unpack_from(extra)
        with suppress(UnicodeError):
            if (kind, version) == (_UNICODE_PATH, 1) and isal_zlib.crc32(found.orig_filename.encode("cp437")) == crc32:
                return extra[_EXTRA.size : 4 + size].decode()
        extra = extra[4 + size :]
    return ""


def _decoded(name: str, encoding: str) -> str:
    """Undo zipfile's decoding of a name as code page 437, and decode it with ``encoding``. Return "" on failure."""
    with suppress(UnicodeError):
        return name.encode("cp437").decode(encoding)
    return ""


def _location(path: Path, found: zipfile.ZipInfo) -> _Location:
    numbers = found.header_offset, found.compress_size, found.file_size, found.CRC, found.compress_type
    return _Location(os.fsencode(path.absolute()), *numbers)


def _check_count(file: io.BufferedReader, count: int) -> None:
    """Raise ValueError if the end record of a zip gives another number of files than ``count``.

    zipfile does not check this number. Without a check, a wrong length in the central directory could hide files.
    """
    length = file.seek(0, io.SEEK_END)
    start = file.seek(max(0, length - _END.size - 2**16))
    tail = file.read()
    found = tail.rfind(b"PK\5\6")
    _, recorded = _END.unpack_from(tail, found)
    at = start + found
    if recorded == 2**16 - 1 and at >= _LOCATOR_BYTES + _END64.size:
        file.seek(at - _LOCATOR_BYTES - _END64.size)
        magic, many = _END64.unpack(file.read(_END64.size))
        recorded = many if magic == b"PK\6\6" else recorded
    if recorded != count:
        raise ValueError(f"its directory has {counted(count, 'file')}, but its end record counts {recorded:,}")


def _is_link(found: zipfile.ZipInfo) -> bool:
    return found.create_system == _UNIX and stat.S_ISLNK(found.external_attr >> 16)


def _problem(found: zipfile.ZipInfo) -> str:
    """Return why a file cannot be read; "" if it can."""
    if found.header_offset < 0:
        return "is not there: the beginning of the zip is missing"
    if found.flag_bits & _ENCRYPTED:
        return "is encrypted: unpack it with its password, and convert the folder"
    if _is_link(found):
        return "is a link: extract the zip, and convert the folder"
    if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {found.compress_type}, and only deflate is read: pack it again"
    return ""
