"""Text from places, names, stores and options never reaches the terminal as an escape sequence."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import lmdb
import pytest

import dbloader.cli
from dbloader import Record
from dbloader._describe import counted, printable, size
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.support.images import photo, plant
from tests.support.shell import Shell, on_terminal

# In order: clear the screen; the C1 control CSI; override and isolate the writing direction; all ways to end a line;
# delete; a tag character.
HOSTILE = "\x1b[2J\x9b31m\u202egpj\u2066\u200f\n\r\x0b\x85\u2028\u2029\x07\x7f\ufeff\U000e0041"
NOT_UTF8 = os.fsdecode(b"\xff\xfe")  # lone surrogates, as Python represents such a file name
ORDINARY = "ümläut 日本 कार्‌य می‌خواهم עברית 🙂 a b"


def is_a_command(letter: str) -> bool:
    joiners = "\u200c\u200d"
    return unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and letter not in joiners


def check(text: str) -> str:
    """Check that printed text contains no control characters except a newline at the end of each line."""
    assert not {ascii(letter) for letter in text if letter != "\n" and is_a_command(letter)}
    for line in text.split("\n"):
        assert not line.startswith("gpj"), "a newline in a name began a new line"
    return text


class Safe:
    """Runs commands in a folder, and checks what they print."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def __call__(self, *arguments: str, status: int = 0) -> str:
        outcome = self.shell(*arguments)
        printed = check(outcome.stdout) + check(outcome.stderr)
        assert "Traceback" not in printed
        assert outcome.status == status, printed
        return printed


@pytest.fixture
def run(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Safe:
    monkeypatch.chdir(tmp_path)
    return Safe(shell)


def test_hostile_store_is_printed_without_escape_sequences(run: Safe) -> None:
    name = f"a{HOSTILE}.lmdb"
    with create_store(name) as writer:
        writer.write(
            [
                encode(Record(name=f"a{HOSTILE}.jpg", label=0, image=photo(), format=HOSTILE, width=40, height=30)),
                encode(Record(name="b.jpg", label=1, image=photo(1), fields={f"x{HOSTILE}"[:20].replace(".", ""): 1})),
            ],
            events=[{"name": f"c{HOSTILE}", "event": "rejected", "reason": f"r{HOSTILE}"}],
            outcome={"rejected": 1},
        )
        writer.finish(classes=(f"k{HOSTILE}", ORDINARY), source={"path": f"s{HOSTILE}", "listing": f"l{HOSTILE}"})
    shown = run("info", name)
    assert "a\\x1b[2J\\x9b31m\\u202egpj" in shown
    assert ORDINARY[:20] in shown
    assert json.loads(run("info", name, "--report"))["name"] == f"c{HOSTILE}"
    assert json.loads(run("info", name, "--json"))["classes"] == [f"k{HOSTILE}", ORDINARY]
    assert "all undamaged" in run("verify", name)
    run("copy", name, f"m{HOSTILE}.lmdb")
    run("copy", name, f"m{HOSTILE}.lmdb", status=2)
    data = bytearray(Path(name).read_bytes())
    data[data.index(photo()[-100:])] ^= 1
    Path(name).write_bytes(data)
    assert "is damaged" in run("verify", name, status=1)
    assert "is damaged" in run("copy", name, "other.lmdb", status=2)


def test_hostile_folder_is_converted_and_printed_without_escape_sequences(run: Safe, tmp_path: Path) -> None:
    name = HOSTILE
    files = {
        f"k{name}/0.jpg": photo(), f"k{name}/{name}.jpg": b"text", f"k{name}/x.{name}": b"", "loose.jpg": photo(),
        f"k{NOT_UTF8}/0.jpg": photo(), f"k{NOT_UTF8}/{NOT_UTF8}{name}.jpg": b"text",
    }  # fmt: skip
    root = plant(tmp_path / f"images{name}", files).name
    shown = run("convert", root, f"o{name}.lmdb", status=1)
    assert "rejected" in shown
    assert "Warning: " in shown
    run("convert", root, f"o{name}.lmdb", status=2)
    run("convert", root, f"b{name}.lmdb", "--on-bad", "fail", status=2)
    run("info", f"o{name}.lmdb")
    listing = Path(f"l{name}.csv")
    listing.write_text(f'path,label,"{name}"\nk{NOT_UTF8}/none.jpg,"{name}",1\n', errors="surrogateescape")
    run("convert", root, "l.lmdb", "--listing", str(listing), status=2)


def hostile_listing(folder: Path) -> tuple[str, ...]:
    plant(folder, {f"images/a{HOSTILE}.jpg": photo(), "images/b.jpg": b"text"})
    rows = [{"path": f"a{HOSTILE}.jpg", "label": f"k{HOSTILE}"}, {"path": "b.jpg", "label": "z"}, {"path": HOSTILE}]
    Path("l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "images", "--listing", "l.jsonl"


def hostile_tar(folder: Path) -> tuple[str, ...]:
    plant(folder, {f"i/k{HOSTILE}/0.jpg": photo(), f"i/z/{HOSTILE}.jpg": b"text", f"i/z/1.{HOSTILE}": b""})
    (folder / "i/z/link.jpg").symlink_to(HOSTILE)
    name = f"t{HOSTILE}.tar"
    with tarfile.open(name, "w") as tar:
        tar.add("i")
    return (name,)


def hostile_lmdb(folder: Path) -> tuple[str, ...]:
    name = f"old{HOSTILE}.lmdb"
    with lmdb.open(str(folder / name), subdir=False) as env, env.begin(write=True) as txn:
        for key, value in ((b"a", photo()), (HOSTILE.encode(), photo(1)), (b"b" + HOSTILE.encode(), b"text")):
            txn.put(key, value)
    return (name,)


@pytest.mark.parametrize("make", [hostile_listing, hostile_tar, hostile_lmdb])
def test_hostile_source_is_converted_and_printed_without_escape_sequences(
    run: Safe, tmp_path: Path, make: Callable[[Path], tuple[str, ...]]
) -> None:
    source, *options = make(tmp_path)
    assert "rejected" in run("convert", source, "o.lmdb", *options, status=1)
    report = run("convert", source, "o.lmdb", *options, "--overwrite", "--json", status=1)
    assert json.loads(report)["rejected"] > 0
    run("convert", source, "none.lmdb", *options, "--on-bad", "fail", status=2)
    for command in (["info"], ["info", "--json"], ["info", "--report"], ["verify"]):
        run(command[0], "o.lmdb", *command[1:])


@pytest.mark.slow
def test_bench_and_doctor_print_hostile_names_without_escape_sequences(run: Safe, tmp_path: Path) -> None:
    name = f"o{HOSTILE}.lmdb"
    run("convert", *hostile_listing(tmp_path)[:1], name, "--listing", "l.jsonl", status=1)
    for options in ((), ("--json",)):
        run("bench", name, "--workers", "1", "--seconds", "0.1", "--rounds", "1", "--batch-size", "1", *options)
        assert run.shell("doctor", name, *options).status in (0, 1)
        check(run.shell("doctor", name, *options).stdout)


def test_bar_shows_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, *_ = hostile_tar(tmp_path)
    shown = on_terminal("convert", source, f"o{HOSTILE}.lmdb")
    # sequences that tqdm itself sends: return to the start of the line, move up a line
    check(re.sub(r"\r|\x1b\[A", "", shown.stderr))
    assert "Looking for images" in shown.stderr


ARGUMENTS = [
    ["info"], ["verify"], ["copy", "x.lmdb"], ["convert", "x"], ["bench"], ["convert"], [],
    ["info", "x", "y"], ["convert", "a", "b", "--check"], ["convert", "a", "b", "--listing"],
    ["bench", "x", "--workers"],
    ["convert", "a", "b", "--workers"], ["convert", "mongodb://h/a.b", "x", "--name-field"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_error_escapes_control_characters(run: Safe, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.01)
    for name in (HOSTILE, NOT_UTF8, f"--{HOSTILE}", f"mongodb://h/{HOSTILE}.x", f"mongodb://{HOSTILE}"):
        assert run(*arguments, name, status=2).startswith("Error: ")


def test_traceback_of_a_bug_has_no_control_characters(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> NoReturn:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("dbloader.cli.show.open_store", broken)
    outcome = shell("info", "a.lmdb")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert check(outcome.stderr).startswith("Traceback")


def test_every_control_character_is_escaped_and_no_letter_is() -> None:
    bidirectional = (0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    for number in itertools.chain(
        range(0x3100), range(0xD700, 0xE100), range(0xFE00, 0x10000), range(0xE0000, 0xE0200)
    ):
        letter = chr(number)
        category = unicodedata.category(letter)
        shown = printable(letter)
        if category in {"Cc", "Cs", "Zl", "Zp"} or number in bidirectional:
            assert shown.isascii()
            assert shown.isprintable()
        elif category[0] in "LMNPS" or letter in "\u200c\u200d \u3000":
            assert shown == letter
    assert printable(ORDINARY) == ORDINARY


def test_numbers_are_written_for_people() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(2000, "record") == "2,000 records"
    assert [size(n) for n in (0, 1, 999, 1000, 999_949, 999_950, 10**9, 1.5e12, 2e15)] == [
        "0 bytes", "1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.0 GB", "1.5 TB", "2,000.0 TB",
    ]  # fmt: skip


def test_only_safe_functions_print() -> None:
    for path in Path(dbloader.cli.__file__).parent.glob("*.py"):
        calls = {
            f"{getattr(node.func.value, 'id', '')}.{node.func.attr}"
            if isinstance(node.func, ast.Attribute)
            else getattr(node.func, "id", "")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        prints = {"click.echo", "click.secho", "print", "stdout.write", "stderr.write"} & calls
        expected = {"text.py": {"click.echo"}, "__init__.py": {"click.echo"}}  # click prints its own help
        assert prints <= expected.get(path.name, set()), path
