"""Fixtures of the store tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.records import make_records, write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of 20 records in an LMDB file."""
    path = tmp_path / "store.lmdb"
    write(path, make_records(20))
    return path


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that any user can open. pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)
