"""scripts/gpu-check prints a table, or one line without a GPU."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable, **variables}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this test is for machines without CUDA")
def test_machine_without_a_gpu_gets_one_line() -> None:
    done = subprocess.run(
        [SCRIPTS / "gpu-check"], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu-check: torch {torch.__version__} finds no CUDA device here\n"


@pytest.mark.slow
def test_gpu_check_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "bench"))
    gpu_check, gpu_measure = import_module("gpu_check"), import_module("gpu_measure")
    device = torch.device("cpu")
    rows = gpu_measure.copies(device, 3, 1, batch=2, side=32)
    heading, _, first, second, *lines = gpu_check.table(rows, "A machine").strip().splitlines()
    assert (heading, first, second) == ("A machine", "| what | measured | asked |", "| --- | ---: | ---: |")
    assert len(lines) == 6
    assert all(line.count("|") == 4 for line in lines)
