"""Warming: a store's file comes into memory, and nothing is pretended."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

import dbloader.stores.lmdb.page_cache
from dbloader import Record, write_store
from dbloader.errors import NotAStoreError, PlaceError, StoreNotFoundError
from dbloader.stores.lmdb.page_cache import Warmed, available_memory, warm
from tests.support.images import plant_photos, run
from tests.support.page_cache import empty_cache, pages_in_memory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of 20 MB."""
    place = tmp_path / "store.lmdb"
    write_store((Record(image=os.urandom(100_000)) for _ in range(200)), place)
    return place


def test_a_cold_file_is_in_memory_afterwards(place: Path) -> None:
    empty_cache(place)
    told: list[tuple[int, int, int | None]] = []
    warmed = warm(place, progress=lambda *numbers: told.append(numbers))
    size = place.stat().st_size
    assert pages_in_memory(place).all()
    assert (warmed.place, warmed.nbytes, warmed.resident) == (str(place), size, 1.0)
    assert told[0] == (0, size, warmed.available)
    assert [done for done, *_ in told] == sorted({done for done, *_ in told})
    assert told[-1][0] == size
    assert warmed.seconds > 0
    assert warmed.rate == size / warmed.seconds


def test_what_is_in_memory_is_looked_at_not_believed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "_read_all", lambda *_: empty_cache(place))
    resident = warm(place).resident
    assert resident is not None
    assert resident < 0.5


def test_where_the_system_does_not_tell_nothing_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT")
    monkeypatch.delattr(os, "posix_fadvise")
    warmed = warm(place)
    assert warmed.resident is None
    assert warmed.nbytes == place.stat().st_size


def test_what_is_no_store_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none.lmdb does not exist"):
        warm(tmp_path / "none.lmdb")
    (tmp_path / "file").write_bytes(bytes(10_000))
    with pytest.raises(NotAStoreError, match="is not an LMDB file"):
        warm(tmp_path / "file")
    with pytest.raises(PlaceError, match=r"warmed by its server.*a copy in a file \(dbloader copy makes one\)"):
        warm("mongodb://user:secret@server/images.train")


def test_a_container_has_no_more_memory_than_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "_container_limit", lambda: None)
    available = available_memory()
    assert available is not None
    assert available > 10**6
    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "_container_limit", lambda: 1000)
    assert available_memory() == 1000


def test_the_command_tells_what_it_did(place: Path) -> None:
    outcome = run("warm", place)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.fullmatch(
        rf"{place}: 2\d\.\d MB read in \d+\.\d s, [\d.]+ [MG]B/s; 100% of it is in memory now\n", outcome.stdout
    )
    assert run("warm", place, "--quiet") == (0, "", "")
    missing = run("warm", "none.lmdb")
    assert (missing.status, missing.stdout) == (2, "")
    assert missing.stderr.startswith("Error: none.lmdb does not exist; dbloader convert makes a store")


def test_a_file_larger_than_memory_is_said_not_to_fit(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dbloader.cli.warm import warm_command

    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "available_memory", lambda: 10**7)
    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "_resident", lambda *_: 0.5)
    warm_command.main([str(place)], standalone_mode=False)
    stdout, stderr = capsys.readouterr()
    assert re.fullmatch(
        r"Warning: the file has 2\d\.\d MB, the memory available 10\.0 MB: it will not stay there as a whole\n", stderr
    )
    assert "; 50% of it is in memory now\n" in stdout
    warm_command.main([str(place), "-q"], standalone_mode=False)
    assert capsys.readouterr() == ("", "")


def test_a_converted_store_is_warmed(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 10)
    assert run("convert", tmp_path / "images", tmp_path / "out.lmdb", "-q").status == 0
    assert isinstance(warm(tmp_path / "out.lmdb"), Warmed)
