"""Hints about records of an LMDB file: they name the right pages and do no harm."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record
from dbloader.stores.lmdb.readahead import ReadAhead
from dbloader.stores.open import open_store
from tests.contracts.records import documents_of
from tests.support.lmdb_files import open_descriptors
from tests.support.stores import store_samples

HEAD = 16  # bytes of a page's header, before its value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three levels of pages. Every fiftieth record has overflow pages."""
    noise = random.Random(0)
    place = tmp_path_factory.mktemp("readahead") / "store.lmdb"
    store_samples((Record(image=noise.randbytes(300 if index % 50 else 20_000)) for index in range(4000)), place)
    return place


def ahead_of(place: Path) -> ReadAhead:
    status = place.stat()
    return ReadAhead(place, (status.st_dev, status.st_ino))


@pytest.fixture
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The offset and size of each hint."""
    hints: list[tuple[int, int]] = []
    really_advise = os.posix_fadvise

    def advise(file: int, start: int, size: int, advice: int) -> None:
        really_advise(file, start, size, advice)
        if advice == os.POSIX_FADV_WILLNEED:
            hints.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return hints


def not_in_memory(*_: Any) -> int:
    raise BlockingIOError


def test_prefetch_hints_the_bytes_of_the_given_records(
    place: Path, hinted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", not_in_memory)
    ahead, data, wanted = ahead_of(place), place.read_bytes(), [1000, 3000, 2000]
    ahead.prefetch(wanted)
    ahead.close()
    contents = [data[start + HEAD : start + size][17:-16] for start, size in hinted]  # without index and checksum
    with open_store(place) as store:
        assert contents == [document[17:-16] for document in documents_of(store.read(wanted))]


def test_no_hint_is_given_for_records_in_memory(place: Path, hinted: list[tuple[int, int]]) -> None:
    ahead = ahead_of(place)
    place.read_bytes()
    for _ in range(100):
        ahead.prefetch(range(0, 4000, 50))
    ahead.prefetch([7])  # this record has no overflow pages
    assert hinted == []
    ahead.close()


@pytest.mark.slow
def test_hints_about_a_damaged_file_do_no_harm(place: Path, hinted: list[tuple[int, int]]) -> None:
    generator, data, followed = random.Random(0), place.read_bytes(), 0
    pages = [data[start : start + 4096] for start in range(0, len(data), 4096)]
    for _ in range(100):
        # Damage the meta pages and the branch pages.
        damaged = bytearray(data)
        for _ in range(20):
            page = generator.choice([0, 1, *(n for n, page in enumerate(pages) if page[10:12] in (b"\1\0", b"\2\0"))])
            damaged[4096 * page + generator.randrange(300)] = generator.randrange(256)
        other = place.with_name("damaged.lmdb")
        length = generator.choice([0, 100, 5000, len(data)])
        other.write_bytes(damaged[:length])
        ahead = ahead_of(other)
        for index in range(0, 4000, 150):
            ahead.hint(index)
        ahead.prefetch([50])
        assert len(hinted) <= 28, "one record must get at most one hint"
        assert all(size < 2**32 + HEAD for _, size in hinted), "a hint must not be larger than LMDB's largest value"
        followed += bool(hinted)
        hinted.clear()
        ahead.close()
        assert open_descriptors(other) == 0
        assert other.read_bytes() == damaged[:length]
    assert 10 < followed < 90, "some damage must leave the way to a record open, and some must close it"


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
