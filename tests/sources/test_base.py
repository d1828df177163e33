"""Reading the files of a source: all of their bytes, or the reason why not."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from dbloader.errors import SourceError
from dbloader.sources.base import Entry, Problem
from dbloader.sources.folder import scan
from dbloader.sources.open import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dbloader.sources.base import Loaded

DATA = bytes(range(256)) * 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.jpg").write_bytes(DATA)
    return tmp_path


def read(root: Path, *names: str, hold: Callable[[int], object] = lambda _: None) -> list[bytes | Loaded | Problem]:
    return list(scan(root).read([Entry(name, (name.encode(),), None, {}) for name in names], hold))


def test_files_are_read_in_the_order_asked_after_their_size_is_told(root: Path) -> None:
    (root / "cat" / "1.jpg").write_bytes(b"one")
    held: list[int] = []
    names = ("cat/1.jpg", "cat/0.jpg", f"{root}/cat/1.jpg")
    assert read(root, *names, hold=held.append) == [b"one", DATA, b"one"]
    assert held == [3, len(DATA), 3]


def test_what_is_no_file_that_a_record_can_hold_is_a_problem_and_not_read(root: Path) -> None:
    os.mkfifo(root / "cat" / "pipe")
    with (root / "cat" / "huge").open("wb") as file:
        file.truncate(2**31)
    held: list[int] = []
    assert read(root, "cat/pipe", "cat", "cat/huge", "cat/none", hold=held.append) == [
        Problem("cat/pipe", "is not a regular file"),
        Problem("cat", "is a folder, not a file"),
        Problem("cat/huge", "has 2,147,483,648 bytes, more than a record can hold (2,147,418,112)"),
        Problem("cat/none", "cannot be read: No such file or directory"),
    ]
    assert held == []


def test_too_many_open_files_are_not_the_fault_of_the_next_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "0.jpg")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        read(root, "cat/0.jpg")


def test_a_file_system_that_is_away_is_not_the_fault_of_all_its_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), "0.jpg")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match=r"0\.jpg cannot be read: Transport endpoint is not connected; is its disk"):
        read(root, "cat/0.jpg")


def test_a_file_that_grows_or_shrinks_while_it_is_read_gives_the_bytes_that_it_had_and_has(root: Path) -> None:
    path = root / "cat" / "0.jpg"
    assert read(root, "cat/0.jpg", hold=lambda _: path.write_bytes(DATA + bytes(10))) == [DATA]
    assert read(root, "cat/0.jpg", hold=lambda _: os.truncate(path, 600)) == [DATA[:600]]


def test_a_file_that_comes_in_parts_is_read_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: part(descriptor, min(size, 100)))
    assert read(root, "cat/0.jpg") == [DATA]


@pytest.mark.parametrize("name", ["x.tar.lz4", "x.GZ", "x-{0..3}.7z", "x.rar"])
def test_a_compressed_file_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name.replace("{0..3}", "0")).write_bytes(b"\x1f\x8b")
    with pytest.raises(SourceError, match=r"is compressed, and not as one of \.tar\.gz, .*: extract its files into"):
        open_source(tmp_path / name, None, name_field=None, image_field=None)
