"""Read one file: only a regular one, and only if a record can hold it."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from dbloader.errors import NotAnImageError

if TYPE_CHECKING:
    from collections.abc import Callable

# Errors of the machine, not of the file: to continue would reject good files.
_NOT_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# A record is a BSON document, whose length is an int32; 64 kB are left for everything but the image.
_MAX_BYTES = 2**31 - 2**16


def read_file(path: bytes, hold: Callable[[int], object]) -> bytes:
    """Return the bytes of a file; ``hold`` is called with their number before they are read.

    NotAnImageError: it cannot be read, is no regular file, or is too large. OSError: the machine is at fault.
    """
    try:
        # O_NONBLOCK: opening a named pipe would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = _checked_size(os.fstat(descriptor))
            hold(size)
            data = os.read(descriptor, size)
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
            return data
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _NOT_THE_FILE:
            raise
        raise NotAnImageError(f"cannot be read: {error.strerror or error}") from error


def _checked_size(status: os.stat_result) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise NotAnImageError("is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise NotAnImageError("is not a regular file")
    if status.st_size > _MAX_BYTES:
        raise NotAnImageError(f"has {status.st_size:,} bytes, more than a record can hold ({_MAX_BYTES:,})")
    return status.st_size
