"""The command line: what it prints, where, and the exit status."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pymongo
import pytest

import dbloader
import dbloader.stores.writer
from dbloader.cli import main
from dbloader.cli.meter import Meter
from dbloader.cli.text import counted, size
from dbloader.conversion.convert import convert
from dbloader.conversion.report import Report
from dbloader.conversion.transcode import ImageFormat
from dbloader.stores.open import create_store, open_store
from tests.support.images import (
    WAIT_S,
    Outcome,
    command,
    photo,
    plant,
    plant_kinds,
    plant_photos,
    run,
    running,
    subcommands,
)
from tests.support.mongo import records_of

if TYPE_CHECKING:
    from dbloader.conversion.report import Progress
    from tests.support.mongo import Mongod

COMMANDS = subcommands()


class Shell:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str | os.PathLike[str]) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["dbloader", *(os.fspath(argument) for argument in arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit, match=r"^\d+$") as caught:
            main()
        stdout, stderr = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, stdout, stderr)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant_photos(tmp_path / "images", 12)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


@pytest.fixture
def store(root: Path, place: Path) -> Path:
    convert(root, place)
    return place


def check_error(outcome: Outcome, message: str, status: int = 2) -> None:
    """One line on stderr, nothing else, and the exit status."""
    assert outcome.status == status
    assert outcome.stdout == ""
    assert re.fullmatch(rf"Error: .*(?:{message}).*\n", outcome.stderr), outcome.stderr


# convert


def test_a_conversion_tells_what_it_made(shell: Shell, root: Path, place: Path) -> None:
    outcome = shell("convert", root, place)
    assert outcome.status == 0
    assert outcome.stderr == ""
    with open_store(place) as store:
        digest = store.manifest.digest
    assert re.fullmatch(
        rf"{place}: 12 records, [\d.]+ kB of images, in \d+\.\d s \([\d,]+ images/s, [\d.,]+ MB/s\)\n"
        rf"  digest    {digest}\n",
        outcome.stdout,
    )


def test_a_conversion_names_what_it_left_out(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "half", "text", "no end marker", "another extension")
    plant(root, {"cat/.hidden.jpg": b"", "cat/README": b"", "loose.jpg": b"", "cat/big.jpg": photo(width=300)})
    outcome = shell("convert", root, place, "--max-side", "100")
    assert outcome.status == 1
    _, _, *lines = outcome.stdout.splitlines()
    assert lines == [
        "  resized   1",
        "  repaired  1: only the end marker was missing",
        "  rejected  2 of 17",
        "    rejected  cat/000.jpg: is damaged: scan 1 ends after 1 of 6 MCUs",
        "    repaired  cat/002.jpg: its end marker was missing: appended FF D9",
        "    rejected  dog/001.jpg: is in no known image format (it begins with b'<htm')",
        f"    all of them in {place}.report.jsonl",
        "  left out  2 files of other kinds (no extension 1, .txt 1)",
        "  left out  1 hidden file (names that begin with a dot)",
    ]
    assert outcome.stderr == f"Warning: 1 image directly in {root} left out: outside of every class folder\n"


def test_damaged_images_that_are_kept_are_told_and_are_no_failure(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "half")
    outcome = shell("convert", root, place, "--on-damaged", "keep")
    assert outcome.status == 0
    assert "  damaged   1, stored nevertheless\n" in outcome.stdout
    assert "    damaged   cat/000.jpg: is damaged: " in outcome.stdout


def test_what_is_not_tiled_is_told_after_what_is_not_there(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, *["png"] * 12, "text")
    outcome = shell("convert", root, place, "--tile", "--quality", "90")
    assert outcome.status == 1
    _, _, *lines = outcome.stdout.splitlines()
    assert lines[:5] == [
        "  reencoded 13: other pixels than in the files",
        "  untiled   12: must be decoded whole",
        "  rejected  1 of 26",
        "    rejected  cat/012.jpg: is in no known image format (it begins with b'<htm')",
        "    untiled   cat/000.png: is a PNG, not a JPEG",
    ]
    assert lines[13:] == [f"    and 3 more, all in {place}.report.jsonl"]


def test_of_many_rejected_files_ten_are_named(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, *["text"] * 13)
    outcome = shell("convert", root, place)
    assert outcome.stdout.count("    rejected  ") == 10
    assert outcome.stdout.endswith(f"    and 3 more, all in {place}.report.jsonl\n")
    assert len(Path(f"{place}.report.jsonl").read_text().splitlines()) == 13


def test_of_many_kinds_of_files_ten_are_named(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {f"cat/x.{number:02}": b"" for number in range(13)} | {"dog/y.12": b""})
    outcome = shell("convert", root, place)
    assert "  left out  14 files of other kinds (.12 2, .00 1, .01 1, " in outcome.stdout
    assert outcome.stdout.endswith(", .08 1, 3 more)\n")


def test_a_report_that_cannot_be_written_is_told(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "text")
    Path(f"{place}.report.jsonl").mkdir()
    outcome = shell("convert", root, place)
    assert outcome.status == 1
    assert re.fullmatch(r"Warning: .*report.jsonl cannot be written: Is a directory; .*\n", outcome.stderr)
    assert "rejected  1 of 14\n" in outcome.stdout


def test_quiet_prints_nothing_but_errors(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"loose.jpg": b""})
    assert shell("convert", root, place, "--quiet") == Outcome(0, "", "")
    check_error(shell("convert", root, place, "-q"), "exists already")
    plant_kinds(root, "text")
    assert shell("convert", root, place, "-q", "--overwrite") == Outcome(1, "", "")
    assert shell("verify", place, "--quiet") == Outcome(0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_report_that_cannot_be_printed_is_told_with_where_the_store_is(
    root: Path, place: Path, options: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("convert", root, place, *options),
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    message = f"Error: standard output: No space left on device; the store is made, at {place}\n"
    assert (done.returncode, done.stderr) == (2, message)
    with open_store(place) as store:
        assert len(store) == 12


def test_beginning_where_there_is_nothing_to_resume_is_told(shell: Shell, root: Path, place: Path) -> None:
    outcome = shell("convert", root, place, "--resume")
    message = "Warning: there was nothing to resume: the conversion began from the start\n"
    assert (outcome.status, outcome.stderr) == (0, message)
    assert shell("convert", root, f"{place}.2", "--resume", "--quiet") == Outcome(0, "", "")


def test_a_listing_without_labels_is_warned_of(shell: Shell, root: Path, place: Path) -> None:
    listing = root / "all.csv"
    listing.write_text("path,Label\ncat/0000.jpg,1\n")
    outcome = shell("convert", root, place, "--list", listing)
    assert outcome.status == 0
    columns = "'path', 'Label' is called one of 'label', 'class', 'target'"
    assert outcome.stderr == f"Warning: no row has a label, as none of the columns {columns}\n"


def test_the_report_comes_as_json(shell: Shell, root: Path, place: Path) -> None:
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


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        (["--workers", "3"], {"workers": 3}),
        (["--check", "structure"], {"check": "structure"}),
        (["--on-bad", "fail"], {"on_bad": "fail"}),
        (["--on-damaged", "keep"], {"on_damaged": "keep"}),
        (["--max-side", "20"], {"images": ImageFormat(max_side=20)}),
        (["--short-side", "20", "--quality", "60"], {"images": ImageFormat(short_side=20, quality=60)}),
        (["--tile", "--tile-width", "64"], {"images": ImageFormat(tile=True, tile_width=64)}),
        (["--raw"], {"images": ImageFormat(raw=True)}),
        (["--shuffle", "-7"], {"shuffle": -7}),
        (["--overwrite"], {"overwrite": True}),
        (["--resume"], {"resume": True}),
        (["--list", "all.csv"], {"listing": "all.csv"}),
    ],
)
def test_every_option_reaches_the_conversion(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str], passed: dict[str, Any]
) -> None:
    seen: dict[str, Any] = {}

    def fake(source: str, destination: str, progress: object, **given: Any) -> Report:
        assert callable(progress)
        seen.update(given, source=source, destination=destination)
        return Report(place=destination, digest="", records=1, files=1, seconds=1)

    monkeypatch.setattr("dbloader.cli.convert.convert", fake)
    assert shell("convert", "images", "out.lmdb", *options).status == 0
    defaults = {
        "listing": None, "key": None, "image": None, "workers": None,
        "check": "decode", "on_bad": "reject", "on_damaged": "reject",
        "images": ImageFormat(), "shuffle": None, "overwrite": False, "resume": False,
    }  # fmt: skip
    assert seen == {**defaults, **passed, "source": "images", "destination": "out.lmdb"}


def test_an_interrupted_conversion_is_said_to_be_resumed(
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


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert"], r"Missing argument 'SOURCE'. \(see dbloader convert --help\)"),
        (["convert", "images"], r"Missing argument 'DESTINATION'. \(see dbloader convert --help\)"),
        (["convert", "images", "new.lmdb", "more"], r"unexpected extra argument \('?more'?\)"),
        (["convert", "none", "new.lmdb"], "none: there is no such folder"),
        (["convert", "file.txt", "new.lmdb"], "file.txt: is a file, not a folder of images"),
        (["convert", "images", "none/new.lmdb"], "none/new.lmdb cannot be written: the folder .* does not exist"),
        (["convert", "images", "images"], "images is a folder; a store is one file: name one, such as images.lmdb"),
        (["convert", "images", "."], r"\. is a folder; a store is one file: name one, such as \./train\.lmdb"),
        (["convert", "images", "/"], r"/ is a folder; a store is one file: name one, such as /train\.lmdb"),
        (
            ["convert", "old.lmdb", "new.lmdb"],
            r"is a file, not a folder of images \(to copy a store, use dbloader copy",
        ),
        (
            ["convert", "images", "new.lmdb", "--raw", "--tile"],
            r"raw \(--raw\) stores pixels, and tile \(--tile\) stores",
        ),
        (["convert", "images", "old.lmdb"], r"old.lmdb exists already; overwrite \(--overwrite\) replaces it"),
        (["convert", "images", "file.txt", "--overwrite"], "file.txt is not a dbloader store and will not be overwri"),
        (["convert", "images", "old.lmdb", "--resume"], "old.lmdb is finished already: there is nothing to resume"),
        (["convert", "images", "s3://bucket/x"], "s3:// is no place that this version of dbloader knows"),
        (["convert", "images", ""], "a place is the path of an LMDB file"),
        (["convert", "images", "new.lmdb/"], "new.lmdb/ names a folder; a store is one file"),
        (["convert", "", "new.lmdb"], "the path of a folder is wanted, got ''"),
        (["convert", "images", "new.lmdb", "--list", "none.csv"], "none.csv: the listing cannot be read: No such"),
        (["convert", "images", "new.lmdb", "--list", "file.txt"], "file.txt: a listing is one of"),
        (["convert", "images", "new.lmdb", "--workers", "0"], "workers must be at least 1, got 0"),
        (["convert", "images", "new.lmdb", "--workers", "two"], "Invalid value for '--workers': 'two' is not a valid"),
        (["convert", "images", "new.lmdb", "--check", "all"], "'--check': 'all' is not one of 'decode', 'structure'"),
        (["convert", "images", "new.lmdb", "--on-bad", "keep"], "'--on-bad': 'keep' is not one of 'reject', 'fail'"),
        (["convert", "images", "new.lmdb", "--on-damaged", "x"], "'--on-damaged': 'x' is not one of 'reject', 'keep'"),
        (["convert", "images", "new.lmdb", "--max-side", "0"], r"\(--max-side\) must be at least 1 pixel, got 0"),
        (["convert", "images", "new.lmdb", "--max-side", "1.5"], "'--max-side': '1.5' is not a valid int"),
        (["convert", "images", "new.lmdb", "--short-side", "-2"], r"\(--short-side\) must be at least 1 pixel, got"),
        (["convert", "images", "new.lmdb", "--max-side", "9", "--short-side", "9"], "choose one"),
        (["convert", "images", "new.lmdb", "--quality", "90"], r"give .* or short_side \(--short-side\) too"),
        (["convert", "images", "new.lmdb", "--quality", "0"], r"quality \(--quality\) must be from 1 to 100"),
        (["convert", "images", "new.lmdb", "--shuffle", "1e3"], "'--shuffle': '1e3' is not a valid int"),
        (["convert", "images", "new.lmdb", "--shuffle", "9" * 20], "shuffle must be a seed of 64 bits"),
        (["convert", "images", "new.lmdb", "--check", "none", "--on-damaged", "keep"], "finds no damage"),
        (["convert", "images", "new.lmdb", "--worker", "3"], r"No such option:? '?--worker'?.* \(see dbloader convert"),
        (["info", "none.lmdb"], "none.lmdb does not exist; dbloader convert makes a store"),
        (["info", "images"], "images is a folder; a store is one file"),
        (["info", "images/cat/0000.jpg"], "0000.jpg is not an LMDB file, so not a dbloader store"),
        (["info", "old.lmdb", "--json", "--report"], "--json and --report print different things: choose one"),
        (["info", "mongo+x://host"], r"mongo\+x:// is no place"),
        (["verify", "none.lmdb"], "none.lmdb does not exist"),
        (["verify"], r"Missing argument 'PLACE'. \(see dbloader verify --help\)"),
        (["convrt"], r"No such command 'convrt'. Did you mean 'convert'\? \(see dbloader --help\)"),
        (["vrify", "none.lmdb"], "No such command 'vrify'. Did you mean 'verify'?"),
        (["old.lmdb"], r"No such command 'old.lmdb'. \(see dbloader --help\)"),
        (["convert", "images", "new.lmdb", "--on-bda", "fail"], "No such option:? '?--on-bda'?.*'--on-bad'"),
        (["--quiet"], "No such option:? '?--quiet'?"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_nothing_is_lost(
    shell: Shell, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    convert("images", "old.lmdb")
    Path("file.txt").write_text("text")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    check_error(shell(*arguments), message)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert root.exists()


def test_an_error_of_the_system_is_one_line_with_the_files_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Report:
        raise OSError(24, "Too many open files", "images/cat/0.jpg")

    monkeypatch.setattr("dbloader.cli.convert.convert", fail)
    check_error(shell("convert", "images", "out.lmdb"), "images/cat/0.jpg: Too many open files")


def test_an_error_of_the_system_without_a_name_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Report:
        raise OSError("no room\nat all")

    monkeypatch.setattr("dbloader.cli.convert.convert", fail)
    check_error(shell("convert", "images", "out.lmdb"), "no room at all")


def test_a_name_that_lmdb_cannot_take_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Report:
        "caf\udce9/out.lmdb".encode()
        raise AssertionError

    monkeypatch.setattr("dbloader.cli.convert.convert", fail)
    check_error(shell("convert", "images", "out.lmdb"), r"caf\\xe9/out.lmdb: its name is not valid UTF-8; rename it")


def test_a_file_that_ends_the_conversion_is_named(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "text")
    check_error(
        shell("convert", root, place, "--on-bad", "fail"),
        r"cat/000.jpg: is in no known image format .*; mend the file and resume \(--resume\), or resume with "
        "--on-bad reject",
    )


def test_an_interruption_is_one_line_and_a_status_of_its_own(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dbloader.cli.convert.convert", interrupt)
    monkeypatch.setattr("dbloader.cli.verify.open_store", interrupt)
    outcome = shell("convert", "images", "out.lmdb")
    assert outcome == Outcome(130, "", "Interrupted: what is committed is kept, and --resume goes on with it\n")
    assert shell("verify", "out.lmdb") == Outcome(130, "", "Interrupted\n")


def test_an_error_in_a_real_process_has_no_traceback(tmp_path: Path) -> None:
    check_error(run("info", tmp_path / "none.lmdb"), "none.lmdb does not exist")
    check_error(run("convert", "--list"), "Option '--list' requires an argument")


# info and verify


def test_info_tells_what_is_in_a_store(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    plant_kinds(root, "text", "no end marker", "png")
    plant_photos(root, 3, ("owl",), width=500)
    report = convert(root, place, images=ImageFormat(max_side=100))
    outcome = shell("info", place)
    assert (outcome.status, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"{place}: dbloader store, format version 1"
    rows = dict(re.findall(r"^  (\w+) +(.*)$", outcome.stdout, re.MULTILINE))
    assert rows["records"] == "18"
    assert re.fullmatch(r"[\d.]+ kB \(17 JPEG, 1 PNG\)", rows["images"])
    assert rows["width"] == "24 to 100 pixels"
    assert rows["height"] == "6 to 30 pixels"
    convert(plant_photos(tmp_path / "alike", 2), place, overwrite=True)
    alike = dict(re.findall(r"^  (\w+) +(.*)$", shell("info", place).stdout, re.MULTILINE))
    assert (alike["width"], alike["height"]) == ("40 pixels", "30 pixels")
    assert sorted(rows["conversion"].split(", ")) == ["1 rejected", "1 repaired", "3 resized"]
    assert rows["source"] == str(root)
    assert rows["digest"] == report.digest
    assert rows["classes"] == "3, with 3 to 8 records"
    assert [line for line in lines if "█" in line] == [
        f"    cat  8  {'█' * 40}",
        f"    dog  7  {'█' * 35}",
        f"    owl  3  {'█' * 15}",
    ]


def test_info_tells_what_a_listing_gave(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    listing = tmp_path / "all.csv"
    listing.write_text("path,label,caption\ncat/0000.jpg,7,one\ndog/0001.jpg,,two\ncat/0002.jpg,-3,three\n")
    convert(root, place, listing=listing)
    rows = dict(re.findall(r"^  (\w+) +(.*)$", shell("info", place).stdout, re.MULTILINE))
    assert rows["fields"] == "caption (3)"
    assert rows["labelled"] == "2"
    assert rows["source"] == str(listing)
    assert rows["labels"] == "2, with 1 record each"
    assert "    -3  1  ████" in shell("info", place).stdout


def test_info_of_a_store_without_labels_images_and_sizes(shell: Shell, place: Path) -> None:
    from dbloader.records.record import Record, encode

    with create_store(place) as writer:
        writer.write([encode(Record(fields={"x": 1}))])
        writer.finish()
    outcome = shell("info", place)
    assert outcome.status == 0
    rows = dict(re.findall(r"^  (\w+) +(.*)$", outcome.stdout, re.MULTILINE))
    assert rows.keys() == {"records", "images", "fields", "created", "digest", "labelled"}


def test_info_shows_twenty_classes_and_json_all(shell: Shell, tmp_path: Path, place: Path) -> None:
    names = tuple(f"{number:02} {'x' * number}" for number in range(35))
    convert(plant_photos(tmp_path / "many", 40, names), place)
    outcome = shell("info", place)
    assert sum("█" in line for line in outcome.stdout.splitlines()) == 20
    assert outcome.stdout.endswith("    and 15 more (--json gives all)\n")
    assert max(map(len, outcome.stdout.splitlines()[-21:])) < 100
    assert json.loads(shell("info", place, "--json").stdout)["classes"] == [*names]
    long = convert(plant_photos(tmp_path / "long", 2, ("y" * 60,)), tmp_path / "long.lmdb")
    assert f"    {'y' * 29}…  2  " in shell("info", long.place).stdout


def test_info_of_a_label_that_is_nearly_a_measurement(shell: Shell, place: Path) -> None:
    from dbloader.records.record import Record, encode

    with create_store(place) as writer:
        writer.write(encode(Record(label=number)) for number in range(65_537))
        writer.finish()
    assert "  labels      more than 65,536 different ones\n" in shell("info", place).stdout


def test_info_gives_the_manifest_as_json(shell: Shell, store: Path) -> None:
    outcome = shell("info", store, "--json")
    with open_store(store) as opened:
        manifest = json.loads(json.dumps(dataclasses.asdict(opened.manifest)))
    assert json.loads(outcome.stdout) == {"place": str(store), **manifest}


def test_info_gives_the_report_as_json_lines(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "text", "no end marker", "half")
    report = convert(root, place)
    assert shell("info", place, "--report").stdout == Path(report.report_file).read_text()
    assert len(Path(report.report_file).read_text().splitlines()) == 3


def test_verify_tells_that_a_store_is_whole(shell: Shell, store: Path) -> None:
    outcome = shell("verify", store)
    with open_store(store) as opened:
        digest = opened.manifest.digest
    assert outcome == Outcome(0, f"{store}: all 12 records are whole; digest {digest}\n", "")


def test_verify_names_a_record_that_is_damaged(shell: Shell, root: Path, store: Path) -> None:
    data = bytearray(store.read_bytes())
    start = data.index((root / "cat" / "0002.jpg").read_bytes()[-100:])
    data[start] ^= 1
    store.write_bytes(data)
    check_error(shell("verify", store), r"record 1 \(cat/0002.jpg\) of .*out.lmdb is damaged: its CRC-32 is \w{8}", 1)


@pytest.mark.parametrize("cut", [1, 100, 5000])
def test_verify_tells_what_is_not_whole_from_what_cannot_be_looked_at(shell: Shell, store: Path, cut: int) -> None:
    assert shell("verify", store).status == 0
    check_error(shell("verify", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("verify", store.parent), "is a folder", 2)
    check_error(shell("verify", store, "more"), "unexpected extra argument", 2)
    check_error(shell("verify", "mongodb://127.0.0.1:1/images"), "names no collection", 2)
    store.write_bytes(store.read_bytes()[:-cut])
    check_error(shell("verify", store), "is cut short", 1)


# cache, and places in MongoDB


def test_cache_makes_the_same_store_at_another_place(shell: Shell, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    outcome = shell("copy", store, copy)
    with open_store(store) as first, open_store(copy) as second:
        assert second.manifest == first.manifest
        assert second.verify() == first.manifest.digest
        told = size(first.manifest.image_bytes)
        expected = f"{copy}: 12 records, {told} of images; digest {first.manifest.digest}\n"
    assert outcome == Outcome(0, expected, "")
    check_error(shell("copy", store, copy), "copy.lmdb exists already; overwrite \\(--overwrite\\) replaces it")
    assert shell("copy", store, copy, "--overwrite", "--quiet") == Outcome(0, "", "")
    check_error(shell("copy", store, copy, "--resume"), "copy.lmdb is finished already: there is nothing to resume")
    assert shell("copy", store, copy, "--resume", "--overwrite", "--quiet") == Outcome(0, "", "")
    check_error(shell("copy", tmp_path / "none.lmdb", copy), "none.lmdb does not exist")
    check_error(shell("copy", store), r"Missing argument 'DESTINATION'. \(see dbloader copy --help\)")


def test_cache_goes_on_with_an_interrupted_copy(
    shell: Shell, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.lmdb"
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_BYTES", 1)
    monkeypatch.setattr("dbloader.conversion.copy_store.READ_AT_ONCE", 5)
    calls = 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("dbloader.cli.copy.Meter.update", interrupt)
    told = "Interrupted: what is committed is kept, and --resume goes on with it\n"
    assert shell("copy", store, copy) == Outcome(130, "", told)
    check_error(shell("copy", store, copy), "an unfinished conversion is at .*: resume \\(--resume\\) goes on with it")
    assert shell("copy", store, copy, "--resume", "-q") == Outcome(0, "", "")
    assert shell("verify", copy, "-q").status == 0


def test_a_damaged_record_ends_a_cache_and_is_named(shell: Shell, root: Path, store: Path, tmp_path: Path) -> None:
    data = bytearray(store.read_bytes())
    data[data.index((root / "cat" / "0002.jpg").read_bytes()[-100:])] ^= 1
    store.write_bytes(data)
    check_error(shell("copy", store, tmp_path / "copy.lmdb"), r"record 1 \(cat/0002.jpg\) of .*out.lmdb is damaged")
    assert not (tmp_path / "copy.lmdb").exists()


def test_all_commands_take_a_place_in_mongodb(
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
    assert outcome.stdout.startswith(f"{shown}: 13 records, ")
    assert outcome.stdout.endswith(f"    all of them in {report}\n")
    assert json.loads(report.read_text())["event"] == "rejected"

    assert shell("verify", mongo_uri) == Outcome(0, f"{shown}: all 13 records are whole; digest {digest}\n", "")
    lines = shell("info", mongo_uri).stdout.splitlines()
    assert lines[0] == f"{shown}: dbloader store, format version 1"
    told = shell("info", place).stdout.splitlines()
    assert [line for line in lines[1:] if "created" not in line] == [line for line in told[1:] if "created" not in line]
    assert json.loads(shell("info", mongo_uri, "--json").stdout)["place"] == shown
    assert shell("info", mongo_uri, "--report").stdout == report.read_text()

    check_error(
        shell("convert", root, mongo_uri), r"mongodb://.* exists already; overwrite \(--overwrite\) replaces it"
    )
    assert shell("convert", root, mongo_uri, "--overwrite", "-q") == Outcome(1, "", "")
    assert shell("copy", mongo_uri, "copy.lmdb", "-q") == Outcome(0, "", "")
    assert shell("info", "copy.lmdb", "--report").stdout == report.read_text()
    assert shell("verify", "copy.lmdb").stdout == f"copy.lmdb: all 13 records are whole; digest {digest}\n"
    outcome = shell("copy", "copy.lmdb", f"{shown}2")
    assert outcome.stdout.startswith(f"{shown}2: 13 records, ")


def test_a_record_that_is_damaged_on_a_server_is_named(
    shell: Shell, root: Path, tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    convert(root, mongo_uri)
    with pymongo.MongoClient[Any](mongo_uri) as client:
        records_of(client, mongo_uri).update_one({"_id": 1}, {"$set": {"label": 7}})
    for status, *arguments in ((1, "verify", mongo_uri), (2, "copy", mongo_uri, "copy.lmdb")):
        message = r"record 1 \(cat/0002.jpg\) of mongodb://.* is damaged: its CRC-32 is \w{8}, not"
        check_error(shell(*map(str, arguments)), message, int(status))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "mongodb://localhost"], "names no database and no collection: a place in MongoDB is mongodb://"),
        (["info", "mongodb://localhost/images"], "names no collection: .*, such as mongodb://localhost/images.train"),
        (["verify", "mongodb://u:s3cret@localhost/images"], "names no collection"),
        (["copy", "old.lmdb", "mongodb://u:s3cret@localhost"], "names no database and no collection"),
        (["convert", "images", "mongodb://u:s3c/ret@localhost/a.b"], "must be escaped"),
    ],
)
def test_a_place_that_is_none_is_one_line_without_its_password(
    shell: Shell, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store.rename("old.lmdb")
    outcome = shell(*arguments)
    check_error(outcome, message)
    assert "s3c" not in outcome.stderr


def test_a_server_that_does_not_answer_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 0.1)
    check_error(
        shell("info", "mongodb://127.0.0.1:1/images.train"), "no server answers at mongodb://127.0.0.1:1/images.train"
    )


def test_what_is_not_on_a_server_is_one_line(shell: Shell, mongo_uri: str, tmp_path: Path) -> None:
    check_error(shell("info", mongo_uri), "mongodb://.* does not exist; dbloader convert makes a store")
    check_error(shell("copy", mongo_uri, tmp_path / "copy.lmdb"), "mongodb://.* does not exist")
    assert list(tmp_path.iterdir()) == []


def test_a_user_whom_the_server_refuses_is_told_without_the_password(shell: Shell, mongod_with_users: Mongod) -> None:
    place = mongod_with_users.place("images", "train").replace("root:", "nobody:")
    outcome = shell("info", place)
    check_error(outcome, "the server refuses this user or password")
    assert "s3cret" not in outcome.stderr
    assert "nobody" not in outcome.stderr


def test_names_do_not_reach_the_terminal_as_commands_to_it(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"cat\x1b[2J/0.jpg": photo(), "cat/\x1b[2Jred\nline.jpg": b"text", "cat/a.b\x1b[2J": b""})
    outcome = shell("convert", root, place)
    assert "  left out  1 file of other kinds (.b\\x1b[2j 1)\n" in outcome.stdout
    assert "    cat\\x1b[2J  1  █" in shell("info", place).stdout
    assert "    rejected  cat/\\x1b[2Jred\\nline.jpg: is in no known image format" in outcome.stdout
    outcome = shell("convert", f"{root}/\x1b[2Jred\nline", place)
    assert re.fullmatch(r"Error: .*/\\x1b\[2Jred line: there is no such folder\n", outcome.stderr)


# Help


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(shell: Shell, arguments: list[str]) -> None:
    outcome = shell(*arguments)
    assert (outcome.status, outcome.stderr) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\w", outcome.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_tells_every_option_and_ends_with_examples(shell: Shell, name: str) -> None:
    outcome = shell(name, "--help")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.search(rf"\n\n  Examples?:\n(    dbloader {name} .*\n)+$", outcome.stdout)
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            assert f"  {parameter.opts[-1]}" in outcome.stdout or f", {parameter.opts[0]}" in outcome.stdout
        else:
            assert parameter.human_readable_name in outcome.stdout


def test_the_version_is_told(shell: Shell) -> None:
    assert shell("--version").stdout == f"dbloader, version {dbloader.__version__}\n"


def test_numbers_are_written_for_people() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(2000, "record") == "2,000 records"
    assert [size(n) for n in (0, 1, 999, 1000, 999_949, 999_950, 10**9, 1.5e12, 2e15)] == [
        "0 bytes", "1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.0 GB", "1.5 TB", "2,000.0 TB",
    ]  # fmt: skip


# Terminals, pipes and names


def on_terminal(*arguments: str | os.PathLike[str]) -> tuple[int, str, str]:
    """Run a command whose stderr is a terminal; return its status, stdout, and what the terminal got."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    try:
        with running(command(*arguments), stdout=subprocess.PIPE, stderr=its) as process:
            os.close(its)
            shown = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # as Linux says that the other end is closed
                    break
                if not part:
                    break
                shown += part
            stdout, _ = process.communicate(timeout=WAIT_S)
    finally:
        os.close(ours)
    return process.returncode, stdout, shown.decode()


def test_a_terminal_gets_a_bar_with_images_and_megabytes_a_second(tmp_path: Path, place: Path) -> None:
    root = plant_photos(tmp_path / "images", 1500, width=80, height=60)
    status, stdout, shown = on_terminal("convert", root, place)
    assert status == 0
    assert "1,500 records" in stdout
    assert re.search(r"Converting: 100%.*1500/1500 \[.*[\d.]+ images/s, [\d.]+ MB/s\]", shown)
    status, stdout, shown = on_terminal("verify", place)
    assert status == 0
    assert "1500/1500" in shown


def test_the_bar_counts_what_is_found_and_then_what_is_done_in_this_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: clock)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Meter("Looking for images", "images") as meter:
        clock += 50
        meter.update(2000, None)
        clock += 50
        meter.update(500, 2500, title="Converting", nbytes=0)
        clock += 10
        meter.update(1500, 2500, title="Converting", nbytes=30_000_000)
        meter.update(1500, 2500, title="Converting", nbytes=30_000_000)
    shown = capsys.readouterr().err
    assert "Looking for images: 2000 images [" in shown
    assert "Converting:  60%" in shown
    # A thousand in ten seconds, after 500 of an earlier run; the time that the looking took is not counted.
    assert re.search(r"1500/2500 \[00:10<00:10, 100\.\d+ images/s, 3\.0 MB/s\]", shown)


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_a_terminal_gets_no_bar_if_it_is_not_wanted(root: Path, place: Path, option: str) -> None:
    assert on_terminal("convert", root, place, option)[2] == ""


def test_a_terminal_gets_a_bar_of_records_while_a_store_is_copied(store: Path, tmp_path: Path) -> None:
    status, stdout, shown = on_terminal("copy", store, tmp_path / "copy.lmdb")
    assert (status, stdout.count("12 records")) == (0, 1)
    assert re.search(r"\b12/12 .* records/s", shown)
    assert on_terminal("copy", store, tmp_path / "copy.lmdb", "--overwrite", "--quiet") == (0, "", "")


def test_what_is_no_terminal_gets_no_bar(root: Path, place: Path) -> None:
    outcome = run("convert", root, place)
    assert outcome.stderr == ""
    assert "\r" not in outcome.stdout


@pytest.mark.parametrize("arguments", [["info"], ["info", "--report"], ["info", "--json"]])
def test_a_reader_that_stops_early_is_no_error(tmp_path: Path, place: Path, arguments: list[str]) -> None:
    names = tuple(f"class {number:05}" for number in range(1000))
    root = plant(tmp_path / "images", {f"{name}/0.jpg": b"text" for name in names} | {"class 00000/1.jpg": photo()})
    convert(root, place)
    script = '"$@" | head -n 1; exit "${PIPESTATUS[0]}"'
    line = command(arguments[0], place, *arguments[1:])
    done = subprocess.run(["bash", "-c", script, "bash", *line], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "locale"), [("with space", "C"), ("ümläut 日本", "C"), ("ümläut 日本", "C.UTF-8"), ("new\nline", "C")]
)
def test_unusual_names_are_printed_as_well_as_they_can_be(tmp_path: Path, name: str, locale: str) -> None:
    folder = tmp_path / name
    plant_photos(folder / "images", 2, (name,))
    plant(folder, {f"images/{name}/x.jpg": b"text"})
    environment = {**os.environ, "LC_ALL": locale, "LANG": locale}
    place = folder / "out.lmdb"
    commands: tuple[tuple[list[str | Path], int], ...] = (
        (["convert", folder / "images", place], 1),
        (["info", place], 0),
        (["info", place, "--json"], 0),
        (["info", place, "--report"], 0),
        (["verify", place], 0),
    )
    for arguments, status in commands:
        outcome = run(*arguments, env=environment)
        assert (outcome.status, outcome.stderr) == (status, "")
    check_error(run("info", folder / "none", env=environment), "does not exist")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_that_are_not_utf8_are_printed_as_well_as_they_can_be(tmp_path: Path, place: Path, locale: str) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    plant_photos(folder / "images", 2, (os.fsdecode(b"\xff"),))
    plant(folder, {os.fsdecode(b"images/\xff/x.jpg"): b"text", "list.csv": b"path\nnone.jpg\n"})
    environment = {**os.environ, "LC_ALL": locale, "LANG": locale}
    outcome = run("convert", folder / "images", place, env=environment)
    assert outcome.status == 1
    assert "rejected  \\xff/x.jpg: is in no known image format" in outcome.stdout
    assert outcome.stderr.startswith("Warning: 1 name is not valid UTF-8")
    for arguments in ([], ["--json"]):
        shown = run("info", place, *arguments, env=environment)
        assert (shown.status, shown.stderr) == (0, "")
        assert "xff" in shown.stdout
        assert "caf" in shown.stdout
    listing = ("--list", folder / "list.csv", "--overwrite")
    check_error(run("convert", folder, place, *listing, env=environment), "none of the 1 files could be stored")
    check_error(run("convert", folder, folder, env=environment), r"caf.{1,6} is a folder; a store is one file")
    check_error(run("info", folder / "none", env=environment), r"caf.{1,6}/none (does not exist|.*not valid UTF-8)")
    outcome = run("convert", folder / "images", folder / "out.lmdb", env=environment)
    if outcome.status == 2:
        check_error(outcome, r"caf.{1,6}/out.lmdb.*: its name is not valid UTF-8; rename it")
    else:
        assert run("verify", folder / "out.lmdb", env=environment).status == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_a_terminal_does_not_have_are_no_error(store: Path, encoding: str) -> None:
    outcome = run("info", store, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (outcome.status, outcome.stderr) == (0, "")


def test_the_installed_command_is_the_same() -> None:
    installed = shutil.which("dbloader", path=f"{Path(sys.executable).parent}")
    assert installed is not None
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout
