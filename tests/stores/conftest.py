"""Fixtures of the store tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.records import make_records, write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of 20 records in an LMDB file."""
    path = tmp_path / "store.lmdb"
    write(path, make_records(20))
    return path
