"""`dbloader convert` with listings and shards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.images import photo, plant, plant_coco
from tests.support.shell import Shell


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
    assert found["warnings"] == ["1 of 4 rows have no label"]
    assert shell(*arguments, "--quiet").stdout == ""


def test_dry_run_names_at_most_ten_problems_and_classes(shell: Shell, tmp_path: Path) -> None:
    rows = "".join(f"{number},class {number:02}\n" for number in range(12)) + "y\n" * 12
    (tmp_path / "many.csv").write_text("path,label\n" + rows)
    outcome = shell("convert", tmp_path, tmp_path / "o.lmdb", "--listing", tmp_path / "many.csv", "--dry-run")
    assert outcome.stdout.count("class 0") == 10
    assert "  and 2 more classes (--json gives all)\n" in outcome.stdout
    assert outcome.stdout.count("the header has 2 fields") == 10
    assert "  rejected  12 (no file was read, so convert may reject more)\n" in outcome.stdout
