"""Translate errors of LMDB and of the operating system into errors of dbloader."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lmdb

from dbloader._machine import NO_ROOM
from dbloader.errors import (
    DamagedStoreError,
    DBLoaderError,
    NotAStoreError,
    StoreAccessError,
    StoreError,
    StoreFullError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOO_MANY = (errno.EMFILE, errno.ENFILE)
TOO_LARGE = "larger than a file may be here: raise the limit (ulimit -f), or choose another disk"
_MAKE = "; dbloader convert makes a store of images, archives and listings"
_NO_MEMORY, _NO_MAP = (errno.ENOMEM,), (errno.ENODEV,)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
# LMDB raises these classes for errors of the operating system. Other classes mean that the file's content is wrong.
_SYSTEM = (lmdb.DiskError, lmdb.LockError, lmdb.MemoryError, lmdb.ReadonlyError)


def translate_refusal(error: OSError, place: str) -> StoreError:
    """Return dbloader's error for an OSError that was raised while writing to the path ``place``."""
    if error.errno == errno.EFBIG:
        return StoreFullError(f"{place} would become {TOO_LARGE}")
    if error.errno in NO_ROOM:
        return StoreFullError(f"no room is left for {place}: {error.strerror}")
    if error.errno in _TOO_MANY:
        return StoreError(f"{place}: {error.strerror}: allow this process more open files (ulimit -n)")
    gone = ": its folder does not exist (make it first) or takes no files, like /proc" * (error.errno == errno.ENOENT)
    return StoreAccessError(f"{place} cannot be written: {error.strerror or error}{gone}")


@contextmanager
def refusals(place: str) -> Iterator[None]:
    """Translate an OSError in the block into dbloader's error for a path that cannot be written."""
    try:
        yield
    except DBLoaderError:
        raise
    except OSError as error:
        raise translate_refusal(error, f"{place} ({error.filename})" if error.filename else place) from error


def translate(error: lmdb.Error, place: str, *, use: str = "read", remedy: str = "") -> StoreError:
    """Return dbloader's error for an error of LMDB.

    Args:
        error: LMDB's error.
        place: Name of the file or cache for the message.
        use: What failed, for the message: "read" or "written".
        remedy: What the user can do if the file is damaged or not an LMDB file.
    """
    text, remedy = str(error), f"; {remedy}" if remedy else ""
    if isinstance(error, lmdb.InvalidError):
        return NotAStoreError(f"{place} is not an LMDB file, so it is not a dbloader store{remedy or _MAKE}")
    if isinstance(error, lmdb.VersionMismatchError):
        return NotAStoreError(f"another version of LMDB wrote {place}: {text}{remedy}")
    if _mentions(NO_ROOM, text):
        return StoreFullError(f"no room is left for {place}: {text}")
    if _mentions(_NO_MEMORY, text):
        why = "LMDB needs address space (not memory) for the whole file: raise the limit (ulimit -v)"
        return StoreError(f"{place} cannot be {use}: {text}; {why}")
    if _mentions(_NO_MAP, text):
        return StoreError(f"{place}: this file system cannot map files ({text}): convert to a local disk")
    if _mentions(_NO_RIGHT, text):
        return StoreAccessError(f"{place} cannot be {use}: {text}")
    if type(error) is lmdb.Error or isinstance(error, _SYSTEM):
        # The file may be intact: perhaps too many files are open, or the user's program has opened this file with lmdb.
        return StoreError(f"{place} cannot be {use}: {text}")
    return DamagedStoreError(f"{place} cannot be {use}: {text}{remedy}")


def _mentions(numbers: tuple[int, ...], text: str) -> bool:
    return any(os.strerror(number) in text for number in numbers)
