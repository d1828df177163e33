"""Reports of functions around the core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader import convert, copy_store, export_store, find_duplicates, verify_store, write_store
from tests.conversion.test_report import test_old_report_is_removed_only_if_its_store_is_replaced  # noqa: F401
from tests.support.images import photo, plant

COMMANDS: dict[str, Callable[..., object]] = {
    "write_store": lambda _, place, **options: write_store([(photo(), 1)], place, **options),
    "copy_store": lambda folder, place, **options: copy_store(folder / "original.lmdb", place, **options),
}


@pytest.fixture(params=COMMANDS)
def make(request: pytest.FixtureRequest) -> Callable[..., object]:
    return COMMANDS[request.param]


def test_reports_print_as_text_for_people(root: Path, place: Path, tmp_path: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "dog/1.jpg": photo(), "dog/2.jpg": b"text", "dog/\x1b[2J.txt": b""})
    convert(root, place)
    checked, found = verify_store(str(place), against=str(root)), find_duplicates(place)
    assert "compared  rejected 1, same 2" in str(checked).splitlines()
    assert "duplicates  same 1" in str(found).splitlines()
    (first,) = (line for line in str(found).splitlines() if line.startswith("first       index 1, name dog/1.jpg, "))
    assert "of 0, of_name cat/0.jpg" in first
    exported = export_store(place, tmp_path / "files")
    assert str(exported).splitlines()[:2] == [f"destination  {tmp_path / 'files'}", "records      2"]
