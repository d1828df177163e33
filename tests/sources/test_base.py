"""Reading files of a source: their bytes, or the reason why they cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dbloader import Listing
from dbloader.errors import OptionError, SourceError
from dbloader.sources.base import Entry, Loaded, Problem
from dbloader.sources.folder import FolderSource

DATA = bytes(range(256)) * 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.jpg").write_bytes(DATA)
    return tmp_path


def read(root: Path, *names: str) -> list[bytes | Loaded | Problem]:
    return list(FolderSource(root).read([Entry(name, (name.encode(),), None, {}) for name in names], lambda _: None))


def test_unreadable_files_are_problems(root: Path) -> None:
    os.mkfifo(root / "cat" / "pipe")
    with (root / "cat" / "huge").open("wb") as file:
        file.truncate(2**31)
    assert read(root, "cat/pipe", "cat", "cat/huge", "cat/none") == [
        Problem("cat/pipe", "is not a regular file"),
        Problem("cat", "is a folder, not a file"),
        Problem("cat/huge", "has 2,147,483,648 bytes, more than a record can hold (2,147,418,112)"),
        Problem("cat/none", "cannot be read: No such file or directory"),
    ]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EMFILE, OSError, "Too many open files"),
        (errno.ENOTCONN, SourceError, r"0\.jpg cannot be read: Transport endpoint is not connected; is its disk there"),
    ],
)
def test_failure_of_the_machine_raises_instead_of_reporting_a_problem(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], message: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number), "0.jpg")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind, match=message):
        read(root, "cat/0.jpg")


@pytest.mark.parametrize("data", [DATA + b"more", DATA[:100], DATA[::-1]], ids=["longer", "shorter", "other"])
def test_file_that_changes_while_it_is_read_is_a_problem(root: Path, data: bytes) -> None:
    path = root / "cat" / "0.jpg"
    os.utime(path, (1, 1))

    def write(_: int) -> None:
        """Write the file after it was opened, and before it is read."""
        path.write_bytes(data)

    (found,) = FolderSource(root).read([Entry("cat/0.jpg", (b"cat/0.jpg",), None, {})], write)
    assert found == Problem("cat/0.jpg", "was changed by another process while it was read")
    assert read(root, "cat/0.jpg") == [data]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": 3}, TypeError, "listing must be a str or a path, got int"),
        ({"image": ""}, OptionError, "image of a Listing must be text, got ''"),
        ({"separator": 1}, OptionError, "separator of a Listing must be text, got 1"),
        ({"label": 5}, OptionError, r"label must be names, such as \('breed', 'age'\), got 5"),
        ({"label": ("a", "b"), "separator": "|"}, OptionError, "splits the labels of one column: leave it out"),
    ],
)
def test_listing_refuses_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Listing(**{"path": "a.csv", **options})
