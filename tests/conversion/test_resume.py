"""Interrupted conversions leave nothing at the destination, and resuming makes the same store."""

from __future__ import annotations

import errno
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbloader.conversion.convert import convert
from dbloader.conversion.report import Progress
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, SourceError, StoreExistsError
from dbloader.stores.open import open_store
from tests.support.children import run_program
from tests.support.conversion import documents, events, interrupt, records, report_lines, siblings, verified
from tests.support.deep import GRAY
from tests.support.images import KINDS, photo, plant, plant_kinds, plant_photos


@pytest.mark.usefixtures("frequent_commits")
@pytest.mark.parametrize("options", [{"shuffle_seed": 3}, {"images": ImageFormat(max_side=20)}, {"overwrite": True}])
def test_resumed_conversion_gives_the_same_store(root: Path, place: Path, options: dict[str, Any]) -> None:
    plant_photos(root, 80)
    plant_kinds(root, *KINDS)
    plant(root, {f"cat/{number:04} deep.png": GRAY["PNG"][0] for number in range(4)})
    whole = convert(root, place.with_name("whole.lmdb"), **options)
    old = convert(root, place, images=ImageFormat(max_side=5)).digest if options.get("overwrite") else None
    interrupt(root, place, 30, **options, workers=1)
    assert (verified(place) if place.exists() else None) == old
    resumed = {**options, "overwrite": False, "resume": True}
    interrupt(root, place, 65, **resumed)
    steps: list[Progress] = []
    report = convert(root, place, **resumed, progress=steps.append)
    assert steps[0] == Progress(report.files, report.resumed_at, 0, report.understood)
    assert report.digest == whole.digest == verified(place)
    assert documents(place) == documents(whole.place)
    assert events(place) == events(whole.place) == report_lines(report)
    assert 0 < report.resumed_at < report.files
    assert report.bytes_read < whole.bytes_read
    own = {"place": "", "seconds": 0.0, "report_file": "", "bytes_read": 0, "resumed_at": 0}
    assert replace(report, **own) == replace(whole, **own)  # type: ignore[arg-type]
    with open_store(place) as store, open_store(whole.place) as other:
        assert (store.manifest.depths, store.manifest.outcome) == (other.manifest.depths, other.manifest.outcome)
    assert siblings(place) == {f"{name}.lmdb{end}" for name in ("out", "whole") for end in ("", ".report.jsonl")}


def test_resume_without_an_unfinished_conversion_converts_with_a_warning(root: Path, place: Path) -> None:
    plant_photos(root, 3)
    report = convert(root, place, resume=True)
    assert (report.records, report.resumed_at) == (3, 0)
    assert report.warnings == ("there was nothing to resume, so this conversion began from the start",)
    assert verified(place) == report.digest


@pytest.mark.usefixtures("frequent_commits")
def test_unfinished_conversion_is_not_read_and_replaced_only_with_overwrite(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30)
    with pytest.raises(StoreExistsError, match=r"has an unfinished conversion: resume \(--resume\) continues it"):
        convert(root, place)
    with pytest.raises(ValueError, match=r"its unfinished conversion does: dbloader convert --resume continues it"):
        records(place)
    assert convert(root, place, overwrite=True).resumed_at == 0


# For each option that affects the records: its value in the first run, and a different value in the resumed run.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "check": ({}, {"check": "structure"}, "(decode, now structure)"),
    "on_damaged": ({"on_damaged": "keep"}, {}, "(keep, now not keep)"),
    "shuffle_seed": ({"shuffle_seed": 1}, {"shuffle_seed": 2}, "(1, now 2)"),
    "raw": ({}, {"images": ImageFormat(raw=True)}, "(False, now True)"),
    "max_side": ({"images": ImageFormat(max_side=9)}, {"images": ImageFormat(max_side=8)}, "(9, now 8)"),
    "short_side": ({"images": ImageFormat(short_side=9)}, {"images": ImageFormat(short_side=8)}, "(9, now 8)"),
    "quality": (
        {"images": ImageFormat(max_side=9)}, {"images": ImageFormat(max_side=9, quality=50)}, "(None, now 50)"
    ),
    "tile": (
        {"images": ImageFormat(max_side=9, quality=50)},
        {"images": ImageFormat(max_side=9, quality=50, tile=True)},
        "(False, now True)",
    ),
    "tile_width": (
        {"images": ImageFormat(tile=True, quality=50, tile_width=64)},
        {"images": ImageFormat(tile=True, quality=50, tile_width=32)},
        "(64, now 32)",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("frequent_commits")
@pytest.mark.parametrize("option", OPTIONS)
def test_resuming_with_other_options_is_refused(root: Path, place: Path, option: str) -> None:
    before, after, values = OPTIONS[option]
    plant_photos(root, 60)
    interrupt(root, place, 30, **before)
    kept = Path(f"{place}.partial").read_bytes()
    message = f"was begun with another {option} (--{option.replace('_', '-')}) {values}: resume with the same value"
    with pytest.raises(StoreExistsError, match=re.escape(message)):
        convert(root, place, resume=True, **after)
    assert Path(f"{place}.partial").stat().st_size == len(kept)
    assert convert(root, place, resume=True, **before).resumed_at > 0


def test_table_above_has_every_option_that_affects_records(root: Path) -> None:
    plant_photos(root, 1)
    settings = Settings(source=root)
    assert {name.partition(" ")[0] for name in settings.named(settings.open())} == OPTIONS.keys()


@pytest.mark.usefixtures("frequent_commits")
def test_resuming_with_another_source_is_refused(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30)
    first = root / "cat" / "0000.jpg"
    first.rename(first.with_name("0000 new.jpg"))  # test_file_list.py tests all other changes of the source
    pattern = r"begun with another list of files \(60 files, SHA-256 \w+, now 60 files, SHA-256 \w+\): resume with"
    with pytest.raises(StoreExistsError, match=pattern):
        convert(root, place, resume=True)
    assert not place.exists()


@pytest.mark.usefixtures("frequent_commits")
@pytest.mark.parametrize(
    ("on", "kind", "mended"), [("on_bad", "text", True), ("on_damaged", "half", True), ("on_bad", "text", False)]
)
def test_failed_conversion_resumes_with_or_without_the_failing_file(
    root: Path, place: Path, on: str, kind: str, mended: bool
) -> None:
    plant_photos(root, 60)
    KINDS[kind].plant(root / "dog" / "z.jpg", 0)
    option = on.replace("_", "-")
    with pytest.raises(ConversionError, match=rf"dog/z.jpg: .*, or choose .* \(--{option} reject\) and convert again"):
        convert(root, place, **{on: "fail"})  # type: ignore[arg-type]
    assert not place.exists()
    if mended:
        (root / "dog" / "z.jpg").write_bytes(photo())
    report = convert(root, place, resume=True, **({on: "fail"} if mended else {}))  # type: ignore[arg-type]
    assert (report.records, report.rejected) == ((61, 0) if mended else (60, 1))
    assert 0 < report.resumed_at < 61


@pytest.mark.parametrize("fixed", [True, False])
def test_problem_in_the_list_is_fixed_or_rejected_as_the_message_says(root: Path, place: Path, fixed: bool) -> None:
    plant_photos(root, 3)
    (root / "loose.jpg").write_bytes(photo())
    fix, choose = r"fix it and begin again with overwrite \(--overwrite\)", r"on_bad='reject' \(--on-bad reject\)"
    remedy = rf"; {fix}, or choose {choose} and convert again with resume \(--resume\)$"
    with pytest.raises(ConversionError, match=f"^loose.jpg: is outside of all class folders: .*{remedy}"):
        convert(root, place, on_bad="fail")
    if fixed:
        (root / "loose.jpg").rename(root / "cat" / "loose.jpg")
        report = convert(root, place, on_bad="fail", overwrite=True)
    else:
        report = convert(root, place, resume=True)
    assert (report.records, report.rejected) == ((4, 0) if fixed else (3, 1))


def unreadable_file() -> Path:
    """Return a file that opens, but fails with EIO when it is read."""
    for path in Path("/sys/devices").glob("*/power/autosuspend_delay_ms"):
        try:
            path.read_bytes()
        except OSError as error:
            if error.errno == errno.EIO:
                return path
    pytest.skip("no file on this machine fails with EIO")


@pytest.mark.usefixtures("frequent_commits")
def test_several_unreadable_files_in_a_row_end_the_conversion_resumably(root: Path, place: Path) -> None:
    plant_photos(root, 80)
    whole = convert(root, place.with_name("whole.lmdb"))
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    lost = names[43:]
    for name in lost:
        (root / name).rename(place.with_name(name.replace("/", "-")))
        (root / name).symlink_to(unreadable_file())
    pattern = r"Input/output error \(8 files in a row\): check the disk of .*; when it works, convert again"
    with pytest.raises(SourceError, match=re.escape(names[50]) + f": cannot be read: {pattern}"):
        convert(root, place)
    assert not place.exists()
    for name in lost:
        place.with_name(name.replace("/", "-")).replace(root / name)
    report = convert(root, place, resume=True)
    assert 0 < report.resumed_at <= 43
    assert (report.digest, report.rejected) == (whole.digest, 0)


def test_seven_unreadable_files_in_a_row_are_rejected(root: Path, place: Path) -> None:
    plant_photos(root, 20)
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    for name in (*names[2:9], names[12], names[19]):  # at most seven unreadable files in a row
        (root / name).unlink()
        (root / name).symlink_to(unreadable_file())
    report = convert(root, place)
    assert (report.records, report.rejected) == (11, 9)
    assert events(place) == [
        {"name": name, "event": "rejected", "reason": "cannot be read: Input/output error"}
        for name in (*names[2:9], names[12], names[19])
    ]


@pytest.mark.usefixtures("frequent_commits")
def test_ctrl_c_prints_one_line_and_leaves_a_resumable_conversion(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    code = (
        "import os, dbloader.stores.writer as w; w.COMMIT_BYTES = 1; write = w.Writer.write; done = [];"
        "w.Writer.write = lambda *a, **k: (write(*a, **k), done.append(1), len(done) == 2 and os.kill(os.getpid(), 2));"
        "from dbloader.cli import main; main()"
    )
    said = "Interrupted: committed records are kept; --resume continues after them\n"
    assert run_program(sys.executable, "-c", code, "convert", root, place, status=130)[1] == said
    assert not place.exists()
    report = convert(root, place, resume=True)
    assert 0 < report.resumed_at < 60
    assert (report.records, report.digest) == (60, verified(place))
