"""Warming: a store's file comes into the page cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import dbloader.stores.lmdb.page_cache
from dbloader import Record, write_store
from dbloader.errors import NotAStoreError, PlaceError, StoreNotFoundError
from dbloader.stores.lmdb.page_cache import available_memory, warm
from tests.support.images import run
from tests.support.page_cache import empty_cache, pages_in_memory


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


def test_a_container_has_no_more_memory_than_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ["max"]
    read = Path.read_text

    def read_text(path: Path) -> str:
        return limit[0] if str(path).startswith("/sys/fs/cgroup") else read(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    available = available_memory()
    assert available is not None
    assert available > 10**6
    limit[0] = "1000\n"
    assert available_memory() == 1000


def test_the_command_tells_what_it_did(place: Path) -> None:
    outcome = run("warm", place)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.fullmatch(rf"{place}: 6\.\d MB read in \d+\.\d s \([\d.]+ [MG]B/s\)\n", outcome.stdout)
    assert run("warm", place, "--quiet") == (0, "", "")
    missing = run("warm", "none.lmdb")
    assert (missing.status, missing.stdout) == (2, "")
    assert missing.stderr.startswith("Error: none.lmdb does not exist; dbloader convert makes a store")


def test_a_file_larger_than_memory_is_said_not_to_fit(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dbloader.cli.warm import warm_command

    monkeypatch.setattr(dbloader.stores.lmdb.page_cache, "available_memory", lambda: 10**6)
    warm_command.main([str(place)], standalone_mode=False)
    stdout, stderr = capsys.readouterr()
    assert re.fullmatch(
        r"Warning: the file has 6\.\d MB, but only 1\.0 MB of memory are available: "
        r"not all of it will stay in memory\n",
        stderr,
    )
    assert stdout.startswith(f"{place}: ")
    warm_command.main([str(place), "-q"], standalone_mode=False)
    assert capsys.readouterr() == ("", "")
