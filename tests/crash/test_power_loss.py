"""Power losses at any moment of a command: simulated, because a kill loses nothing that the kernel already has."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dbloader import convert, copy_store, export_store
from dbloader.errors import DBLoaderError, StoreError, StoreNotFoundError
from dbloader.ext.parts.part import convert_part, list_parts
from dbloader.ext.parts.publish import publish
from dbloader.stores.open import open_store
from tests.contracts.records import stored
from tests.crash.disk import MODELS, Disk, build_library, record
from tests.support.images import plant_kinds, plant_photos
from tests.support.parts import plan_conversion

STATES = int(os.environ.get("DBLOADER_STATES", 129))  # of each command, in scripts/nightly
OUT = "out.lmdb"
_LOG = logging.getLogger(__name__)

# A program that makes commits of a few records. Its first argument leaves out some syncs: the syncs of LMDB, or the
# calls of os.fsync by a function of this name.
_PROGRAM = """
import os, sys
import lmdb
import dbloader.stores.writer
from dbloader.cli import main
from dbloader.stores.lmdb.growing_file import PartialFile

dbloader.stores.writer.COMMIT_BYTES = 20_000
left_out = sys.argv.pop(1)
fsync, open_lmdb = os.fsync, lmdb.open

def selected_fsync(descriptor):
    frame, callers = sys._getframe(1), []
    while frame and len(callers) < 4:
        callers.append(frame.f_code.co_name)
        frame = frame.f_back
    if left_out not in callers:
        fsync(descriptor)

os.fsync = selected_fsync
if left_out == "LMDB":
    lmdb.open = lambda *places, **options: open_lmdb(*places, **options, sync=False)
    PartialFile.sync = lambda self: self.env.close()
main()
"""


class Content(NamedTuple):
    """What a store contains."""

    documents: list[bytes]
    report: str

    @classmethod
    def of(cls, place: Path) -> Content:
        """Verify and read a store."""
        with open_store(place) as store:
            assert store.verify() == store.manifest.digest
            events = "".join(json.dumps(event) + "\n" for event in store.events())
            return cls(stored(store, range(len(store))), events)


class Command(NamedTuple):
    """A command of dbloader, its files before, and how to repeat it after a power loss."""

    arguments: list[str]
    prepare: Callable[[Path], object]
    repeat: Callable[[Path], object]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    folder = tmp_path_factory.mktemp("sources")
    new, more = (plant_photos(folder / name, count, width=64, height=48) for name, count in (("new", 40), ("more", 30)))
    plant_kinds(new, "half", "text", "no end marker")
    plant_kinds(more, "text")
    older = plant_photos(folder / "older", 12)
    plant_kinds(older, "half")
    source = folder / "source.lmdb"
    convert(new, source)

    def convert_here(images: Path, out: Path, **options: Any) -> None:
        """Make shards in a thread, because that is faster than in new processes."""
        with ThreadPoolExecutor(1) as executor:
            convert(images, out, executor=executor, **options)

    def convert_again(out: Path) -> None:
        try:
            convert(new, out, resume=True)
        except StoreError:  # nothing can be resumed: the message names overwrite
            convert(new, out, overwrite=True)

    def shards_again(out: Path) -> None:
        convert_here(new, out, shards=3, overwrite=True)

    def append_again(out: Path) -> None:
        convert_here(more, out, append=True)

    def publish_again(out: Path) -> None:
        try:
            for part in list_parts(out).missing:  # a publisher may have moved its shard
                convert_part(out, part)
        except StoreNotFoundError:
            plan_conversion(new, out, 3)
            for part in range(3):
                convert_part(out, part)
        publish(out, overwrite=True)

    def export_again(out: Path) -> None:
        shutil.rmtree(out.with_name(f"{OUT}.partial"), ignore_errors=True)
        if not out.exists():
            export_store(source, out)

    def prepare_publish(out: Path) -> None:
        convert_here(older, out, shards=2)
        plan_conversion(new, out, 3)
        for part in range(3):
            convert_part(out, part)

    def copy_again(out: Path) -> None:
        copy_store(source, out, overwrite=True)

    def nothing(out: Path) -> None:
        """Begin with an empty folder."""

    replaced: Callable[[Path], object] = lambda out: convert(older, out)  # noqa: E731
    sharded: Callable[[Path], object] = lambda out: convert_here(older, out, shards=2)  # noqa: E731
    return {
        "convert": Command(["convert", str(new), OUT], nothing, convert_again),
        "convert --overwrite": Command(["convert", str(new), OUT, "--overwrite"], replaced, convert_again),
        "convert --append": Command(["convert", str(more), OUT, "--append"], sharded, append_again),
        "convert --shards": Command(["convert", str(new), OUT, "--shards", "3"], nothing, shards_again),
        "convert --shards --overwrite": Command(
            ["convert", str(new), OUT, "--shards", "3", "--overwrite"], sharded, shards_again
        ),
        "copy --overwrite": Command(["copy", str(source), OUT, "--overwrite"], replaced, copy_again),
        "export": Command(["export", str(source), OUT], nothing, export_again),
        "publish --overwrite": Command(["publish", OUT, "--overwrite"], prepare_publish, publish_again),
    }


NAMES = [
    "convert", "convert --overwrite", "convert --append", "convert --shards", "convert --shards --overwrite",
    "copy --overwrite", "export", "publish --overwrite",
]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory if possible, because a disk would really sync."""
    memory = Path("/dev/shm")
    folder = memory / f"dbloader-power-loss-{os.getpid()}" if memory.is_dir() else tmp_path
    (folder / "disk").mkdir(parents=True)
    yield folder / "disk"
    shutil.rmtree(folder)


def examine_losses(command: Command, states: int, disk: Path, library: Path, left_out: str = "") -> Counter[str]:
    """Run a command, rebuild what power losses leave, and count what is found there."""
    out, found, generator = disk / OUT, Counter[str](), random.Random(len(command.arguments))
    command.prepare(out)
    old = content_of(out)
    program = [sys.executable, "-W", "ignore", "-c", _PROGRAM, left_out, *command.arguments]
    recording = record(disk, program, library, {"TMPDIR": str(disk.parent)})
    new = content_of(out)
    assert new not in (None, old)
    for model in MODELS:
        for moment in recording.moments(states // len(MODELS), generator):
            recording.after(moment, model, generator).write(disk)
            done = moment == len(recording.changes)
            found.update(f"{model}: {what}" for what in findings(command, out, old, new, done=done))
    return found


def findings(command: Command, out: Path, old: Any, new: Any, *, done: bool) -> Iterator[str]:
    """Yield what a power loss has left. ``done`` means that the command had ended."""
    try:
        content = content_of(out)
    except (DBLoaderError, AssertionError) as error:
        yield "LOST" if isinstance(error, DBLoaderError) else "SILENT"
        content = None
    else:
        if content not in (old, new):
            yield "SILENT: another content"
        elif done and content != new:
            yield "LOST: the command had ended"
        else:
            yield "new" if content == new else "old" if old else "absent"
    report = out.with_name(f"{OUT}.report.jsonl")
    if report.exists() and isinstance(content, (Content, type(None))):
        text = report.read_text()
        right = content is not None and text == content.report
        kind = "empty" if not text else "old" if old and text == old.report else "other"
        beside = "new" if content == new else "old"
        yield "report right" if right else f"REPORT WRONG: {kind}, beside the {beside} store"
    elif done and isinstance(new, Content) and new.report and command.arguments[0] != "copy":
        yield "REPORT MISSING: the command had ended"
    if content != new or "--append" not in command.arguments:  # a second append would add everything once more
        try:
            command.repeat(out)
        except DBLoaderError as error:
            yield f"NOT REPEATED: {error}"
        else:
            if documents(content_of(out)) != documents(new):
                yield "LOST: after the repetition"


def content_of(out: Path) -> Content | dict[str, bytes | None] | None:
    """Return the content of a store, or the exported files; None if nothing is there."""
    if not out.exists():
        return None
    exported = out.is_dir() and any((out / name).exists() for name in ("cat", "metadata.jsonl"))
    return Disk.read(out, {}).tree() if exported else Content.of(out)


def documents(content: Any) -> Any:
    return content.documents if isinstance(content, Content) else content


def faults(found: Counter[str]) -> dict[str, int]:
    return {what: count for what, count in found.items() if what.split(": ")[1].split()[0].isupper()}


@pytest.mark.parametrize(
    ("name", "states"),
    [
        pytest.param("convert --overwrite", 30, marks=pytest.mark.slow),
        *(pytest.param(name, STATES, marks=pytest.mark.nightly) for name in NAMES),
    ],
)
def test_power_loss_of_any_command_leaves_the_old_or_the_new_store(
    commands: dict[str, Command], name: str, states: int, disk: Path, library: Path
) -> None:
    found = examine_losses(commands[name], states, disk, library)
    _LOG.info("%s: %s", commands[name].arguments, dict(sorted(found.items())))
    assert not faults(found)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("convert", "LMDB"),
        ("copy --overwrite", "publish"),
        ("convert", "_write_events"),
        ("convert --overwrite", "remove_report"),
        ("convert --append", "put_manifest"),
        ("convert --append", "durable"),
        ("convert --shards", "plan_parts"),
        ("convert --shards", "move_to"),
        ("copy --overwrite", "LMDB"),
        ("export", "_partial_folder"),
        ("convert --shards --overwrite", "remove_plan"),
    ],
)
def test_simulation_finds_a_missing_sync(
    commands: dict[str, Command], name: str, left_out: str, disk: Path, library: Path
) -> None:
    found = examine_losses(commands[name], STATES, disk, library, left_out)
    _LOG.info("%s without %s: %s", name, left_out, faults(found))
    assert faults(found)


_WRITE_A_MAP = """
import mmap, sys
with open("file", "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as view:
        view[:] = b"a" * 8192
        view.flush()
        view[:] = b"b" * 8192
"""


def test_recording_keeps_what_msync_wrote(disk: Path, library: Path) -> None:
    (disk / "file").write_bytes(b"")
    recording = record(disk, [sys.executable, "-c", _WRITE_A_MAP], library, {})
    assert recording.before.tree() == {"file": b""}
    after = [recording.after(len(recording.changes), model, random.Random(0)).tree()["file"] for model in MODELS]
    assert after[0] == b"a" * 8192
    assert after[1] in {left + right for left in (b"a" * 4096, b"b" * 4096) for right in (b"a" * 4096, b"b" * 4096)}
