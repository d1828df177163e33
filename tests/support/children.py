"""Run functions and scripts in forked processes, and programs in new processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from dbloader.errors import DBLoaderError

WAIT_S = 60

_fork = multiprocessing.get_context("fork")


@contextmanager
def _child(function: Callable[[], object]) -> Iterator[ForkProcess]:
    process = _fork.Process(target=function)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked process, and return its exit status, which is negative for a signal."""
    with _child(function) as process:
        process.join(WAIT_S)
        assert process.exitcode is not None, "the child hangs"
        return process.exitcode


def from_child(function: Callable[[], object], wait_s: float = WAIT_S) -> Any:
    """Run a function in a forked process, and return its result or the DBLoaderError that it raises."""
    receiver, sender = _fork.Pipe(duplex=False)

    def run() -> None:
        receiver.close()
        try:
            sender.send(function())
        except DBLoaderError as error:
            sender.send(error)

    with receiver, _child(run) as process:
        sender.close()
        assert receiver.poll(wait_s), "the child hangs"
        found = receiver.recv()
        process.join(wait_s)
        return found


def run_ranks(function: Callable[[int], object], folder: Path, count: int = 2) -> None:
    """Run a function with each rank of a process group of forked processes. A file in the folder connects them."""
    from torch import distributed

    def run(rank: int) -> None:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
        function(rank)
        distributed.destroy_process_group()

    with ExitStack() as stack:
        for process in [stack.enter_context(_child(partial(run, rank))) for rank in range(count)]:
            process.join(WAIT_S)
            assert process.exitcode == 0


def traced_peak(function: Callable[[], object]) -> int:
    """Return the peak of what a function allocates through Python and numpy, in bytes.

    The function runs in a forked process, where no thread of an earlier test allocates. Garbage collection is off,
    because the moment of a collection is a matter of luck.
    """

    def run() -> int:
        gc.disable()
        tracemalloc.start()
        function()
        return tracemalloc.get_traced_memory()[1]

    return int(from_child(run))


def run_program(*line: object, status: int = 0, **options: Any) -> tuple[str, str]:
    """Run a program in a new process, check its exit status, and return its stdout and stderr."""
    words = [*map(str, line)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def run_script(script: Path, *arguments: object, folder: Path) -> tuple[int, str]:
    """Run a Python script in a folder, and return its exit status and its output.

    The script runs in a fork of this process, which has imported torch already. With a GPU, which a fork could not use,
    it runs in a new process.
    """
    import torch

    words = [str(script), *map(str, arguments)]
    if torch.cuda.is_available():
        program = [sys.executable, *words]
        done = subprocess.run(
            program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False
        )
        return done.returncode, done.stdout
    with tempfile.TemporaryFile() as printed:

        def execute() -> None:
            os.chdir(folder)
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.argv = words
            warnings.simplefilter("default")
            torch.set_num_threads(1)
            runpy.run_path(words[0], run_name="__main__")

        status = in_child(execute)
        printed.seek(0)
        return status, printed.read().decode()


def descendants(pid: int) -> list[int]:
    """Return all processes below a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found
