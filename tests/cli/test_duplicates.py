"""`dbloader duplicates` on stores with duplicates, without duplicates, and unreadable stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbloader import convert
from tests.support.images import Outcome, encoded, plant, scene
from tests.support.lmdb_files import tamper_with_records
from tests.support.shell import Shell, check_error


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "images", {f"cat/{seed:04}.jpg": encoded(scene(seed), "JPEG") for seed in range(12)})


def test_status_is_1_if_there_are_duplicates_else_0(shell: Shell, root: Path, store: Path, tmp_path: Path) -> None:
    assert shell("duplicates", store) == Outcome(0, f"{store}: 12 records\n  same    0\n  near    0\n", "")
    plant(root, {"dog/again\x1b.jpg": (root / "cat/0000.jpg").read_bytes()})
    other = tmp_path / "other.lmdb"
    convert(root, other)
    outcome = shell("duplicates", other, "--output", tmp_path / "rows.jsonl")
    found = "    12 (dog/again\\x1b.jpg): same as 0 (cat/0000.jpg)\n"
    assert outcome == Outcome(1, f"{other}: 13 records\n  same    1\n  near    0\n{found}", "")
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert (row["index"], row["name"], row["of"]) == (12, "dog/again\x1b.jpg", 0)
    assert shell("duplicates", other, "-q") == Outcome(1, "", "")
    report = json.loads(shell("duplicates", store, other, "--json").stdout)
    assert (report["groups"], report["duplicates"]) == (12, {"same": 13})


def test_damaged_records_are_named_and_give_status_1(shell: Shell, store: Path) -> None:
    tamper_with_records(store, {3: None})
    outcome = shell("duplicates", store)
    assert outcome.status == 1
    assert f"Error: record 3 (cat/0003.jpg) of {store} is damaged: it is missing" in outcome.stderr


def test_store_that_cannot_be_searched_gives_status_2(shell: Shell, store: Path) -> None:
    check_error(shell("duplicates", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("duplicates", store, "--output", store), "must be a new file", 2)
    check_error(shell("duplicates", store, "--output", store / "a" / "b"), "there is no folder .*a; make it first", 2)
    check_error(shell("duplicates", store, "--output", "x.foo"), r"must end in \.jsonl, got x\.foo", 2)
    check_error(shell("duplicates", store, "--distance", "16"), "--distance", 2)
