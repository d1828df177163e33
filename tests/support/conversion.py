"""Run, interrupt and measure conversions, and read the stores that they make."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader._parallel import return_large_blocks
from dbloader.conversion import convert_files
from dbloader.conversion.convert import convert
from dbloader.conversion.report import Progress, Report
from dbloader.records.record import Record
from dbloader.stores.open import open_store
from tests.contracts.records import stored
from tests.support.children import from_child

fork = multiprocessing.get_context("fork")

WAIT_S = 100.0  # for work that takes seconds, even on a busy machine


def records(place: str | os.PathLike[str]) -> list[Record]:
    with open_store(place) as store:
        return list(store)


def documents(place: str | os.PathLike[str]) -> list[bytes]:
    with open_store(place) as store:
        return stored(store, range(len(store)))


def events(place: str | os.PathLike[str]) -> list[dict[str, Any]]:
    with open_store(place) as store:
        return list(store.events())


def report_lines(report: Report) -> list[dict[str, Any]]:
    """Return the events in a report's file."""
    if not report.report_file:
        assert not Path(f"{report.place}.report.jsonl").exists()
        return []
    return [json.loads(line) for line in Path(report.report_file).read_text().splitlines()]


def siblings(place: Path) -> set[str]:
    """Return the names of files next to a store, except the folder of images."""
    return {path.name for path in place.parent.iterdir() if path.name != "images"}


def verified(place: str | os.PathLike[str]) -> str:
    """Verify a store, and return its digest."""
    with open_store(place) as store:
        return store.verify()


class StopError(Exception):
    """Raised by a progress callback to end a conversion."""


def stop_after(files: int) -> Callable[[Progress], None]:
    def progress(progress: Progress) -> None:
        if (progress.done or 0) >= files:
            raise StopError(f"after {files} files")

    return progress


def interrupt(root: Path, place: Path, files: int, **options: Any) -> None:
    with pytest.raises(StopError, match="after"):
        convert(root, place, progress=stop_after(files), **options)


def peak_memory(function: Callable[[], object], warm_up: Callable[[], object] = lambda: None) -> int:
    """Run a function in a forked process, and return the most memory in bytes that the function used at one time.

    Args:
        function: The function to measure.
        warm_up: Runs before ``function``, and calls the same code with little data. So the pages of this code are in
            memory already, and are not counted.
    """

    def measure() -> int:
        return_large_blocks()
        warm_up()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM, which a fork inherits
        before = _status("VmRSS")
        function()
        return _status("VmHWM") - before

    return int(from_child(measure, WAIT_S))


def _status(name: str) -> int:
    """Return a value in bytes from the status of this process: VmRSS (now) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def peak_of_conversion(root: Path, place: Path, *, task_files: int = 16, **options: Any) -> int:
    """Return the peak memory of a conversion in bytes."""

    def run() -> None:
        convert_files.TASK_FILES = task_files  # type: ignore[attr-defined]
        convert(root, place, **options)

    return peak_memory(run)
