"""`dbloader ls` prints one line for each record of a store."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dbloader import Record, open_store
from tests.support.images import command
from tests.support.shell import Shell, check_error
from tests.support.stores import store_records


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
