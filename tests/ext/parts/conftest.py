"""Fixtures of the conversion tests."""

from tests.conversion.conftest import frequent_commits, place, root  # noqa: F401
