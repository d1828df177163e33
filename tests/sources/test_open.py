"""Opening a source imports no other source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.children import run_program
from tests.support.images import plant

PROGRAM = """
import sys
from dbloader.sources.open import open_source
open_source(*sys.argv[1:])
print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith("dbloader.sources.")))
"""
FOLDER = {"base", "folder", "open"}
LISTING = {*FOLDER, "boxes", "labels", "listing", "listing_rows"}


@pytest.mark.parametrize(
    ("files", "listing", "expected"),
    [
        ({}, None, FOLDER),
        ({"metadata.csv": b"file_name,label\ncat/1.jpg,cat\n"}, None, LISTING),
        ({}, b"path,label\ncat/1.jpg,cat\n", LISTING),
    ],
    ids=["folder", "metadata", "listing"],
)
def test_opening_a_source_imports_only_its_modules(
    tmp_path: Path, files: dict[str, bytes], listing: bytes | None, expected: set[str]
) -> None:
    arguments = [str(plant(tmp_path / "images", {"cat/1.jpg": b"", "dog/2.jpg": b"", **files}))]
    if listing is not None:
        arguments.append(str(plant(tmp_path, {"listing.csv": listing}) / "listing.csv"))
    printed, _ = run_program(sys.executable, "-c", PROGRAM, *arguments)
    assert {*printed.split()} == expected
