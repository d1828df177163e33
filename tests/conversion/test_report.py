"""The progress of a conversion, and its report."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader import open_store
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
        f"{place}.report.jsonl cannot be written: Is a directory; the store contains the same report: "
        "read it with dbloader info --report",
    )
    assert verified(place) == report.digest
    assert len(events(place)) == 1
    assert siblings(place) == {"out.lmdb", "out.lmdb.report.jsonl"}


def test_conversion_does_not_write_its_report_through_a_link(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text"})
    victim = root / "victim"
    victim.write_text("precious")
    Path(f"{place}.report.jsonl.partial").symlink_to(victim)
    assert Path(convert(root, place).report_file).read_text().count("\n") == 1
    assert victim.read_text() == "precious"


@pytest.fixture
def make() -> Callable[..., object]:
    """Make a store at a place, from what is in a folder."""
    return lambda folder, place, **options: convert(folder / "images", place, **options)


def test_old_report_is_removed_only_if_its_store_is_replaced(
    root: Path, place: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., object]
) -> None:
    folder, at_server = root.parent, parse(mongo_uri)
    monkeypatch.chdir(folder)
    plant(root, {"cat/0.jpg": photo()})
    convert(root, folder / "original.lmdb")
    for at, name in ((place, place.name), (mongo_uri, f"{at_server.database}.{at_server.collection}")):
        report = folder / f"{name}.report.jsonl"
        report.write_text("{}\n")
        make(folder, at, overwrite=True)
        assert report.read_text() == "{}\n"
        make(folder, at, overwrite=True)
        assert not report.exists()


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


def test_report_prints_as_text_for_people(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "dog/1.jpg": photo(), "dog/2.jpg": b"text", "dog/\x1b[2J.txt": b""})
    report = convert(root, place)
    lines = str(report).splitlines()
    assert lines[0] == f"place        {place}"
    for line in ("records      2", "files        3", "rejected     1", "skipped      .txt 1"):
        assert line in lines
    assert not any(line.startswith(("repaired", "resumed at")) for line in lines)  # 0
    with open_store(place) as store:
        assert str(store.manifest).splitlines()[0] == "Records     2"
    bad = [f"\x1b[2J{at}" for at in range(12)]
    shown = str(dataclasses.replace(report, warnings=tuple(bad))).partition("warnings")[2]
    assert shown.count("x1b") == 10
    assert "\n    and 2 more\n" in shown
    assert "\x1b" not in shown
