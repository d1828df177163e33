"""What of a file is in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

PAGE = mmap.PAGESIZE


def pages_in_memory(place: Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Says of each page of a file whether it is in memory, without bringing any there (mincore(2))."""
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        found = np.zeros(-(-len(mapped) // PAGE), np.uint8)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(found.ctypes.data)
        )
        del view  # or the map could not be closed
    assert not failed
    return np.asarray(found & 1, np.bool_)


def empty_cache(place: Path) -> None:
    """Take a file out of memory."""
    with place.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if pages_in_memory(place).any():
        pytest.skip("this file system keeps files in memory")
