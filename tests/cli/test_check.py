"""`dbloader verify` and `duplicates` on stores that are undamaged, damaged, or cannot be opened."""

from __future__ import annotations

import json
from pathlib import Path

from dbloader import convert, open_store
from tests.support.images import Outcome, encoded, photo, plant, scene
from tests.support.lmdb_files import tamper_with_records
from tests.support.shell import Shell, check_error


def test_undamaged_store_gives_status_0(shell: Shell, store: Path) -> None:
    with open_store(store) as opened:
        digest = opened.manifest.digest
    assert shell("verify", store) == Outcome(0, f"{store}: 12 records, all undamaged; digest {digest}\n", "")
    assert shell("verify", store, "--quiet") == Outcome(0, "", "")


def test_damaged_record_is_named_and_gives_status_1(shell: Shell, root: Path, store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[data.index((root / "cat" / "0002.jpg").read_bytes()[-100:])] ^= 1
    store.write_bytes(data)
    check_error(shell("verify", store), r"record 1 \(cat/0002.jpg\) of .*out.lmdb is damaged: its CRC-32 is \w{8}", 1)


def test_truncated_store_gives_status_1_and_a_missing_store_gives_2(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("verify", store.parent), "is a folder", 2)
    check_error(shell("verify", "mongodb://127.0.0.1:1/images"), "has the form mongodb://host/database.collection", 2)
    store.write_bytes(store.read_bytes()[:-1])
    check_error(shell("verify", store), "is cut short", 1)


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


def test_image_that_does_not_decode_gives_status_1(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"dog/half.jpg": photo(1)[:-200]})
    convert(root, place, check="none")
    assert shell("verify", place).status == 0
    message = r"record 12 \(dog/half.jpg\) of .*out.lmdb is damaged: more than its end marker is missing"
    check_error(shell("verify", place, "--decode"), message, 1)


def test_verify_refuses_wrong_sources_and_outputs(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store, "--against", store.with_name("none")), "there is no such folder", 2)
    check_error(shell("verify", store, "--listing", "x.csv"), r"give the source too \(--against\)", 2)
    before = store.read_bytes()
    check_error(shell("verify", store, "--output", store), r"must be a new file, but .*out\.lmdb exists", 2)
    assert store.read_bytes() == before
    assert not store.with_name("out.lmdb.partial").exists()


# duplicates


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
