"""`dbloader convert --dry-run`: what would be converted, and nothing is read or written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.images import plant, plant_coco
from tests.support.shell import check_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_a_dry_run_counts_classes_and_names_what_is_left_out(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"cat/notes.txt": b"", "cat/.x.jpg": b"", "dog/broken.jpg": b"never read"})
    (root / "dog" / "gone.jpg").symlink_to("nowhere")
    before = sorted(root.parent.rglob("*"))
    outcome = shell("convert", root, place, "--dry-run")
    assert (outcome.status, outcome.stderr) == (1, "")
    assert outcome.stdout.splitlines() == [
        f"{root}: 13 files would be read and converted; nothing is written",
        "           6  cat",
        "           7  dog",
        "  rejected  1, before any file is read",
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
        "warnings": [],
        "skipped": {".txt": 1},
        "hidden": 1,
    }


def test_a_dry_run_counts_boxes_by_class_and_labels_without_names(shell: Shell, tmp_path: Path) -> None:
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


def test_a_dry_run_names_ten_problems_and_classes(shell: Shell, tmp_path: Path) -> None:
    rows = "".join(f"x,class {number:02}\n" for number in range(12)) + "y\n" * 12
    (tmp_path / "many.csv").write_text("path,label\n" + rows)
    outcome = shell("convert", tmp_path, tmp_path / "o.lmdb", "--listing", tmp_path / "many.csv", "--dry-run")
    assert outcome.stdout.count("class 0") == 10
    assert "  and 2 more classes (--json gives all)\n" in outcome.stdout
    assert outcome.stdout.count("the header has 2 fields") == 10
    assert "  rejected  12, before any file is read\n" in outcome.stdout


def test_a_source_that_cannot_be_converted_is_an_error(shell: Shell, tmp_path: Path) -> None:
    check_error(shell("convert", tmp_path, tmp_path / "o.lmdb", "--dry-run"), "there are no folders in it")
