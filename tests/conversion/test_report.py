"""The progress of a conversion, and its report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader import copy_store, write_store
from dbloader.conversion.convert import convert
from dbloader.conversion.report import Progress
from dbloader.stores.mongo.uri import parse
from tests.support.conversion import events, siblings, verified
from tests.support.images import KINDS, photo, plant, plant_kinds, plant_photos


def test_unwritable_report_is_a_warning(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text"})
    Path(f"{place}.report.jsonl").mkdir()
    report = convert(root, place)
    assert report.report_file == ""
    assert report.warnings == (
        f"{place}.report.jsonl cannot be written: Is a directory; the store contains the report too "
        "(dbloader info with --report)",
    )
    assert verified(place) == report.digest
    assert len(events(place)) == 1
    assert siblings(place) == {"out.lmdb", "out.lmdb.report.jsonl"}


def test_report_does_not_follow_a_link(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text"})
    victim = root / "victim"
    victim.write_text("precious")
    Path(f"{place}.report.jsonl.partial").symlink_to(victim)
    assert Path(convert(root, place).report_file).read_text().count("\n") == 1
    assert victim.read_text() == "precious"


COMMANDS: dict[str, Callable[..., object]] = {
    "convert": lambda folder, place, **options: convert(folder / "images", place, **options),
    "write_store": lambda _, place, **options: write_store([(photo(), 1)], place, **options),
    "copy_store": lambda folder, place, **options: copy_store(folder / "original.lmdb", place, **options),
}


def check_removal(folder: Path, command: str, place: str | Path, report: Path) -> None:
    """Check that replacing a store removes its report, and that a new store removes nothing."""
    plant(folder / "images", {"cat/0.jpg": photo()})
    convert(folder / "images", folder / "original.lmdb")
    report.write_text("{}\n")
    COMMANDS[command](folder, place, overwrite=True)
    assert report.read_text() == "{}\n"
    COMMANDS[command](folder, place, overwrite=True)
    assert not report.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_replaced_store_loses_its_report(root: Path, place: Path, command: str) -> None:
    check_removal(root.parent, command, place, Path(f"{place}.report.jsonl"))


@pytest.mark.parametrize("command", COMMANDS)
def test_store_in_mongodb_replaces_only_its_own_report(
    root: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(root.parent)
    place = parse(mongo_uri)
    check_removal(root.parent, command, mongo_uri, Path(f"{place.database}.{place.collection}.report.jsonl"))


def test_report_counts_files_that_are_not_images(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    plant(root, {"cat/notes.txt": b"", "cat/b.TXT": b"", "cat/.hidden.jpg": b"", "loose.jpg": b"", "empty/README": b""})
    report = convert(root, place)
    assert report.skipped == {".txt": 2, "": 1}
    assert report.hidden == 1
    assert report.warnings == ("1 class has no images: 'empty'",)
    assert [(line["name"], line["event"]) for line in events(place)] == [("loose.jpg", "rejected")]


def test_progress_never_falls_and_ends_at_the_number_of_files(root: Path, place: Path) -> None:
    plant_photos(root, 100)
    plant_kinds(root, *KINDS)
    steps: list[Progress] = []
    threads: set[threading.Thread] = set()

    def progress(progress: Progress) -> None:
        steps.append(progress)
        threads.add(threading.current_thread())

    report = convert(root, place, progress=progress)
    assert threads == {threading.current_thread()}
    done = [progress.done for progress in steps if progress.done is not None]
    assert done == sorted(done)
    assert done[0] == 0
    assert steps[-1] == Progress(report.files, report.files, report.bytes_read)
    assert [progress.nbytes for progress in steps] == sorted(progress.nbytes for progress in steps)
    assert {progress.found for progress in steps} == {report.files}
