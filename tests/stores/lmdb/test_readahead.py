"""Hints about records of an LMDB file: they load the right pages and do no harm."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Record, write_store
from dbloader.stores.lmdb.readahead import ReadAhead
from dbloader.stores.open import open_store
from tests.support.images import WAIT_S

PAGE = mmap.PAGESIZE
HEAD = 16  # bytes of a page's header, before its value


def pages_in_memory(place: Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each page of a file whether it is in memory, without loading pages (mincore(2))."""
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        found = np.zeros(-(-len(mapped) // PAGE), np.uint8)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(found.ctypes.data)
        )
        del view  # otherwise the map cannot be closed
    assert not failed
    return np.asarray(found & 1, np.bool_)


def empty_cache(place: Path) -> None:
    """Remove the pages of a file from memory."""
    with place.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if pages_in_memory(place).any():
        pytest.skip("this file system keeps files in memory")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three levels of pages. Every fiftieth record has overflow pages."""
    noise = random.Random(0)
    place = tmp_path_factory.mktemp("readahead") / "store.lmdb"
    write_store((Record(image=noise.randbytes(300 if index % 50 else 20_000)) for index in range(4000)), place)
    return place


def ahead_of(place: Path) -> ReadAhead:
    status = place.stat()
    return ReadAhead(place, (status.st_dev, status.st_ino))


@pytest.fixture
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets at which hints begin."""
    hints: list[int] = []

    def advise(_: int, start: int, __: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            hints.append(start)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return hints


def test_prefetch_loads_only_the_given_records(place: Path) -> None:
    ahead, wanted = ahead_of(place), [1000, 3000, 2000]
    pages = set()
    for index in wanted:
        start, size = ahead.locate(index) or (0, 0)
        pages |= {*range(start // PAGE, (start + size - 1) // PAGE + 1)}
    assert len(pages) == 3 * 5
    for _ in range(5):  # a busy kernel may drop a hint, or read ahead
        ahead.close()
        empty_cache(place)
        ahead = ahead_of(place)
        ahead.prefetch(wanted)
        end = time.monotonic() + WAIT_S / 20
        while (missing := pages - {*pages_in_memory(place).nonzero()[0].tolist()}) and time.monotonic() < end:
            pass
        if not missing:
            break
    else:
        pytest.fail("the records were not loaded into memory")
    # The other loaded pages are the tree pages that lead to the records.
    assert pages_in_memory(place).sum() < len(pages) + 12
    ahead.close()


def test_records_in_memory_are_not_hinted(place: Path, hinted: list[int]) -> None:
    ahead = ahead_of(place)
    place.read_bytes()
    for _ in range(100):
        ahead.prefetch(range(0, 4000, 50))
    ahead.prefetch([7])  # this record has no overflow pages
    assert hinted == []
    ahead.close()


@pytest.mark.slow
def test_hints_about_a_damaged_file_do_no_harm(place: Path, hinted: list[int]) -> None:
    generator, data = random.Random(0), place.read_bytes()
    pages = [data[start : start + 4096] for start in range(0, len(data), 4096)]
    for _ in range(100):
        # Damage the meta pages and the branch pages.
        damaged = bytearray(data)
        for _ in range(20):
            page = generator.choice([0, 1, *(n for n, page in enumerate(pages) if page[10:12] in (b"\1\0", b"\2\0"))])
            damaged[4096 * page + generator.randrange(300)] = generator.randrange(256)
        other = place.with_name("damaged.lmdb")
        other.write_bytes(damaged[: generator.choice([0, 100, 5000, len(data)])])
        ahead = ahead_of(other)
        for index in range(0, 4000, 150):
            ahead.hint(index)
        ahead.prefetch([50])
        ahead.close()


@pytest.mark.parametrize("missing", [False, True])
def test_reading_works_without_hints(place: Path, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(95, "Operation not supported")

    if missing:
        monkeypatch.delattr(os, "posix_fadvise")
    else:
        monkeypatch.setattr(os, "posix_fadvise", refuse)
        monkeypatch.setattr(os, "preadv", refuse)
    with open_store(place) as store:
        assert [record.index for record in store.read([50, 7])] == [50, 7]
