"""``dbloader export``."""

from __future__ import annotations

import json
from pathlib import Path

from dbloader import Record, convert, write_store
from tests.support.images import photo
from tests.support.shell import Shell, check_error


def test_export_writes_a_store_and_prints_one_line(shell: Shell, store: Path, tmp_path: Path) -> None:
    done = shell("export", store, tmp_path / "folder")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'folder'}: 12 records, 12.")
    assert convert(tmp_path / "folder", tmp_path / "again.lmdb").records == 12


def test_warnings_go_to_stderr_or_json_and_errors_are_one_line(shell: Shell, tmp_path: Path) -> None:
    write_store([Record("\x1b[2J.jpg", 0, photo())], tmp_path / "store.lmdb")
    done = shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J")
    assert done.stderr.startswith("Warning: 1 record without the size and format of their image: ")
    assert "\x1b" not in done.stdout
    assert shell("export", tmp_path / "store.lmdb", tmp_path / "quiet", "--quiet").stdout == ""
    facts = json.loads(shell("export", tmp_path / "store.lmdb", tmp_path / "b", "--json").stdout)
    assert (facts["destination"], len(facts["warnings"])) == (str(tmp_path / "b"), 1)
    check_error(shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J"), r"\\x1b\[2J exists already: move it")
