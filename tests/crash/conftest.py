"""Fixtures of the tests of kills and faults."""

from __future__ import annotations

import pytest

from tests.support.crash import Whole, make_whole


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An image folder, and the result of an uninterrupted conversion of it."""
    return make_whole(tmp_path_factory.mktemp("whole"))
