"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
from leaks import no_leaks


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fails every test that leaves a thread, a child process or an open file behind."""
    with no_leaks():
        yield
