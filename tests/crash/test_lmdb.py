"""Conversions to LMDB in real processes that SIGKILL ends at random or given moments."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader.records.manifest import Summary
from dbloader.stores.lmdb import growing_file
from dbloader.stores.lmdb.growing_file import PartialFile
from tests.support.crash import (
    Old,
    Whole,
    check_nothing_is_lost,
    check_resumed,
    check_whole,
    converting,
    kill,
    make_old,
    resume,
    trials,
    wait_until,
)
from tests.support.images import WAIT_S

pytestmark = pytest.mark.slow


def killed(whole: Whole, place: Path, option: str | None, seconds: float) -> bool:
    """Convert, and kill the process ``seconds`` after its first write. Return whether it was still running."""
    partial = Path(f"{place}.partial")
    before = partial.stat().st_mtime_ns if partial.exists() else 0
    with converting(whole, place, *([option] if option else []), log=place.with_name("log")) as process:
        wait_until(process, lambda: partial.exists() and partial.stat().st_mtime_ns > before)
        process.join(seconds)
        return kill(process)


def is_finished(place: Path, old: Old | None) -> bool:
    """Return whether a killed conversion had already published its store."""
    return place.exists() and not (old and place.read_bytes() == old.data)


@pytest.mark.parametrize("number", trials(8, 2, 3))
def test_conversion_killed_at_any_moment_is_resumed(whole: Whole, tmp_path: Path, number: int) -> None:
    generator = random.Random(number)
    place = tmp_path / "out.lmdb"
    old = make_old(tmp_path) if number % 3 == 2 else None
    option = "--overwrite" if old else None
    limit = max(whole.seconds, 0.05) * 1.5
    while not killed(whole, place, option, generator.uniform(0, limit)):
        # The conversion finished before the kill, so start again with a shorter time.
        check_resumed(whole, place)
        place.unlink()
        old, limit = (make_old(tmp_path) if old else None), limit / 2
    if number % 4 == 3:  # several kills in one conversion
        for _ in range(2):
            if not is_finished(place, old):
                check_nothing_is_lost(place, old)
                killed(whole, place, "--resume", generator.uniform(0, limit / 2))
    if is_finished(place, old):
        check_whole(whole, place)  # the report is in the store, but may not be beside the store yet
    else:
        check_nothing_is_lost(place, old)
        resume(whole, place)
        check_resumed(whole, place)


# Each moment is given by the next function called, and by how often it was called before.
BEFORE_THE_FIRST_RECORD = ("at the first commit", "at the first commit of records")
MOMENTS: dict[str, tuple[Any, str, int]] = {
    "at the first commit": (PartialFile, "write", 0),
    "at the first commit of records": (PartialFile, "write", 1),
    "between two commits": (PartialFile, "write", 9),
    "before the store is finished": (Summary, "facts", 0),
    "after the manifest": (PartialFile, "sync", 0),
    "before the store is put in place": (Path, "replace", 0),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("replacing", [False, True], ids=["fresh", "overwrite"])
def test_conversion_killed_at_a_step_is_resumed(whole: Whole, tmp_path: Path, moment: str, replacing: bool) -> None:
    place = tmp_path / "out.lmdb"
    old = make_old(tmp_path) if replacing else None
    assert killed_at(whole, place, MOMENTS[moment], *(["--overwrite"] if old else []))
    check_nothing_is_lost(place, old)
    resumed_at = resume(whole, place)
    assert (resumed_at > 0) == (moment not in BEFORE_THE_FIRST_RECORD)
    check_resumed(whole, place)


def killed_at(whole: Whole, place: Path, moment: tuple[Any, str, int], *options: str) -> bool:
    """Convert in a process that is killed when it calls one function. Return whether the process was killed."""
    with converting(whole, place, *options, log=place.with_name("log"), prepare=lambda: die_at(*moment)) as process:
        process.join(WAIT_S)
        return process.exitcode == -signal.SIGKILL


def die_at(owner: Any, name: str, number: int) -> None:
    function: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count()

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    setattr(owner, name, call)


@pytest.mark.parametrize("moment", [(growing_file, "sync_folder", 1), (Path, "replace", 1)])
def test_conversion_killed_after_rename_is_complete(whole: Whole, tmp_path: Path, moment: tuple[Any, str, int]) -> None:
    old = make_old(tmp_path)
    report = Path(f"{old.place}.report.jsonl")
    report.write_text("the report of the old store\n")
    assert killed_at(whole, old.place, moment, "--overwrite")
    check_whole(whole, old.place)
    assert not Path(f"{old.place}.partial").exists()
    assert not report.exists()  # never the old report beside the new store
