"""A conversion that is killed loses nothing: real processes, killed with SIGKILL wherever they happen to be.

DBLOADER_KILLS says how many times (12 if it is not set); scripts that promise more set it to more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import NotAStoreError, StoreNotFoundError
from dbloader.stores.open import open_store
from tests.support.images import plant_kinds, plant_photos, run, running, wait_until

KILLS = int(os.environ.get("DBLOADER_KILLS", "12"))
FILES = 700

# The command line, with a commit about every 20 files.
CODE = "import dbloader.stores.writer as writer; writer.COMMIT_BYTES = 60_000; from dbloader.cli import main; main()"

# The same, killed at a call of one function of the package, to meet moments that are short.
AT_CALL = """
import os, pathlib, signal, sys
import dbloader.stores.writer as writer, dbloader.stores.lmdb.partial as partial
from dbloader.cli import main
writer.COMMIT_BYTES = 60_000
owner, name, number = eval(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1))
function = getattr(owner, name)
def call(*arguments, **options):
    global number
    number -= 1
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)
setattr(owner, name, call)
main()
"""


class Whole(NamedTuple):
    """An image folder, and what an uninterrupted conversion makes of it."""

    root: Path
    digest: str
    documents: list[bytes]
    report: str
    seconds: float


class Old(NamedTuple):
    """A finished store that a new one is to replace."""

    place: Path
    digest: str
    data: bytes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("crash")
    root = plant_photos(folder / "images", FILES, width=64, height=48)
    plant_kinds(root, "half", "text", "no end marker", "dangling link", "png", "webp")
    report = convert(root, folder / "whole.lmdb")
    with open_store(report.place) as store:
        documents = store.documents(range(len(store)))
    return Whole(root, report.digest, documents, Path(report.report_file).read_text(), report.seconds)


def make_old(folder: Path) -> Old:
    place = folder / "out.lmdb"
    report = convert(plant_photos(folder / "old images", 5), place)
    return Old(place, report.digest, place.read_bytes())


def killed(whole: Whole, place: Path, option: str | None, seconds: float) -> bool:
    """Convert, kill the process some time after it has begun to write, and return whether that was in time."""
    arguments = [sys.executable, "-c", CODE, "convert", whole.root, place, "--quiet", *([option] if option else [])]
    partial = Path(f"{place}.partial")
    before = partial.stat().st_mtime_ns if partial.exists() else 0
    with running(arguments, stderr=subprocess.DEVNULL) as process:
        wait_until(process, lambda: partial.exists() and partial.stat().st_mtime_ns > before)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        return process.wait() == -signal.SIGKILL


def check_nothing_is_lost(place: Path, old: Old | None) -> None:
    """Look at the destination after a kill: absent, or the old store, byte for byte."""
    if old:
        assert place.read_bytes() == old.data
        with open_store(place) as store:
            assert store.verify() == old.digest
    else:
        assert not place.exists()
        with pytest.raises((NotAStoreError, StoreNotFoundError), match=r"unfinished conversion|does not exist"):
            len(open_store(place))


def is_finished(place: Path, old: Old | None) -> bool:
    """Whether a conversion that was killed had put its store in place already."""
    return place.exists() and not (old and place.read_bytes() == old.data)


def check_whole(whole: Whole, place: Path) -> None:
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest == whole.digest
        assert store.documents(range(len(store))) == whole.documents
        assert [json.dumps(event, ensure_ascii=False) for event in store.events()] == whole.report.splitlines()
    assert not Path(f"{place}.partial").exists()


def check_resumed(whole: Whole, place: Path) -> None:
    check_whole(whole, place)
    assert Path(f"{place}.report.jsonl").read_text() == whole.report
    assert not Path(f"{place}.report.jsonl.partial").exists()


def resume(whole: Whole, place: Path) -> int:
    """Finish a conversion in a process of its own, and return the number of files that it did not have to do again."""
    done = run("convert", whole.root, place, "--resume", "--json")
    if "there is nothing to resume" in done.stderr:
        # It was to replace a store and was killed before its first commit, so nothing tells that it was to.
        done = run("convert", whole.root, place, "--overwrite", "--json")
    assert (done.status, done.stderr) == (1, "")  # some files are rejected
    return int(json.loads(done.stdout)["resumed_at"])


@pytest.mark.parametrize("number", range(KILLS))
def test_a_conversion_killed_at_any_moment_can_be_resumed(whole: Whole, tmp_path: Path, number: int) -> None:
    generator = random.Random(number)
    place = tmp_path / "out.lmdb"
    old = make_old(tmp_path) if number % 3 == 2 else None
    option = "--overwrite" if old else None
    limit = max(whole.seconds, 0.05) * 1.5
    while not killed(whole, place, option, generator.uniform(0, limit)):
        # It was faster: the store is there, and all begins again.
        check_resumed(whole, place)
        place.unlink()
        old, limit = (make_old(tmp_path) if old else None), limit / 2
    if number % 4 == 3:  # several kills in one conversion
        for _ in range(2):
            if not is_finished(place, old):
                check_nothing_is_lost(place, old)
                killed(whole, place, "--resume", generator.uniform(0, limit / 2))
    if is_finished(place, old):
        check_whole(whole, place)  # with its report inside, but maybe not yet beside it
    else:
        check_nothing_is_lost(place, old)
        resume(whole, place)
        check_resumed(whole, place)


# Moments: the function that is called next, and how often it was called before.
BEFORE_THE_FIRST_RECORD = ("before anything is committed", "at the first commit of records")
MOMENTS = {
    "before anything is committed": ("partial.PartialFile", "write", 0),
    "at the first commit of records": ("partial.PartialFile", "write", 1),
    "between two commits": ("partial.PartialFile", "write", 9),
    "before the store is finished": ("writer.Summary", "facts", 0),
    "after the manifest": ("partial.PartialFile", "sync", 0),
    "before the store is put in place": ("pathlib.Path", "replace", 0),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("replacing", [False, True], ids=["fresh", "overwrite"])
def test_a_conversion_killed_at_a_given_moment_can_be_resumed(
    whole: Whole, tmp_path: Path, moment: str, replacing: bool
) -> None:
    place = tmp_path / "out.lmdb"
    old = make_old(tmp_path) if replacing else None
    assert kill_at(whole, place, MOMENTS[moment], *(["--overwrite"] if old else []))
    check_nothing_is_lost(place, old)
    resumed_at = resume(whole, place)
    assert (resumed_at > 0) == (moment not in BEFORE_THE_FIRST_RECORD)
    check_resumed(whole, place)


def kill_at(whole: Whole, place: Path, moment: tuple[str, str, int], *options: str) -> bool:
    owner, name, number = moment
    child = [sys.executable, "-c", AT_CALL, owner, name, str(number)]
    done = subprocess.run(
        [*child, "convert", whole.root, place, *options], capture_output=True, timeout=60, check=False
    )
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", [("partial", "sync_folder", 0), ("pathlib.Path", "replace", 1)])
def test_a_conversion_killed_after_its_store_is_in_place_has_made_it(
    whole: Whole, tmp_path: Path, moment: tuple[str, str, int]
) -> None:
    old = make_old(tmp_path)
    assert kill_at(whole, old.place, moment, "--overwrite")
    check_whole(whole, old.place)
