"""``dbloader export``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dbloader import Record, convert, write_store
from tests.support.images import photo
from tests.support.shell import check_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_a_store_is_written_and_summed_up_in_a_line(shell: Shell, store: Path, tmp_path: Path) -> None:
    done = shell("export", store, tmp_path / "folder")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'folder'}: 12 records, 12.")
    assert convert(tmp_path / "folder", tmp_path / "again.lmdb").records == 12


def test_quiet_prints_nothing_and_json_the_facts(shell: Shell, tmp_path: Path) -> None:
    write_store([Record("\x1b[2J.jpg", 0, photo(), 40, 30)], tmp_path / "store.lmdb")
    assert shell("export", tmp_path / "store.lmdb", tmp_path / "a", "--quiet").stdout == ""
    done = shell("export", tmp_path / "store.lmdb", tmp_path / "b", "--json")
    facts = json.loads(done.stdout)
    assert facts["destination"] == str(tmp_path / "b")
    assert facts["warnings"] == [
        "records without the size and format of their image: 1 (convert adds these, which changes the digest)"
    ]


def test_warnings_go_to_stderr_and_errors_are_one_line(shell: Shell, tmp_path: Path) -> None:
    write_store([Record("\x1b[2J.jpg", 0, photo())], tmp_path / "store.lmdb")
    done = shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J")
    assert done.stderr.startswith("Warning: records without the size and format of their image: 1")
    assert "\x1b" not in done.stdout
    check_error(shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J"), r"\\x1b\[2J exists already: move it")
