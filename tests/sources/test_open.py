"""Recognizing a source imports no other one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.images import plant

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from dbloader.sources.open import open_source
open_source(sys.argv[1], sys.argv[2] if sys.argv[2:] else None, name_field=None, image_field=None)
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("dbloader.sources.")))
"""
READERS = {"arrow_source", "coco", "listing", "objects", "other_lmdb", "store", "tar", "voc", "yolo", "zip"}


@pytest.mark.parametrize(
    ("files", "listing", "expected"),
    [
        ({}, None, set()),
        ({"metadata.csv": b"file_name,label\ncat/1.jpg,cat\n"}, None, {"listing"}),
        ({}, b"path,label\ncat/1.jpg,cat\n", {"listing"}),
    ],
    ids=["folder", "metadata", "listing"],
)
def test_opening_a_source_imports_only_its_module(
    tmp_path: Path, files: dict[str, bytes], listing: bytes | None, expected: set[str]
) -> None:
    root = plant(tmp_path / "images", {"cat/1.jpg": b"", "dog/2.jpg": b"", **files})
    arguments = [str(root)]
    if listing is not None:
        arguments.append(str(plant(tmp_path, {"listing.csv": listing}) / "listing.csv"))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} & READERS == expected
