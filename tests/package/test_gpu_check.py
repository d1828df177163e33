"""scripts/gpu-check measures every row that it can, whatever happens to the other rows."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corruption import SMALL, Plain, judge, wrong_sums
from tests.support.leaks import has_ended

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "scripts" / "bench"
CPU = torch.device("cpu")

# Rows that fail in all ways, and then a row that does not. A worker of the row that hangs writes when it is not ended.
FAILING = """
import math, os, subprocess, sys, threading
from pathlib import Path
import gpu_check, torch
from gpu_steps import Plan, Row

def raises(plan):
    yield Row("before the error", "1")
    raise ValueError("no such thing")

def crashes(plan):
    os.abort()
    yield

def hangs(plan):
    subprocess.Popen([sys.executable, "-c", "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"],
                     stdin=subprocess.PIPE, stdout=Path(sys.argv[1]).open("w"))
    while not Path(sys.argv[1]).read_text():
        pass
    threading.Event().wait()
    yield

def works(plan):
    yield Row("works", str(plan.figures["from the row before"]), "", "passes")

def figures(plan):
    yield Row("figures", "2", figures={"from the row before": 3.0})

gpu_check.TASKS.clear()
gpu_check.TASKS.update({each.__name__: (60, each) for each in (raises, crashes, hangs, figures, works)})
gpu_check.TASKS["hangs"] = (10, hangs)
plan = Plan(torch.device("cpu"), Path(), 1)
print(*gpu_check.run_all(list(gpu_check.TASKS), plan, math.inf, 1, 5))
"""


def environment(python: str = sys.executable) -> dict[str, str]:
    return {**os.environ, "PYTHON": python, "PYTHONPATH": f"{BENCH}:{ROOT}"}


def run(*command: Any, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(python), capture_output=True, text=True, timeout=600, check=False)


def rows_of(table: str) -> dict[str, list[str]]:
    """Return the cells of each row, by its first cell."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: [cell.strip(" |") for cell in row[1:]] for row in rows[2:]}


@pytest.mark.slow
def test_check_on_a_cpu_fills_every_row_and_promises_nothing() -> None:
    done = run(ROOT / "scripts" / "gpu-check", "--cpu", "--only", "corruption", "copies", "training", "profile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {torch.__version__.partition('+')[0]}" in done.stdout.splitlines()[0]
    rows = rows_of(done.stdout)
    assert len(rows) == 18
    assert {row[-1] for row in rows.values()} <= {"not shown", "not installed", *(row[0] for row in rows.values())}
    assert rows["corruption, graph"][0].startswith("0 of 60 batches were read wrong; a CPU has no streams")
    assert all("images/s" in row[0] for name, row in rows.items() if "create_loader" in name)
    assert done.stdout.count("create_loader") == 3


@pytest.mark.slow
def test_check_on_a_cpu_collects_the_tests_that_need_a_gpu() -> None:
    done = run(ROOT / "scripts" / "gpu-check", "--cpu", "--only", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    measured, _, verdict = rows_of(done.stdout)["tests marked cuda"]
    assert re.match("[1-9][0-9]* skipped", measured)
    assert verdict == "not shown"


@pytest.mark.slow
def test_row_that_fails_crashes_or_hangs_does_not_stop_the_next_row(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", FAILING, tmp_path / "pid")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows == [
        "| before the error | 1 |  |  |",
        "| raises | ended with status 1: ValueError: no such thing |  | error |",
        rows[2],
        "| hangs | took longer than 15 s |  | error |",
        "| figures | 2 |  |  |",
        "| works | 3.0 |  | passes |",
    ]
    assert rows[2].startswith("| crashes | ended with status -6: ")
    assert re.search('File "<string>", line [0-9]+ in hangs', done.stdout)
    assert "in crashes" in done.stdout
    assert has_ended(int((tmp_path / "pid").read_text()), 20)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this test is for machines without CUDA")
def test_machine_without_a_gpu_gets_one_line() -> None:
    done = run(sys.executable, BENCH / "gpu_check.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu-check: torch {torch.__version__} finds no CUDA device here\n"


def test_missing_packages_are_named_in_one_line(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = run(ROOT / "scripts" / "gpu-check", python=str(bare))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"gpu-check: missing packages: {sys.executable} -m pip install 'click>=8.1' 'isal")
    assert done.stderr.endswith("'typing_extensions>=4.10' 'pytest>=8' 'hypothesis' 'torchvision'\n")


class Overwritten(Plain):
    """Batches of which one byte is wrong."""

    def fill(self, images: torch.Tensor) -> torch.Tensor:
        images = images.clone()
        images.view(-1)[-1] += 1
        return images


@pytest.mark.parametrize(("kind", "wrong"), [(Plain, 0), (Overwritten, 45)])
def test_batch_with_one_wrong_byte_is_found(kind: type[Plain], wrong: int) -> None:
    assert wrong_sums(kind, CPU, 45, math.inf, SMALL) == (45, wrong)


@pytest.mark.parametrize(
    ("read", "wrong", "without", "verdict"),
    [
        (9, 0, {"keep": 2, "await_copies": 1}, "passes"),
        (9, 0, {"keep": 2, "await_copies": 0}, "void"),
        (9, 1, {"keep": 2, "await_copies": 0}, "fails"),
        (0, 0, {"keep": 2, "await_copies": 1}, "fails"),
        (9, 1, {}, "fails"),
        (9, 0, {}, ""),
    ],
)
def test_run_that_finds_no_race_without_a_rule_is_void(
    read: int, wrong: int, without: dict[str, int], verdict: str
) -> None:
    assert judge(read, wrong, without)[1] == verdict
