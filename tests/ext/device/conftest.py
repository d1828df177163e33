"""Fixtures of the tests of devices."""

from tests.device.conftest import gpu  # noqa: F401
