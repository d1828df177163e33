"""Copies that apply the marks of one or several people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record
from dbloader.errors import OptionError, SourceError
from tests.ext.copying.test_copy_choice import copied
from tests.support.conversion import records
from tests.support.images import run
from tests.support.stores import store_records

CLASSES = ("cat", "dog", "eel")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_records(tmp_path / "all.lmdb", [Record(f"r{n}", n % 3, b"%d" % n) for n in range(9)], classes=CLASSES)
    return tmp_path / "all.lmdb"


def marks(folder: Path, *rows: dict[str, Any], name: str = "all.lmdb.marks.jsonl") -> Path:
    """Write marks, and add the record's name to each row that has an index."""
    some = [{"name": f"r{row['index']}"} | row if "index" in row else row for row in rows]
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in some))
    return folder / name


def labels(store: Path, *files: Path, **options: Any) -> dict[str | None, int | None]:
    return {record.name: record.label for record in copied(store, marks=files, **options)[0]}


@pytest.mark.parametrize("option", ["select", "drop"])
def test_file_of_marks_is_no_listing(store: Path, tmp_path: Path, option: str) -> None:
    file = marks(tmp_path, {"index": 1, "drop": True}, {"index": 2, "tags": ["blurry"]})
    with pytest.raises(
        OptionError, match=rf"^{option} \(--{option}\): .* is a file of marks: pass it as marks \(--mar"
    ):
        copied(store, **{option: file})


def test_marked_records_are_dropped_and_labelled_and_tags_are_ignored(store: Path, tmp_path: Path) -> None:
    everything = labels(store, marks(tmp_path))
    file = marks(
        tmp_path,
        {"index": 1, "drop": True},
        {"index": 2, "label": "cat", "tags": ["blurry"]},
        {"index": 3, "label": 2},
        {"name": "r4", "label": None},
        {"index": 5, "drop": True, "label": "dog"},
        {"index": 6, "drop": False},
        {"index": 8, "tags": ["a", "b"]},
    )
    with pytest.raises(SourceError, match=r"record 3 is an integer, but .* record 2 is a name"):
        labels(store, file)
    file.write_text(file.read_text().replace('"label": 2', '"label": "eel"'))
    expected = everything | {"r2": 0, "r3": 2, "r4": None}
    del expected["r1"], expected["r5"]
    assert labels(store, file) == expected
    # Relabeling all records keeps all classes, and a new name becomes a new class.
    assert set(labels(store, marks(tmp_path, *({"index": n, "label": "dog"} for n in range(9)))).values()) == {1}
    assert labels(store, marks(tmp_path, {"index": 0, "label": "fox"}))["r0"] == 3
    # Marks apply after other labels.
    listing = tmp_path / "labels.csv"
    listing.write_text("name,label\nr0,dog\nr1,eel\n")
    both = labels(store, marks(tmp_path, {"index": 0, "label": "cat"}), labels=listing)
    assert (both["r0"], both["r1"]) == (0, 2)


def test_marks_of_several_people_are_joined(store: Path, tmp_path: Path) -> None:
    ann = marks(tmp_path, {"index": 1, "drop": True}, {"index": 2, "label": "cat"}, name="ann.jsonl")
    bob = marks(tmp_path, {"index": 1, "drop": True, "label": "eel"}, {"name": "r3", "label": "dog"}, name="bob.jsonl")
    found = labels(store, ann, bob)
    assert ("r1" in found, found["r2"], found["r3"]) == (False, 0, 1)
    assert not run("copy", store, tmp_path / "c.lmdb", "--marks", ann, "--marks", bob).status
    assert {record.name: record.label for record in records(tmp_path / "c.lmdb")} == found


def test_one_file_of_marks_may_give_names_and_another_integers(store: Path, tmp_path: Path) -> None:
    ann = marks(tmp_path, {"index": 1, "label": "cat"}, {"index": 4, "label": "fox"}, name="ann.jsonl")
    bob = marks(tmp_path, {"index": 2, "label": 1}, name="bob.jsonl")
    found = labels(store, ann, bob)
    assert (found["r1"], found["r2"], found["r4"]) == (0, 1, 3)


def test_long_labels_that_differ_only_at_their_ends_disagree(store: Path, tmp_path: Path) -> None:
    ann = marks(tmp_path, {"index": 2, "label": "x" * 60}, name="ann.jsonl")
    bob = marks(tmp_path, {"index": 2, "label": "x" * 59 + "y"}, name="bob.jsonl")
    with pytest.raises(SourceError, match=r"ann.jsonl and .*bob.jsonl disagree about record 2 \(r2\)"):
        labels(store, ann, bob)


@pytest.mark.parametrize(
    ("mark", "what"),
    [({"index": 2, "label": "dog"}, "label 'dog'"), ({"name": "r2", "drop": True}, "drop")],
)
def test_contradiction_error_names_both_files(store: Path, tmp_path: Path, mark: dict[str, Any], what: str) -> None:
    ann = marks(tmp_path, {"index": 0, "tags": ["x"]}, {"index": 2, "label": "cat"}, name="ann.jsonl")
    bob = marks(tmp_path, mark, name="bob.jsonl")
    found = rf"ann.jsonl and .*bob.jsonl disagree about record 2 \(r2\): label 'cat' or {what}"
    with pytest.raises(SourceError, match=found):
        labels(store, ann, bob)


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ({"index": 1, "name": "r2", "drop": True}, "record 1 of .* is 'r1', not 'r2': the listing belongs to another"),
        ({"index": 1, "name": None, "drop": True}, "row 2: has no name"),
        ({"index": 9, "drop": True}, "has no record 9"),
        ({"name": "gone", "drop": True}, "1 row has no record in"),
        ({"index": 0, "drop": True}, "row 2: an earlier row has the same record"),
        ({"index": 1, "drop": "yes"}, "row 2: drop must be true or false, got 'yes'"),
        ({"index": 1, "label": True}, "row 2: a label must be an integer, a name or null, got True"),
        ({"index": 1, "tags": "blurry"}, "row 2: tags must be a list of texts"),
        ({"index": 1, "tags": ["x" * 501]}, "row 2: its tags have 501 letters, but at most 500 fit"),
        ({"index": 1, "lable": "dog"}, "row 2: a mark may have only index, name, drop, label, tags, got 'lable'"),
    ],
)
def test_invalid_mark_is_refused_with_the_reason(store: Path, tmp_path: Path, mark: dict[str, Any], what: str) -> None:
    with pytest.raises(SourceError, match=what):
        labels(store, marks(tmp_path, {"index": 0, "drop": True}, mark))
