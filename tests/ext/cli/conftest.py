"""Fixtures of the tests of the command line."""

from tests.cli.conftest import place, root, shell, store  # noqa: F401
from tests.ext.caching.conftest import cache, origin  # noqa: F401
