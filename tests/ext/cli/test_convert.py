"""`dbloader convert` with listings and shards, and --dry-run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbloader.conversion.report import Report
from dbloader.conversion.transcode import ImageFormat
from tests.cli.test_convert import understood
from tests.support.images import photo, plant, plant_coco
from tests.support.shell import Shell, check_error


def test_append_of_new_files_prints_how_many_were_added(shell: Shell, root: Path, place: Path) -> None:
    shell("convert", root, place, "--shards", "1")
    plant(root, {"cat/new.jpg": photo(99)})
    outcome = shell("convert", root, place, "--append", "--new-only")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[4:] == ["  added     1", "  unchanged 12: in the store already"]


def test_dry_run_counts_boxes_by_class_and_unnamed_labels(shell: Shell, tmp_path: Path) -> None:
    root = plant_coco(tmp_path / "coco")
    listing = root / "annotations" / "instances_train2017.json"
    outcome = shell("convert", root / "train2017", tmp_path / "o.lmdb", "--listing", listing, "--dry-run")
    assert outcome.status == 0
    assert "3 files with 2 boxes would be read" in outcome.stdout
    (tmp_path / "plain.csv").write_text("path,label\na,7\nb,-1\nc,\nd,7\n")
    arguments = ("convert", root, tmp_path / "o.lmdb", "--listing", tmp_path / "plain.csv", "--dry-run")
    found = json.loads(shell(*arguments, "--json").stdout)
    assert (found["files"], found["labels"]) == (4, {"-1": 1, "7": 2})
    assert found["warnings"] == [
        "1 of 4 rows have no label; write one for each, or leave them out of the training: where='-label:none'"
    ]
    assert shell(*arguments, "--quiet").stdout == ""


def test_dry_run_names_at_most_ten_problems_and_classes(shell: Shell, tmp_path: Path) -> None:
    rows = "".join(f"{number},class {number:02}\n" for number in range(12)) + "y\n" * 12
    (tmp_path / "many.csv").write_text("path,label\n" + rows)
    outcome = shell("convert", tmp_path, tmp_path / "o.lmdb", "--listing", tmp_path / "many.csv", "--dry-run")
    assert outcome.stdout.count("class 0") == 10
    assert "  and 2 more classes (--json gives all)\n" in outcome.stdout
    assert outcome.stdout.count("the header has 2 fields") == 10
    assert "  rejected  12 (no file was read, so convert may reject more)\n" in outcome.stdout


def test_listing_is_given_once_and_words_about_boxes_add_up(shell: Shell, tmp_path: Path) -> None:
    plant(tmp_path, {"a.jpg": photo(1), "x.csv": b"path,label,x1,y1,x2,y2\na.jpg,cat,0,0,.5,1\n"})
    given = ("convert", tmp_path, tmp_path / "o.lmdb", "--listing", tmp_path / "x.csv")
    outcome = shell(*given, "--listing", tmp_path / "y.csv")
    check_error(outcome, "--listing is given 2 times: join the files, or make")
    report = json.loads(shell(*given, "--boxes", "upright", "--boxes", "fractions", "--json").stdout)
    assert (report["records"], report["warnings"]) == (1, [])
    check_error(shell(*given, "--overwrite", "--boxes", "upright", "--boxes", "stored"), "upright,stored")


def test_every_option_reaches_the_conversion(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(source: str, destination: str, progress: object, **given: Any) -> Report:
        assert callable(progress)
        seen.update(given, source=source, destination=destination)
        return Report(place=destination, digest="", records=1, files=1, seconds=1)

    monkeypatch.setattr("dbloader.cli.convert.convert", fake)
    places = {"source": "images", "destination": "out.lmdb"}
    options = {
        "listing": "all.csv", "name_field": "a", "image_field": "b", "workers": 3, "check": "structure",
        "on_bad": "fail", "on_damaged": "keep", "shuffle_seed": -7, "shards": 8, "executor": "ray", "where": "index<9",
        "class_folder": "last", "boxes": "stored", "encoding": "gbk", "classes": "a,b",
    }  # fmt: skip
    line = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    line += ["--file-field=mask", "--file-field", "depth"]
    assert shell("convert", *places.values(), *line, "--append", "--new-only", "--overwrite", "--resume").status == 0
    others = {**dict.fromkeys(("append", "new_only", "overwrite", "resume"), True), "images": ImageFormat()}
    others["file_fields"] = ("mask", "depth")
    assert seen == {**options, **places, **others}
    assert shell("convert", *places.values()).status == 0
    defaults = {**dict.fromkeys(options), "check": "decode", "on_bad": "reject", "on_damaged": "reject"}
    others = {**dict.fromkeys(("append", "new_only", "overwrite", "resume"), False), "images": ImageFormat()}
    others["file_fields"] = ()
    assert seen == {**defaults, **places, **others}


def test_dry_run_counts_classes_and_names_ignored_files(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"cat/notes.txt": b"", "cat/.x.jpg": b"", "dog/broken.jpg": b"never read"})
    (root / "dog" / "gone.jpg").symlink_to("nowhere")
    before = sorted(root.parent.rglob("*"))
    outcome = shell("convert", root, place, "--dry-run")
    assert (outcome.status, outcome.stderr) == (1, "")
    assert outcome.stdout.splitlines() == [
        f"{root}: 13 files would be read and converted; nothing is written",
        *understood(root),
        "           6  cat",
        "           7  dog",
        "  rejected  1 (no file was read, so convert may reject more)",
        "    dog/gone.jpg: the link cannot be followed: No such file or directory",
        "  left out  1 file of other kinds (.txt 1)",
        "  left out  1 hidden file (names that begin with a dot)",
    ]
    assert sorted(root.parent.rglob("*")) == before
    assert json.loads(shell("convert", root, place, "--dry-run", "--json").stdout) == {
        "source": str(root),
        "files": 13,
        "boxes": 0,
        "labels": {"cat": 6, "dog": 7},
        "rejected": 1,
        "problems": [{"name": "dog/gone.jpg", "reason": "the link cannot be followed: No such file or directory"}],
        "understood": [line.strip() for line in understood(root)],
        "warnings": [],
        "skipped": {".txt": 1},
        "hidden": 1,
    }


def test_dry_run_of_an_invalid_source_is_an_error(shell: Shell, tmp_path: Path) -> None:
    check_error(shell("convert", tmp_path, tmp_path / "o.lmdb", "--dry-run"), "it contains no class folders")
