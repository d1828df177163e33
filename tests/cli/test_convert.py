"""`dbloader convert`: its report and its options."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

import dbloader.stores.writer
from dbloader.conversion.convert import convert
from dbloader.conversion.report import Progress, Report
from dbloader.conversion.transcode import ImageFormat
from dbloader.stores.open import open_store
from tests.support.images import Outcome, photo, plant, plant_kinds
from tests.support.shell import Shell, check_error


def understood(root: Path) -> list[str]:
    """Return the lines about a folder of cats and dogs."""
    return [f"  images: {root}", "  labels: the first folder of each path: 2 classes, 'cat' is 0 and 'dog' is 1"]


def test_conversion_prints_what_it_understood_and_a_report_of_two_lines(shell: Shell, root: Path, place: Path) -> None:
    outcome = shell("convert", root, place)
    assert outcome.status == 0
    assert outcome.stderr == ""
    with open_store(place) as store:
        digest = store.manifest.digest
    assert outcome.stdout.splitlines()[:2] == understood(root)
    assert re.fullmatch(
        rf"{place}: 12 records, [\d.]+ kB of images, in \d+\.\d s \([\d,]+ images/s, [\d.,]+ MB/s\)\n"
        rf"  digest    {digest}\n",
        "".join(outcome.stdout.splitlines(keepends=True)[2:]),
    )


def test_report_names_rejected_and_repaired_files(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "half", "text", "no end marker", "another extension")
    plant(root, {"cat/.hidden.jpg": b"", "cat/README": b"", "loose.jpg": b"", "cat/big.jpg": photo(width=300)})
    outcome = shell("convert", root, place, "--max-side", "100")
    assert outcome.status == 1
    _, _, _, _, *lines = outcome.stdout.splitlines()
    assert lines == [
        "  resized   1",
        "  repaired  1: only the end marker was missing",
        "  rejected  3 of 18",
        "    rejected  loose.jpg: is outside of all class folders: put it into one, or move it away",
        "    rejected  cat/000.jpg: is damaged: more than its end marker is missing "
        "(Corrupt JPEG data: premature end of data segment)",
        "    repaired  cat/002.jpg: its end marker was missing: appended FF D9",
        "    rejected  dog/001.jpg: is in no known image format (it begins with b'<htm')",
        f"    all of them in {place}.report.jsonl",
        "  left out  2 files of other kinds (no extension 1, .txt 1)",
        "  left out  1 hidden file (names that begin with a dot)",
    ]
    assert outcome.stderr == ""


def test_kept_damaged_image_is_named_and_the_status_is_0(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "half")
    outcome = shell("convert", root, place, "--on-damaged", "keep")
    assert outcome.status == 0
    assert "  damaged   1, stored nevertheless\n    damaged   cat/000.jpg: is damaged: " in outcome.stdout


def test_report_names_rejected_files_before_untiled_files(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, *["png"] * 12, "text")
    outcome = shell("convert", root, place, "--tile", "--quality", "90")
    assert outcome.status == 1
    _, _, _, _, *lines = outcome.stdout.splitlines()
    assert lines[:5] == [
        "  reencoded 13: pixels differ from the files",
        "  untiled   12: must be decoded whole",
        "  rejected  1 of 26",
        "    rejected  cat/012.jpg: is in no known image format (it begins with b'<htm')",
        "    untiled   cat/000.png: is a PNG, not a JPEG",
    ]
    assert lines[13:] == [f"    and 3 more, all in {place}.report.jsonl"]


def test_report_names_at_most_ten_files_and_ten_kinds_of_files(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, *["text"] * 13)
    plant(root, {f"cat/x.{number:02}": b"" for number in range(13)} | {"dog/y.12": b""})
    outcome = shell("convert", root, place)
    assert outcome.stdout.count("    rejected  ") == 10
    assert f"    and 3 more, all in {place}.report.jsonl\n" in outcome.stdout
    assert "  left out  14 files of other kinds (.12 2, .00 1, .01 1, " in outcome.stdout
    assert outcome.stdout.endswith(", .08 1, 3 more)\n")
    assert len(Path(f"{place}.report.jsonl").read_text().splitlines()) == 13


def test_quiet_prints_only_errors(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"empty/notes.txt": b""})
    assert shell("convert", root, place, "--quiet") == Outcome(0, "", "")
    check_error(shell("convert", root, place, "-q"), "exists already")
    plant_kinds(root, "text")
    assert shell("convert", root, place, "-q", "--overwrite") == Outcome(1, "", "")


def test_json_contains_the_whole_report(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "half", "text", "no end marker")
    plant(root, {"loose.jpg": b""})
    outcome = shell("convert", root, place, "--json")
    assert outcome.status == 1
    assert outcome.stderr == ""
    printed = json.loads(outcome.stdout)
    again = convert(root, place, overwrite=True)
    wanted = dataclasses.asdict(again)
    assert printed.keys() == wanted.keys() == {field.name for field in dataclasses.fields(Report)}
    assert printed.pop("seconds") > 0
    del wanted["seconds"]
    assert printed == json.loads(json.dumps(wanted))


def test_every_option_of_the_core_reaches_the_conversion(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(source: str, destination: str, progress: object, **given: Any) -> Report:
        assert callable(progress)
        seen.update(given, source=source, destination=destination)
        return Report(place=destination, digest="", records=1, files=1, seconds=1)

    monkeypatch.setattr("dbloader.cli.convert.convert", fake)
    places = {"source": "images", "destination": "out.lmdb"}
    options = {
        "workers": 3, "check": "structure", "on_bad": "fail", "on_damaged": "keep", "shuffle_seed": -7, "shards": 8,
        "executor": "ray",
    }  # fmt: skip
    line = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert shell("convert", *places.values(), *line, "--append", "--new-only", "--overwrite", "--resume").status == 0
    others = {**dict.fromkeys(("append", "new_only", "overwrite", "resume"), True), "images": ImageFormat()}
    assert {**seen, **options, **places, **others} == seen
    assert shell("convert", *places.values()).status == 0
    defaults = {**dict.fromkeys(options), "check": "decode", "on_bad": "reject", "on_damaged": "reject"}
    others = {**dict.fromkeys(("append", "new_only", "overwrite", "resume"), False), "images": ImageFormat()}
    assert {**seen, **defaults, **places, **others} == seen
    for line, images in (
        (["--max-side", "20"], ImageFormat(max_side=20)),
        (["--short-side", "20", "--quality", "60"], ImageFormat(short_side=20, quality=60)),
        (["--tile", "--tile-width", "64", "--quality", "90"], ImageFormat(tile=True, tile_width=64, quality=90)),
        (["--raw"], ImageFormat(raw=True)),
    ):
        assert shell("convert", *places.values(), *line).status == 0
        assert seen["images"] == images


def test_report_of_a_resumed_conversion_includes_earlier_files(
    shell: Shell, root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_BYTES", 1)
    with pytest.raises(RuntimeError, match="stop"):
        convert(root, place, progress=_stop)
    outcome = shell("convert", root, place, "--resume")
    assert "  resumed   after 12 files of an earlier run\n" in outcome.stdout


def _stop(progress: Progress) -> None:
    if progress.done == progress.found:
        raise RuntimeError("stop")
