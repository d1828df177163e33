"""Run the rows of scripts/gpu-check, each in a process of its own, and write each as soon as it is measured.

A row that raises an error, crashes or hangs becomes a row with the error, and the next row runs.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import torch
from gpu_steps import BAD, CASES, NOT_SHOWN, Plan, Row, copies, profile
from gpu_training import CONTENDERS, best, data, training
from machine import describe_machine

from dbloader._machine import cpu_count
from dbloader._version import __version__
from tests.support.corruption import KINDS, examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

Rows: TypeAlias = "Callable[[Plan], Iterable[Row]]"
ROOT = Path(__file__).parents[2]
MINUTES, MINUTES_ON_A_CPU = 7.0, 0.1
FACTS = "nvidia-smi --query-gpu=driver_version --format=csv,noheader; git describe --always --dirty"
HEAD = "| row | measured | asked | verdict |\n| --- | --- | --- | --- |"
GRACE_S, GRACE_ON_A_CPU_S = 15.0, 120.0  # a row is ended when it exceeds its share of the time by this much
BATCHES, FEW = 2_500, 60  # of each kind of corruption; few on a CPU
SHOWN = ("torch", "torchvision", "timm", "numpy", "Pillow", "simplejpeg", "lmdb", "pymongo", "pytest")


def environment(plan: Plan) -> Iterator[Row]:
    gpu = "no GPU"
    if plan.cuda:
        if not torch.cuda.is_available():
            yield Row("GPU", f"torch {torch.__version__} finds no CUDA device here", "", "error")
            return
        there = torch.cuda.get_device_properties(plan.device)
        gpu = f"{there.name}, {there.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    facts = subprocess.run(["sh", "-c", FACTS], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    versions = {"driver and commit": " ".join(facts) or "unknown", "dbloader": __version__}
    for name in SHOWN:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    yield Row("machine", f"{gpu}; {describe_machine(versions)}")


def tests(plan: Plan) -> Iterator[Row]:
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-v", "-m", "cuda and not nightly", "-p", "no:cacheprovider", *files]
    # Leave out the project's own options, which need pytest 9. Warnings of other package versions are no failures.
    command += ["-o", "addopts=", "-o", f"faulthandler_timeout={max(30, plan.left_s()):.0f}", "-W", "default"]
    last = "pytest printed nothing"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pytest:
        for line in pytest.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)  # if this is killed, the report shows how far it came
            last = line.strip("= \n") or last
    passed = pytest.returncode == 0 and (" passed" in last or not plan.cuda)
    yield Row("tests marked cuda", last, "some pass, none fails", plan.verdict(passed) if passed else "fails")


def corruption(name: str, plan: Plan) -> Iterator[Row]:
    limit_s = plan.left_s() if plan.cuda else math.inf
    measured, verdict = examine(name, plan.device, BATCHES if plan.cuda else FEW, limit_s)
    yield Row(f"corruption, {name}", measured, "0; more without a rule", verdict or NOT_SHOWN)


TASKS: dict[str, tuple[float, Rows]] = {  # share of the default time in seconds, and a function that yields rows
    "tests": (60, tests),
    **{f"corruption, {name}": (7.5, partial(corruption, name)) for name in KINDS},
    **{f"copies, {name}": (12, partial(copies, name)) for name in CASES},
    "training, data": (22, data),
    **{f"training, {name}": (36, partial(training, name)) for name in CONTENDERS},
    "training, best of dbloader": (2, best),
    "profile": (25, profile),
}


def work(rows: Rows, plan: Plan, limit_s: float, sending: Connection, errors: int) -> None:
    """Measure and send some rows, in a process of their own."""
    os.setsid()  # one signal ends this process and its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(errors, 2)
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit_s)
    if not plan.cuda:
        torch.set_num_threads(1)
    for row in rows(plan):
        sending.send(row)


def run(name: str, rows: Rows, plan: Plan, limit_s: float, errors: IO[str]) -> Iterator[Row]:
    """Yield rows when they are measured, then a row with the error if their process failed or took too long."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    # Fork, so only this process spends seconds importing torch. If it used CUDA, its forked children could not use it.
    arguments = (rows, plan, limit_s, sending, errors.fileno())
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    group: int = child.pid  # type: ignore[assignment] # a process that was started has one
    sending.close()
    ends = time.monotonic() + limit_s + 1  # a second to write the traceback of a hanging row
    try:
        with contextlib.suppress(EOFError):  # no EOF comes if workers outlive a crash
            while receiving.poll(0.1) or (child.exitcode is None and time.monotonic() < ends):
                if receiving.poll():
                    yield receiving.recv()
        child.join(max(0.0, ends - time.monotonic()))
        hung = child.exitcode is None
    finally:
        child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        child.join(5)
    if hung or child.exitcode:
        errors.seek(0)
        failed = f"ended with status {child.exitcode}: {errors.read().strip().rpartition(chr(10))[2]:.300}"
        yield Row(name, f"took longer than {limit_s:.0f} s" if hung else failed, "", "error")


def run_all(names: list[str], plan: Plan, ends: float, scale: float, grace_s: float) -> list[str]:
    """Print each row when it is measured. Return the stderr of the processes whose rows failed."""
    notes = []
    for number, name in enumerate(names):
        seconds, rows = TASKS[name]
        left_s = ends - time.monotonic()
        share = seconds / sum(TASKS[later][0] for later in names[number:])  # less time if earlier rows took more
        soft_s = max(0.0, min(seconds * scale, left_s * share))
        hard_s = max(1.0, min(soft_s + grace_s, left_s + 2 * grace_s))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            for row in run(name, rows, replace(plan, deadline=time.monotonic() + soft_s), hard_s, errors):
                plan.figures.update(row.figures)
                print("| {} |".format(" | ".join(cell.replace("|", "/") for cell in row[:4])), flush=True)
                if row.verdict in BAD:
                    errors.seek(0)
                    notes.append(f"\n## {row.what}\n\n```\n{''.join(errors.readlines()[-60:])}```")
                    print(notes[-1], file=sys.stderr, flush=True)  # at once, because the check may be ended
    return notes


def main() -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="gpu-check", description="Test and measure what needs a GPU.")
    parser.add_argument("--minutes", type=float, help=f"most minutes of the whole check; default {MINUTES:g}")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="only rows with such a word; a training needs 'data'"
    )
    parser.add_argument("--cpu", action="store_true", help="try the check itself, in small sizes and without a GPU")
    options = parser.parse_args()
    chosen = [name for name in TASKS if any(word in name for word in options.only)]
    if not chosen:
        parser.error(f"--only must have a word of {', '.join(TASKS)}, got {', '.join(options.only)}")
    minutes = options.minutes or (MINUTES_ON_A_CPU if options.cpu else MINUTES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so the process of a row ends too
    # All rows share these imports, and an optimizer needs the first. If one fails, the row that needs it shows why.
    for name in ("torch._dynamo", "torchvision", "timm"):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        device = torch.device("cpu" if options.cpu else "cuda:0")
        plan = Plan(device, Path(folder), min(cpu_count(), 2) if options.cpu else cpu_count())
        machine = list(run("environment", environment, plan, 60, errors))
        if machine[-1].verdict in BAD:
            print(f"gpu-check: {machine[-1].measured}", file=sys.stderr)
            return 2
        print(machine[0].measured, "", HEAD, sep="\n", flush=True)
        ends = math.inf if options.cpu else began + 60 * minutes
        notes = run_all(chosen, plan, ends, minutes / MINUTES, GRACE_ON_A_CPU_S if options.cpu else GRACE_S)
    print(*notes, f"\n{len(notes)} bad rows, {(time.monotonic() - began) / 60:.1f} minutes", sep="\n")
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
