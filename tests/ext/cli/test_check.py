"""`dbloader verify --against`, and `duplicates`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dbloader import convert
from tests.cli.test_faults import BRANCH, pages_of, whole  # noqa: F401 - whole is a fixture
from tests.support.images import Outcome, encoded, photo, plant, run, scene
from tests.support.lmdb_files import tamper_with_records
from tests.support.shell import Shell, check_error


def test_verify_prints_ten_problems_and_counts_and_writes_all(shell: Shell, root: Path, store: Path) -> None:
    for name in ("cat/0000.jpg", *(f"dog/{number:04}.jpg" for number in range(1, 12, 2))):
        (root / name).unlink()
    plant(root, {f"cat/new {number}\x1b.jpg": photo(number) for number in range(5)})
    output = store.with_name("problems.jsonl")
    outcome = shell("verify", store, "--against", root, "--output", output, "--quiet")
    *named, last = outcome.stderr.splitlines()
    assert (outcome.status, outcome.stdout, len(named)) == (1, "", 10)
    assert named[0] == f"Error: cat/new 0\\x1b.jpg is not in {store}"
    assert last == f"Error: {store}: 12 records, 12 problems (5 missing, 7 extra); 5 same"
    assert len(output.read_text().splitlines()) == 12
    report = json.loads(shell("verify", store, "--against", root, "--json").stdout)
    assert report["problems"] == {"missing": 5, "extra": 7}
    assert len(report["first"]) == 12


def test_duplicates_gives_status_1_only_if_it_finds_duplicates(shell: Shell, tmp_path: Path) -> None:
    scenes = {f"cat/{seed:04}.jpg": encoded(scene(seed), "JPEG") for seed in range(12)}
    root, store = plant(tmp_path / "scenes", scenes), tmp_path / "scenes.lmdb"
    convert(root, store)
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


def test_duplicates_names_damaged_records_and_gives_status_1(shell: Shell, store: Path) -> None:
    tamper_with_records(store, {3: None})
    outcome = shell("duplicates", store)
    assert outcome.status == 1
    assert f"Error: record 3 (cat/0006.jpg) of {store} is damaged: it is missing" in outcome.stderr


def test_duplicates_gives_status_2_for_a_store_that_cannot_be_searched(shell: Shell, store: Path) -> None:
    check_error(shell("duplicates", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("duplicates", store, "--output", store), "must be a new file", 2)
    check_error(shell("duplicates", store, "--output", store / "a" / "b"), "there is no folder .*a; make it first", 2)
    check_error(shell("duplicates", store, "--output", "x.foo"), r"must end in \.jsonl, got x\.foo", 2)
    check_error(shell("duplicates", store, "--distance", "16"), "--distance", 2)


def test_file_that_crashes_the_process_is_reported_as_damaged(whole: Path, tmp_path: Path) -> None:  # noqa: F811
    place = tmp_path / "faulty.lmdb"
    content = bytearray(whole.read_bytes())
    for page in pages_of(content, BRANCH):
        content[page + 12] = 18  # the header now claims one node, and LMDB asserts at least two
    place.write_bytes(content)
    copy = ["copy", place, tmp_path / "new.lmdb", "--skip-damaged"]
    for arguments, status in ((["verify", whole, "--against", place], 1), (copy, 2)):
        outcome = run(*map(str, arguments))
        assert outcome.status == status
        assert outcome.stdout == ""
        assert re.fullmatch(
            r"Error: .*lmdb is damaged: .*the process that read it crashed with SIG\w+; copy it again .*\n",
            outcome.stderr,
        )


def test_verify_refuses_a_missing_source(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store, "--against", store.with_name("none")), "there is no such folder", 2)
