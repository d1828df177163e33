"""`dbloader ls` and `info` print what is in a store."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dbloader import Record, convert, open_store
from tests.support.images import command
from tests.support.shell import Shell, check_error
from tests.support.stores import store_records


def test_info_shows_fields_and_labels_of_a_listing(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    listing = tmp_path / "all.csv"
    listing.write_text("path,label,caption\ncat/0000.jpg,7,one\ndog/0001.jpg,,two\ncat/0002.jpg,-3,three\n")
    convert(root, place, listing=listing)
    rows = dict(re.findall(r"^  (\w+) +(.*)$", shell("info", place).stdout, re.MULTILINE))
    assert rows["fields"] == "caption (3)"
    assert rows["labelled"] == "2"
    assert rows["source"] == str(listing)
    assert rows["labels"] == "2, with 1 record each"
    assert "    1  -3\n" in shell("info", place).stdout


def test_ls_lists_records_in_the_order_of_the_store(shell: Shell, store: Path) -> None:
    outcome = shell("ls", store)
    assert (outcome.status, outcome.stderr) == (0, "")
    with open_store(store) as opened:
        expected = [
            [str(n), ("cat", "dog")[record.label or 0], "40x30", f"{len(record.image or b''):,}", record.name]
            for n, record in enumerate(opened)
        ]
    assert [line.split() for line in outcome.stdout.splitlines()] == expected


def test_ls_prints_matching_records_as_json_lines(shell: Shell, store: Path) -> None:
    printed = shell("ls", store, "--where", "class:dog width<41", "--json").stdout
    lines = [*map(json.loads, printed.splitlines())]
    assert [line["index"] for line in lines] == [6, 7, 8, 9, 10, 11]
    with open_store(store) as opened:
        nbytes = len(opened[6].image or b"")
    assert lines[0] == {
        "index": 6, "name": "dog/0001.jpg", "label": 1, "class": "dog", "width": 40, "height": 30, "bytes": nbytes,
    }  # fmt: skip


def test_ls_says_on_stderr_that_a_query_finds_no_record(shell: Shell, store: Path) -> None:
    outcome = shell("ls", store, "--where", "width>9e9")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "the query 'width>9e9' finds no record\n")


def test_ls_prints_records_without_names_labels_and_images(shell: Shell, place: Path) -> None:
    store_records(place, (Record(), Record("a\x1b[2J\n.jpg", label=-7), Record(label=-7)))
    assert shell("ls", place).stdout == (
        "       0  -                 -            0\n"
        "       1  -7                -            0  a\\x1b[2J\\n.jpg\n"
        "       2  -7                -            0\n"
    )
    assert len(shell("ls", place, "--where", "label:-7").stdout.splitlines()) == 2
    assert json.loads(shell("ls", place, "--json").stdout.splitlines()[0]) == {
        "index": 0, "name": None, "label": None, "class": None, "width": None, "height": None, "bytes": 0,
    }  # fmt: skip
    check_error(shell("ls", place, "--where", "class:cat"), "no class is called 'cat'; the store has no class names")


@pytest.mark.slow
def test_first_lines_are_printed_before_the_rest_is_read(place: Path) -> None:
    store_records(place, (Record(f"{number}.jpg", label=number % 2) for number in range(20_000)))
    # Damage the last chunk of names, so reading it fails. A free page may hold the same bytes, so replace all of them.
    place.write_bytes(place.read_bytes().replace(b"19998.jpg19999.jpg", b"19998.jpg19999.jpX"))
    with subprocess.Popen(command("ls", place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        assert process.stderr is not None
        rest, message = process.stdout.read(), process.stderr.read()
    assert [line.split()[-1] for line in first] == ["0.jpg", "1.jpg", "2.jpg"]
    assert process.returncode == 2
    assert rest.count("\n") == 4 * 4096 - 3
    assert "its column name is missing or damaged" in message
