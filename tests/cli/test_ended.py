"""A command that Ctrl-C ends at its start prints one line."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine_kills import descendants
from tests.support.images import WAIT_S, command, running, wait_until


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _has_numpy(pid: int) -> bool:
    try:
        return _is_worker(pid) and "numpy" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("began", [_is_worker, _has_numpy], ids=["at its start", "while it imports"])
@pytest.mark.parametrize("arguments", [["convert", "images", "new.lmdb", "--shards", "4"], ["verify", "out.lmdb"]])
def test_ctrl_c_at_the_start_prints_one_line(store: Path, arguments: list[str], began: Callable[[int], bool]) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command(*arguments), cwd=store.parent, start_new_session=True, **pipes) as process:
        assert wait_until(process, lambda: any(map(began, descendants(process.pid))))
        os.killpg(process.pid, signal.SIGINT)  # to the whole process group, as a terminal does
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, len(stderr.splitlines())) == (130, 1), stderr
    assert stderr.startswith("Interrupted")
