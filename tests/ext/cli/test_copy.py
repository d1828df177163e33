"""`dbloader copy` and `export`, and MongoDB places as arguments of all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbloader import Record, convert, open_store, write_store
from dbloader._describe import size
from tests.cli.test_meter import check_progress
from tests.support.images import Outcome, photo, plant_kinds
from tests.support.mongo import Mongod
from tests.support.shell import Shell, check_error


def test_copy_has_the_same_contents_at_another_place(shell: Shell, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    outcome = shell("copy", store, copy)
    with open_store(store) as first, open_store(copy) as second:
        assert second.manifest == first.manifest
        assert second.verify() == first.manifest.digest
        nbytes = size(first.manifest.image_bytes)
        expected = f"{copy}: 12 records, {nbytes} of images; digest {first.manifest.digest}\n"
    assert outcome == Outcome(0, expected, "")
    check_error(shell("copy", store, copy), "copy.lmdb exists already; overwrite \\(--overwrite\\) replaces it")
    assert shell("copy", store, copy, "--overwrite", "--quiet") == Outcome(0, "", "")
    check_error(shell("copy", store, copy, "--resume"), "copy.lmdb is already finished: there is nothing to resume")
    assert shell("copy", store, copy, "--resume", "--overwrite", "--quiet") == Outcome(0, "", "")
    check_error(shell("copy", tmp_path / "none.lmdb", copy), "none.lmdb does not exist")
    check_error(shell("copy", store), r"SOURCE and DESTINATION are needed, got 1 argument \(see dbloader copy --help\)")


@pytest.mark.filterwarnings("always:.*no record in:UserWarning")
def test_options_select_records_merge_stores_and_rename_classes(shell: Shell, store: Path, tmp_path: Path) -> None:
    copy, (drop, labels) = tmp_path / "copy.lmdb", (tmp_path / name for name in ("drop.txt", "labels.csv"))
    drop.write_text("cat/0000.jpg\ndog/0001.jpg\n")
    labels.write_text("name,label\ncat/0002.jpg,dog\n")
    options = ["--drop", drop, "--labels", labels, "--where", "width>3 label<2", "--rename-class", "dog=a=b"]
    outcome = shell("copy", store, copy, *options, "--json")
    (facts,) = json.loads(outcome.stdout)
    assert (facts["place"], facts["length"], outcome.stderr) == (str(copy), 10, "")
    with open_store(copy) as opened:
        assert (opened.manifest.classes, opened.manifest.label_counts) == (("a=b", "cat"), {0: 6, 1: 4})
        assert (facts["digest"], facts["image_bytes"]) == (opened.verify(), opened.manifest.image_bytes)
    assert shell("copy", copy, store, tmp_path / "all.lmdb", "--class", "cat", "--select", labels).stdout.startswith(
        f"{tmp_path / 'all.lmdb'}: 1 record, "
    )
    drop.write_text("\x1b[2J\n")
    outcome = shell("copy", store, tmp_path / "rest.lmdb", "--drop", drop, "-q")
    assert outcome == Outcome(0, "", f"Warning: {drop}: 1 row has no record in {store}: '\\x1b[2J'\n")


def test_split_prints_a_line_for_each_part(shell: Shell, store: Path, tmp_path: Path) -> None:
    parts = [tmp_path / "train.lmdb", tmp_path / "val.lmdb"]
    lines = shell("copy", store, *parts, "--split", "0.75,0.25", "--seed", 3).stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"{parts[0]}: 9 records", f"{parts[1]}: 3 records"]
    facts = json.loads(shell("copy", store, *parts, "--split", "0.5,0.5", "--overwrite", "--json").stdout)
    assert [(part["place"], part["length"]) for part in facts] == [(str(place), 6) for place in parts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "3"], "--seed has no effect without --split: give --split too"),
        *(
            (["--split", split], f"must be two or more fractions with the sum 1, such as 0.8,0.2 .*, got '{split}'")
            for split in ("0.5,half", "0.8", "80,20", "0.8 0.2", "")
        ),
        (["--split", "0.5,0.5"], "--split 0.5,0.5 needs a SOURCE and 2 destinations, got 2 arguments"),
        (["--rename-class", "cat"], "--rename-class must be OLD=NEW, with a different OLD each time, got 'cat'"),
        (["--rename-class", "cat=a", "--rename-class", "cat=b"], "a different OLD each time, got 'cat=b'"),
        (["--where", "size>3"], "query, letter 1: this store has no field 'size'"),
        (["--select", "none.txt"], "none.txt: the listing cannot be read: No such file"),
        (["--drop", ""], r"a listing is one of .*, got ''"),
        (["--select", "none.xyz"], "none.xyz: a listing is one of .*, got '.xyz'"),
    ],
)
def test_wrong_option_prints_one_error_line(
    shell: Shell, store: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    check_error(shell("copy", store, tmp_path / "copy.lmdb", *options), message)
    assert not (tmp_path / "copy.lmdb").exists()


@pytest.mark.slow
def test_commands_accept_a_place_in_mongodb(
    shell: Shell, root: Path, place: Path, tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = mongo_uri.partition("?")[0]
    plant_kinds(root, "text")
    digest = convert(root, place).digest
    outcome = shell("convert", root, mongo_uri)
    assert outcome.status == 1
    database_and_collection = shown.rpartition("/")[2]
    report = Path(f"{database_and_collection}.report.jsonl")  # in the working directory
    assert f"\n{shown}: 13 records, " in outcome.stdout
    assert outcome.stdout.endswith(f"    all of them in {report}\n")
    assert json.loads(report.read_text())["event"] == "rejected"

    assert shell("verify", mongo_uri) == Outcome(0, f"{shown}: 13 records, all undamaged; digest {digest}\n", "")
    first, *lines = shell("info", mongo_uri).stdout.splitlines()
    assert first == f"{shown}: dbloader store, format version 1"
    printed = shell("info", place).stdout.splitlines()[1:]
    assert [line for line in lines if "created" not in line] == [line for line in printed if "created" not in line]
    assert json.loads(shell("info", mongo_uri, "--json").stdout)["place"] == shown
    assert shell("info", mongo_uri, "--report").stdout == report.read_text()

    check_error(shell("convert", root, mongo_uri), r"mongodb://.* exists already; overwrite \(--overwrite\) replaces")
    assert shell("convert", root, mongo_uri, "--overwrite", "-q") == Outcome(1, "", "")
    assert shell("copy", mongo_uri, "copy.lmdb", "-q") == Outcome(0, "", "")
    assert shell("info", "copy.lmdb", "--report").stdout == report.read_text()
    assert shell("verify", "copy.lmdb").stdout == f"copy.lmdb: 13 records, all undamaged; digest {digest}\n"
    outcome = shell("copy", "copy.lmdb", f"{shown}2")
    assert outcome.stdout.startswith(f"{shown}2: 13 records, ")


def test_failed_login_prints_an_error_without_the_password(shell: Shell, mongod_with_users: Mongod) -> None:
    place = mongod_with_users.place("images", "train").replace("root:", "nobody:")
    outcome = shell("info", place)
    check_error(outcome, "the server refuses this user or password")
    assert "s3cret" not in outcome.stderr
    assert "nobody" not in outcome.stderr


# export


def test_export_writes_a_store_and_prints_one_line(shell: Shell, store: Path, tmp_path: Path) -> None:
    done = shell("export", store, tmp_path / "folder")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'folder'}: 12 records, 12.")
    assert convert(tmp_path / "folder", tmp_path / "again.lmdb").records == 12


def test_warnings_go_to_stderr_or_json_and_errors_are_one_line(shell: Shell, tmp_path: Path) -> None:
    write_store([Record("\x1b[2J.jpg", 0, photo())], tmp_path / "store.lmdb")
    done = shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J")
    assert done.stderr.startswith("Warning: 1 record without the size and format of their image: ")
    assert "\x1b" not in done.stdout
    assert shell("export", tmp_path / "store.lmdb", tmp_path / "quiet", "--quiet").stdout == ""
    facts = json.loads(shell("export", tmp_path / "store.lmdb", tmp_path / "b", "--json").stdout)
    assert (facts["destination"], len(facts["warnings"])) == (str(tmp_path / "b"), 1)
    check_error(shell("export", tmp_path / "store.lmdb", tmp_path / "\x1b[2J"), r"\\x1b\[2J exists already: move it")


def test_progress_is_printed_at_intervals_and_at_the_end(
    shell: Shell, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.conversion.meter.EVERY_S", 1e-9)
    check_progress(shell, "copy", store, tmp_path / "c.lmdb")
