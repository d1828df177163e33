"""Fixtures of the conversion tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import dbloader.stores.writer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


@pytest.fixture
def frequent_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit after every task."""
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_BYTES", 1)
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_SECONDS", 0.0)
