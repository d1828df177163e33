"""Fixtures of the tests of sources."""

from tests.conversion.conftest import place, root  # noqa: F401
from tests.sources.conftest import photos  # noqa: F401
