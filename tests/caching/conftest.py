"""Fixtures: a store of six shards, and the folder of a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caching import make_shards


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    make_shards(tmp_path / "origin.lmdb")
    return tmp_path / "origin.lmdb"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "local" / "cache"
