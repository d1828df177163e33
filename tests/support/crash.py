"""Conversions in processes that are killed, and checks against an uninterrupted conversion."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

import dbloader.stores.writer
from dbloader.cli import main
from dbloader.conversion.convert import convert
from dbloader.errors import NotAStoreError, StoreExistsError, StoreNotFoundError
from dbloader.stores.open import open_store
from tests.contracts.records import stored
from tests.support.conversion import documents
from tests.support.images import WAIT_S, plant_kinds, plant_photos

FILES = 400


def trials(default: int, *often: int, share: int = 1) -> list[ParameterSet]:
    """Return the numbers of a test's trials: those in ``often`` run in every test run, the others in scripts/nightly.

    The number of trials is $DBLOADER_KILLS, or else ``default``, divided by ``share``, which is larger for slow trials.
    """
    count = max(2, int(os.environ.get("DBLOADER_KILLS", default)) // share)
    return [pytest.param(number, marks=() if number in often else pytest.mark.nightly) for number in range(count)]


class Old(NamedTuple):
    """A finished store that a conversion will replace."""

    place: Path
    digest: str
    data: bytes


class Whole(NamedTuple):
    """An image folder, and the results of an uninterrupted conversion."""

    root: Path
    digest: str
    documents: list[bytes]
    report: str
    seconds: float


def make_whole(folder: Path) -> Whole:
    root = plant_photos(folder / "images", FILES, width=64, height=48)
    plant_kinds(root, "half", "text", "no end marker", "dangling link", "png", "webp")
    report = convert(root, folder / "whole.lmdb")
    return Whole(root, report.digest, documents(report.place), Path(report.report_file).read_text(), report.seconds)


def check_whole(whole: Whole, place: str | Path) -> None:
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest == whole.digest
        assert stored(store, range(len(store))) == whole.documents
        assert [json.dumps(event, ensure_ascii=False) for event in store.events()] == whole.report.splitlines()


def make_old(folder: Path) -> Old:
    place = folder / "out.lmdb"
    report = convert(plant_photos(folder / "old images", 5), place)
    return Old(place, report.digest, place.read_bytes())


def check_nothing_is_lost(place: Path, old: Old | None) -> None:
    """Check that after a kill the destination is missing, or equals the old store byte for byte."""
    if old:
        assert place.read_bytes() == old.data
        with open_store(place) as store:
            assert store.verify() == old.digest
    else:
        assert not place.exists()
        with pytest.raises((NotAStoreError, StoreNotFoundError), match=r"unfinished conversion|does not exist"):
            len(open_store(place))


def check_resumed(whole: Whole, place: Path) -> None:
    check_whole(whole, place)
    assert Path(f"{place}.report.jsonl").read_text() == whole.report
    for left in (f"{place}.partial", f"{place}.report.jsonl.partial"):
        assert not Path(left).exists()


def resume(whole: Whole, place: Path) -> int:
    """Finish a conversion that was killed, and return how many files it had done."""
    try:
        return convert(whole.root, place, resume=True).resumed_at
    except StoreExistsError as error:
        # The kill came before the first commit, which would have stored the permission to overwrite.
        if "there is nothing to resume" not in str(error):
            raise
        return convert(whole.root, place, overwrite=True).resumed_at


@contextmanager
def converting(
    whole: Whole, place: str | Path, *options: str, log: Path, prepare: Callable[[], None] = lambda: None
) -> Iterator[ForkProcess]:
    """Run ``dbloader convert`` in a process that ends with the block, with a commit about every 10 files."""

    def run() -> None:
        os.chdir(log.parent)
        prepare()
        dbloader.stores.writer.COMMIT_BYTES = 30_000
        sys.stdout = sys.stderr = log.open("w", buffering=1)
        sys.argv = ["dbloader", "convert", str(whole.root), str(place), "--quiet", *options]
        main()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        yield process
    finally:
        kill(process)
        process.close()


def kill(process: ForkProcess) -> bool:
    """Kill a process, and return whether it was still running."""
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def wait_until(process: ForkProcess, condition: Callable[[], bool]) -> None:
    """Wait until a condition is true or a process has ended; check every millisecond."""
    deadline = time.monotonic() + WAIT_S
    while not condition() and process.exitcode is None:
        assert time.monotonic() < deadline
        process.join(0.001)
