"""Find the programs of the servers that tests start."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class ServerMissingError(Exception):
    """The program of a server was not found, or does not run."""


def find_program(name: str, package: str) -> Path:
    """Return the program on PATH, else the one in the package.

    Raises:
        ServerMissingError: There is none.
    """
    if on_path := shutil.which(name):
        return Path(on_path)
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise ServerMissingError(f"no {name} on PATH, and the package {package} is not installed")


@contextmanager
def needing_a_server() -> Iterator[None]:
    """Skip a test whose server is missing; fail it in CI."""
    try:
        yield
    except ServerMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no server: {error} (see scripts/setup)")
