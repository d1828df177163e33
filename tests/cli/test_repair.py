"""`dbloader repair`: what it prints, and its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from dbloader import convert, open_store
from tests.support.images import Outcome, command, photo, plant, running, wait_until
from tests.support.shell import check_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_a_store_that_is_whole_has_status_0(shell: Shell, store: Path, tmp_path: Path) -> None:
    with open_store(store) as opened:
        digest = opened.manifest.digest
    new = tmp_path / "new.lmdb"
    assert shell("repair", store, new) == Outcome(0, f"{new}: 12 records; digest {digest}\n", "")
    check_error(shell("repair", store, new), "exists already", 2)
    check_error(shell("repair", tmp_path / "none.lmdb", tmp_path / "x.lmdb"), "does not exist", 2)
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_what_is_repaired_and_rejected_is_counted_with_status_1(shell: Shell, root: Path, tmp_path: Path) -> None:
    plant(root, {"cat/a.jpg": photo(1)[:-2], "cat/b.jpg": b"bad"})
    convert(root, tmp_path / "store.lmdb", check="none")
    new = tmp_path / "new.lmdb"
    outcome = shell("repair", tmp_path / "store.lmdb", new)
    assert (outcome.status, outcome.stderr) == (1, "")
    first, *rest = outcome.stdout.splitlines()
    assert first.startswith(f"{new}: 13 records; digest ")
    assert rest == [
        "  repaired  1: only the end marker was missing",
        f"  rejected  1: see {new}.quarantine/listing.jsonl",
    ]
    report = json.loads(shell("repair", tmp_path / "store.lmdb", tmp_path / "other.lmdb", "--json").stdout)
    assert (report["records"], report["repaired"], report["rejected"]) == (13, 1, 1)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_ends_the_other_process(tmp_path: Path) -> None:
    large = photo(1, 1200, 900)  # the same one many times: drawing takes longer than examining
    root = plant(tmp_path / "images", {f"cat/{number}.jpg": large for number in range(1500)})
    convert(root, tmp_path / "store.lmdb", check="none")
    arguments = command("repair", tmp_path / "store.lmdb", tmp_path / "new.lmdb")
    with running(arguments, stderr=subprocess.PIPE) as process:
        assert wait_until(process, (tmp_path / "new.lmdb.quarantine.partial").exists)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert {path.name for path in tmp_path.iterdir()} == {"images", "store.lmdb"}
