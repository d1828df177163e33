"""Conversions in processes that are killed, and what an uninterrupted one makes of the same folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import dbloader.stores.writer
from dbloader.cli import main
from dbloader.conversion.convert import convert
from dbloader.stores.open import open_store
from tests.support.conversion import documents
from tests.support.images import WAIT_S, plant_kinds, plant_photos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess

FILES = 400


class Whole(NamedTuple):
    """An image folder, and what an uninterrupted conversion to LMDB makes of it."""

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
        assert store.documents(range(len(store))) == whole.documents
        assert [json.dumps(event, ensure_ascii=False) for event in store.events()] == whole.report.splitlines()


@contextmanager
def converting(
    whole: Whole, place: str | Path, *options: str, log: Path, prepare: Callable[[], None] = lambda: None
) -> Iterator[ForkProcess]:
    """Run ``dbloader convert`` in a process that does not outlive the block, with a commit about every 10 files."""

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
    """Wait until a condition holds or a process has ended, looking every millisecond."""
    deadline = time.monotonic() + WAIT_S
    while not condition() and process.exitcode is None:
        assert time.monotonic() < deadline
        process.join(0.001)
