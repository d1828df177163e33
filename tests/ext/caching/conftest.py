"""Fixtures: a store of six shards, and the folder of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.caching import make_shards, wait_until_ended


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    make_shards(tmp_path / "origin.lmdb")
    return tmp_path / "origin.lmdb"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """The folder of a cache, whose fetcher must end after the test."""
    folder = tmp_path / "local" / "cache"
    yield folder
    if folder.exists():
        wait_until_ended(folder)
