"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import convert
from tests.support.images import plant_photos
from tests.support.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of 12 JPEGs in two classes."""
    return plant_photos(tmp_path / "images", 12)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The place of a new store."""
    return tmp_path / "out.lmdb"


@pytest.fixture
def store(root: Path, place: Path) -> Path:
    """A store of the 12 JPEGs."""
    convert(root, place)
    return place
