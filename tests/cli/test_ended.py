"""A command that Ctrl-C or a lack of memory ends prints one line and has an exit status."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine_kills import descendants
from tests.support.images import WAIT_S, command, run, running, wait_until


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "megabytes", [160, 280, *(pytest.param(most, marks=pytest.mark.nightly) for most in range(140, 400, 20))]
)
@pytest.mark.parametrize("arguments", [["convert", "images", "new.lmdb", "-q"], ["verify", "out.lmdb", "-q"]])
def test_process_without_enough_memory_prints_one_line(store: Path, arguments: list[str], megabytes: int) -> None:
    outcome = run(
        *arguments,
        cwd=store.parent,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # with more threads, OpenBLAS ends the process itself
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes * 10**6,) * 2),
    )
    assert outcome.status in (0, 2), outcome
    assert len(outcome.stderr.splitlines()) == (outcome.status != 0), outcome.stderr
