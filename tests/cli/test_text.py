"""Text from places, names, stores and options never reaches the terminal as an escape sequence."""

from __future__ import annotations

import ast
import json
import os
import unicodedata
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest

import dbloader.cli
from dbloader import Record
from dbloader._describe import counted, printable, size
from dbloader.cli.text import complain, say
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.support.images import photo, plant
from tests.support.shell import Shell

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


class Safe(Shell):
    """Runs commands, checks what they print, and returns it."""

    def __call__(self, *arguments: object, status: int = 0) -> Any:
        outcome = super().__call__(*arguments)
        printed = check(outcome.stdout) + check(outcome.stderr)
        assert "Traceback" not in printed
        assert outcome.status == status, printed
        return printed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Safe:
    monkeypatch.chdir(tmp_path)
    return Safe(monkeypatch, capfd)


def test_hostile_store_is_printed_without_escape_sequences(run: Safe) -> None:
    name = write_hostile()
    shown = run("info", name)
    assert "a\\x1b[2J\\x9b31m\\u202egpj" in shown
    assert ORDINARY[:20] in shown
    assert json.loads(run("info", name, "--report"))["name"] == f"c{HOSTILE}"
    assert json.loads(run("info", name, "--json"))["classes"] == [f"k{HOSTILE}", ORDINARY]
    assert "all undamaged" in run("verify", name)
    damage(name)
    assert "is damaged" in run("verify", name, status=1)


def damage(name: str) -> None:
    data = bytearray(Path(name).read_bytes())
    data[data.index(photo()[-100:])] ^= 1
    Path(name).write_bytes(data)


def write_hostile() -> str:
    """Write a store with control characters in every text, and return its name."""
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
    return name


def test_hostile_folder_is_converted_and_printed_without_escape_sequences(run: Safe, tmp_path: Path) -> None:
    name = HOSTILE
    files = {
        f"k{name}/0.jpg": photo(), f"k{name}/{name}.jpg": b"text", f"k{name}/x.{name}": b"", "loose.jpg": photo(),
        f"k{NOT_UTF8}/0.jpg": photo(), f"k{NOT_UTF8}/{NOT_UTF8}{name}.jpg": b"text", f"n{name}/text.txt": b"",
    }  # fmt: skip
    root = plant(tmp_path / f"images{name}", files).name
    shown = run("convert", root, f"o{name}.lmdb", status=1)
    assert "rejected" in shown
    assert "Warning: " in shown
    run("convert", root, f"o{name}.lmdb", status=2)
    run("convert", root, f"b{name}.lmdb", "--on-bad", "fail", status=2)
    run("info", f"o{name}.lmdb")


ARGUMENTS = [["info"], ["copy", "x.lmdb"], ["convert"], [], ["info", "x", "y"], ["convert", "a", "b", "--workers"]]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_error_escapes_control_characters(run: Safe, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.01)
    for name in (HOSTILE, NOT_UTF8, f"--{HOSTILE}", f"mongodb://h/{HOSTILE}.x", f"mongodb://{HOSTILE}"):
        assert run(*arguments, name, status=2).startswith("Error: ")


def test_traceback_of_a_bug_has_no_control_characters(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> NoReturn:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("dbloader.cli.info.open_store", broken)
    outcome = shell("info", "a.lmdb")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert check(outcome.stderr).startswith("Traceback")


PASSWORDS = ["SECRET", "S@E:C/R%T", "%53ECRET", "sécrèt日本", "two words", "12345", "12/34@5", "a?b&c#d", "a,b;c"]
PLACES = [
    "mongodb://me:{}@host/a.b", "mongodb+srv://me@corp.com:{}@one,two:27017/a.b?tls=true", "mongodb:/me:{}@host/a.b",
    "MONGO:me:{}@host/a.b", "mongodb://me:{}@[::1]:1/a.b", "s3://me:{}@bucket/key", "https://:{}@host/x.tar",
    "mongodb://host/a.b?x=1&proxyPassword={}", "mongodb://host/a.b?tlsCertificateKeyFilePassword={}&x=1",
]  # fmt: skip
TYPED = [[], ["convert", "a", "b", "--check"], ["convert", "a", "b"], ["info", "a"], ["convert", "a", "b", "--workers"]]


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("place", PLACES)
def test_message_that_repeats_an_argument_hides_its_password(run: Safe, place: str, password: str) -> None:
    if "?" in place:
        password = "".join(letter for letter in password if letter not in " &;")  # these end an option
    for arguments in TYPED:
        shown = run(*arguments, place.format(password), status=2)
        assert "***" in shown
        assert password not in shown


@pytest.mark.filterwarnings("always::UserWarning")
def test_warnings_tracebacks_and_notes_hide_passwords(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "mongodb://me:SEC@RET@host/a.b"

    def broken(_: object) -> NoReturn:
        warnings.warn(f"{place} is slow", UserWarning, stacklevel=1)
        error = RuntimeError(f"{place} is broken")
        error.add_note(f"from {place} and mongodb://other:SEC@host/c.d")
        raise error

    monkeypatch.setattr("dbloader.cli.info.open_store", broken)
    lines = shell("info", "a.lmdb").stderr.splitlines()
    assert lines[0] == "Warning: mongodb://me:***@host/a.b is slow"
    assert lines[-2:] == [
        "RuntimeError: mongodb://me:***@host/a.b is broken",
        "from mongodb://me:***@host/a.b and mongodb://other:***@host/c.d",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "mongodb://h:27017/a.b: has no record x@y", "s3://b/images: photo@2x.jpg cannot be read", "cat/a:b@2x.jpg: bad",
        "no server answers at mongodb://one:1,two:2/a.b within 1 s (one:1: refused): mail me@host", "https://h/a@2x.png",
        "https://h:8080/a@2x.png: not found", "(http://127.0.0.1:9000/b/a@2x.png)", "s3://b/icons/a:b@2x.png is bad",
    ],
)  # fmt: skip
def test_message_without_a_password_is_unchanged(capfd: pytest.CaptureFixture[str], line: str) -> None:
    complain(line)
    say(line := f"mongodb://me:name@host {line}")  # a line on stdout, such as the name of a record
    assert capfd.readouterr() == (f"{line}\n", f"Error: {line.removeprefix('mongodb://me:name@host ')}\n")


def test_every_control_character_is_escaped_and_no_letter_is() -> None:
    bidirectional = (0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    for letter in map(chr, (*range(0x3100), *range(0xD700, 0xE100), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0200))):
        category = unicodedata.category(letter)
        shown = printable(letter)
        if category in {"Cc", "Cs", "Zl", "Zp"} or ord(letter) in bidirectional:
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


def test_commands_print_only_through_functions_that_escape() -> None:
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
