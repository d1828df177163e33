"""Fixtures of the tests of kills and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.crash import make_whole

if TYPE_CHECKING:
    from tests.support.crash import Whole


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An image folder, and the result of an uninterrupted conversion of it."""
    return make_whole(tmp_path_factory.mktemp("whole"))
