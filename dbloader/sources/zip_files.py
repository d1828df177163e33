"""Find the files in a zip by the directory at its end, without extracting anything.

zipfile would keep the directory in memory, over 500 bytes for each file. The format is described in sections 4.3 to 4.5
of https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

from __future__ import annotations

import io
import stat
import struct
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED, DEFLATED = 0, 8
LOCAL, LOCAL_MAGIC = struct.Struct("<4s22x2H"), b"PK\3\4"
"""The header before a file: its magic, the length of its name and of what follows that."""

_END, _END64, _LOCATOR_BYTES = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), 20
_MEMBER = struct.Struct("<4s2B5H3L5H2L")
_ENCRYPTED, _UNIX = 1, 3
_IN_EXTRA = 2**32 - 1  # a number of 64 bits is among the extra values
_ZIP64 = 1


class ZippedFile(NamedTuple):
    """A file in a zip."""

    name: str
    start: int  # byte of the header before it
    packed: int  # bytes in the zip
    size: int
    crc32: int
    method: int
    problem: str  # why it cannot be read; "" if it can


def zipped_files(file: IO[bytes]) -> Iterator[ZippedFile]:
    """Yield the files of a zip; ValueError or struct.error if its directory is damaged."""
    start, size, count, before = _find_directory(file)
    file.seek(start)
    for _ in range(count):
        (magic, _, system, _, flags, method, _, _, crc32, packed, whole, name_bytes, extra_bytes, comment_bytes, _, _,
         attributes, at) = _MEMBER.unpack(file.read(_MEMBER.size))  # fmt: skip
        if magic != b"PK\1\2":
            raise ValueError("its directory is damaged")
        name, extra = file.read(name_bytes), file.read(extra_bytes)
        file.seek(comment_bytes, io.SEEK_CUR)
        whole, packed, at = _long_numbers((whole, packed, at), extra)
        problem = ""
        if flags & _ENCRYPTED:
            problem = "is encrypted: unpack it with its password, and convert the folder"
        elif system == _UNIX and stat.S_ISLNK(attributes >> 16):
            problem = "is a link, not a plain file"
        elif method not in (STORED, DEFLATED):
            problem = f"is compressed by method {method}, and only deflate is read: pack it again"
        yield ZippedFile(_text(name), before + at, packed, whole, crc32, method, problem)
    if file.tell() != start + size:
        raise ValueError(f"its directory names {count:,} files, and has more or fewer bytes than these take")


def _find_directory(file: IO[bytes]) -> tuple[int, int, int, int]:
    """Return where the directory begins, its bytes, its files, and the bytes before the zip, such as a program's."""
    length = file.seek(0, io.SEEK_END)
    file.seek(max(0, length - _END.size - 2**16))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise ValueError("has no directory at its end: it is cut short, or no zip file")
    _, disk, _, _, count, size, start, _ = _END.unpack_from(tail, at)
    end = length - len(tail) + at
    if tail[max(0, at - _LOCATOR_BYTES) :].startswith(b"PK\6\7"):
        end -= _LOCATOR_BYTES + _END64.size
        file.seek(max(0, end))
        magic, _, _, _, disk, _, _, count, size, start = _END64.unpack(file.read(_END64.size))
        if magic != b"PK\6\6":
            raise ValueError("its directory is damaged")
    if disk or start + size > end:
        raise ValueError("is one of several parts: join them first" if disk else "its directory is cut short")
    return end - size, size, count, end - size - start


def _long_numbers(numbers: tuple[int, ...], extra: bytes) -> tuple[int, ...]:
    """Return numbers, those of over 32 bits from the extra values, in their order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64:
            longer = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            return tuple(next(longer, number) if number == _IN_EXTRA else number for number in numbers)
        at += 4 + length
    return numbers


def _text(name: bytes) -> str:
    """Return a name as text: many programs write UTF-8 and do not say so; all others write code page 437."""
    with suppress(UnicodeDecodeError):
        return name.decode()
    return name.decode("cp437")
