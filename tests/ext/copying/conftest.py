"""Fixtures of the conversion tests."""

from tests.conversion.conftest import place, root  # noqa: F401
