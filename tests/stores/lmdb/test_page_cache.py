"""Warming: a store's file comes into the page cache."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from dbloader import Record, write_store
from dbloader.errors import NotAStoreError, PlaceError, StoreNotFoundError
from dbloader.stores.lmdb.page_cache import cached_fraction, warm
from tests.support.page_cache import empty_cache, pages_in_memory
from tests.support.shell import Shell, check_error

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of 6 MB."""
    place = tmp_path / "store.lmdb"
    write_store((Record(image=os.urandom(100_000)) for _ in range(60)), place)
    return place


def test_a_cold_file_is_in_memory_afterwards(place: Path) -> None:
    empty_cache(place)
    steps: list[tuple[int, int, int | None]] = []
    warmed = warm(place, progress=lambda *numbers: steps.append(numbers))
    size = place.stat().st_size
    assert pages_in_memory(place).all()
    assert (warmed.place, warmed.nbytes) == (str(place), size)
    assert steps[0] == (0, size, warmed.available)
    assert [done for done, *_ in steps] == sorted({done for done, *_ in steps})
    assert steps[-1][0] == size
    assert warmed.seconds > 0
    assert warmed.rate == size / warmed.seconds


def test_where_the_system_takes_no_hints_the_file_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    assert warm(place).nbytes == place.stat().st_size


def test_what_is_no_store_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none.lmdb does not exist"):
        warm(tmp_path / "none.lmdb")
    (tmp_path / "file").write_bytes(bytes(10_000))
    with pytest.raises(NotAStoreError, match="is not an LMDB file"):
        warm(tmp_path / "file")
    with pytest.raises(PlaceError, match=r"warmed by its server.*a copy in a file \(dbloader copy makes one\)"):
        warm("mongodb://user:secret@server/images.train")


def test_the_fraction_of_a_file_in_memory_is_told_without_reading_the_rest(place: Path) -> None:
    warm(place)
    assert cached_fraction(place) == 1
    empty_cache(place)
    # A sample may be in a page that an earlier one has asked for.
    assert cached_fraction(place) == pytest.approx(0, abs=0.2)
    assert cached_fraction(place) == pytest.approx(0, abs=0.3)


def test_the_fraction_of_a_file_that_is_half_in_memory(place: Path) -> None:
    empty_cache(place)
    size = place.stat().st_size
    with place.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.preadv(file.fileno(), [bytearray(size // 2)], 0)
    assert cached_fraction(place) == pytest.approx(0.5, abs=0.2)
    assert pages_in_memory(place).mean() < 0.7


def test_the_command_tells_what_it_did(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capfd)
    outcome = shell("warm", place)
    told = rf"{place}: 6\.\d MB read in \d+\.\d s \([\d.]+ [MG]B/s\)\n"
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.fullmatch(told, outcome.stdout)
    assert shell("warm", place, "--quiet") == (0, "", "")
    check_error(shell("warm", "none.lmdb"), "none.lmdb does not exist; dbloader convert makes a store")
    monkeypatch.setattr("dbloader.stores.lmdb.page_cache.available_memory", lambda: 10**6)
    outcome = shell("warm", place)
    warning = "Warning: the file has 6.2 MB, but only 1.0 MB of memory are available: not all of it will stay in memory"
    assert outcome.stderr == f"{warning}\n"
    assert re.fullmatch(told, outcome.stdout)
    assert shell("warm", place, "-q") == (0, "", "")
