"""``scripts/test`` runs each test file in one of its two sessions, and the core's without ``dbloader/ext``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_test_file_is_in_one_session() -> None:
    (names,) = re.findall(r"^around=\((.*)\)$", (ROOT / "scripts" / "test").read_text(), re.MULTILINE)
    around = names.split()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    second = {file for file in files if file.startswith(tuple(f"{folder}/" for folder in around))}
    # The first session runs in a copy without these folders, so without an import of what is in dbloader/ext.
    first = {
        file
        for file in files - second
        if not re.search(r"(?:from|import) (?:dbloader|tests)\.ext\b", (ROOT / file).read_text())
    }
    assert first | second == files
    assert {folder for folder in around if not (ROOT / folder).is_dir()} == set()
