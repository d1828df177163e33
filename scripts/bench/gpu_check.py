"""Run the tests that need a GPU, measure copies to it, and print a Markdown table.

scripts/gpu-check [--output FILE] [--batches 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from gpu_measure import copies

from dbloader._machine import cpu_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_measure import Row

TESTS = Path(__file__).parents[2] / "tests"


def tests() -> tuple[Row, bool]:
    """Run the tests marked cuda. They passed if none failed."""
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, file=sys.stderr)
    summaries = [line for line in done.stdout.splitlines() if line.endswith("s") and " in " in line]
    told = summaries[-1].strip("= ") if summaries else f"pytest ended with {done.returncode}"
    return ("the tests marked cuda", told, "none failed"), done.returncode == 0


def machine(device: torch.device) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")] or [platform.processor()]
    gpu = torch.cuda.get_device_properties(device)
    return (
        f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; {cpu_count()} cores ({names[0]}); "
        f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    )


def table(rows: Sequence[Row], heading: str) -> str:
    lines = [heading, "", "| what | measured | asked |", "| --- | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Test and measure what needs a GPU.")
    parser.add_argument("--output", type=Path, help="file for the table, besides stdout")
    parser.add_argument("--batches", type=int, default=64, help="number of batches in an epoch")
    parser.add_argument(
        "--rounds", type=int, default=5, help="epochs of each contender, of which the median is printed"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} finds no CUDA device here", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    tested, passed = tests()
    rows = [tested]
    rows += copies(device, options.batches, options.rounds)
    text = table(rows, machine(device))
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
