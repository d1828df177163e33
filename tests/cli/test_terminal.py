"""Nothing from a place, a name, a store or an option is a command to the terminal."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

import dbloader.cli
from dbloader import Record, create_store
from dbloader.cli import main
from dbloader.cli.text import printable
from dbloader.records.record import encode
from tests.support.images import WAIT_S, command, photo, plant

# Clears the screen; C1's CSI; overrides and isolates the direction of writing; ends a line, in each of the ways there
# are; deletes; and what is no character at all.
HOSTILE = "\x1b[2J\x9b31m\u202egpj\u2066\u200f\n\r\x0b\x85\u2028\u2029\x07\x7f\ufeff\U000e0041"
NOT_UTF8 = os.fsdecode(b"\xff\xfe")  # as Python has such a name of a file: lone surrogates
ORDINARY = "ümläut 日本 कार्‌य می‌خواهم עברית 🙂 a b"


def is_a_command(letter: str) -> bool:
    joiners = "\u200c\u200d"
    return unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and letter not in joiners


def check(printed: bytes) -> str:
    """What a command printed is text in which only the newline that ends a line does something."""
    text = printed.decode("utf-8")
    assert not {ascii(letter) for letter in text if letter != "\n" and is_a_command(letter)}
    for line in text.split("\n"):
        assert not line.startswith("gpj"), "a newline in a name began a new line"
    return text


def run(*arguments: str | os.PathLike[str], folder: Path, status: int) -> str:
    done = subprocess.run(
        command(*arguments),
        cwd=folder, env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    printed = check(done.stdout) + check(done.stderr)
    assert "Traceback" not in printed
    assert done.returncode == status, printed
    return printed


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of which every text is hostile."""
    place = tmp_path / f"a{HOSTILE}.lmdb"
    with create_store(place) as writer:
        writer.write(
            [
                encode(Record(name=f"a{HOSTILE}.jpg", label=0, image=photo(), format=HOSTILE, width=40, height=30)),
                encode(Record(name="b.jpg", label=1, image=photo(1), fields={f"x{HOSTILE}"[:20].replace(".", ""): 1})),
            ],
            events=[{"name": f"c{HOSTILE}", "event": "rejected", "reason": f"r{HOSTILE}"}],
            outcome={"rejected": 1},
        )
        writer.finish(classes=(f"k{HOSTILE}", ORDINARY), source={"path": f"s{HOSTILE}", "listing": f"l{HOSTILE}"})
    return place


def test_a_store_and_a_place_with_commands_in_them_are_shown_without(store: Path) -> None:
    folder = store.parent
    shown = run("info", store.name, folder=folder, status=0)
    assert "a\\x1b[2J\\x9b31m\\u202egpj" in shown
    assert ORDINARY[:20] in shown
    report = run("info", store.name, "--report", folder=folder, status=0)
    assert json.loads(report)["name"] == f"c{HOSTILE}"
    assert json.loads(run("info", store.name, "--json", folder=folder, status=0))["classes"] == [
        f"k{HOSTILE}", ORDINARY,
    ]  # fmt: skip
    assert "are whole" in run("verify", store.name, folder=folder, status=0)
    run("warm", store.name, folder=folder, status=0)
    run("copy", store.name, f"m{HOSTILE}.lmdb", folder=folder, status=0)
    run("copy", store.name, f"m{HOSTILE}.lmdb", folder=folder, status=2)
    run("bench", store.name, "--seconds", "0.01", "--rounds", "1", "--workers", "0", folder=folder, status=0)
    data = bytearray(store.read_bytes())
    at = data.index(photo()[-100:])
    data[at] ^= 1
    store.write_bytes(data)
    assert "is damaged" in run("verify", store.name, folder=folder, status=1)
    assert "is damaged" in run("copy", store.name, "other.lmdb", folder=folder, status=2)


def test_a_conversion_of_names_with_commands_in_them_shows_them_without(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    root = plant(
        tmp_path / f"images{name}",
        {
            f"k{name}/0.jpg": photo(), f"k{name}/{name}.jpg": b"text", f"k{name}/x.{name}": b"", "loose.jpg": photo(),
            f"k{NOT_UTF8}/0.jpg": photo(), f"k{NOT_UTF8}/{NOT_UTF8}{name}.jpg": b"text",
        },
    )  # fmt: skip
    shown = run("convert", root.name, f"o{name}.lmdb", folder=tmp_path, status=1)
    assert "rejected" in shown
    assert "Warning: " in shown
    run("convert", root.name, f"o{name}.lmdb", folder=tmp_path, status=2)
    run("convert", root.name, f"b{name}.lmdb", "--on-bad", "fail", folder=tmp_path, status=2)
    run("info", f"o{name}.lmdb", folder=tmp_path, status=0)
    listing = tmp_path / f"l{name}.csv"
    listing.write_text(f'path,label,"{name}"\nk{NOT_UTF8}/none.jpg,"{name}",1\n', errors="surrogateescape")
    run("convert", root.name, "l.lmdb", "--list", listing.name, folder=tmp_path, status=2)


ARGUMENTS = [
    ["info"], ["verify"], ["warm"], ["copy", "x.lmdb"], ["convert", "x"], ["bench"], ["convert"], [],
    ["info", "x", "y"], ["convert", "a", "b", "--check"], ["convert", "a", "b", "--list"], ["bench", "x", "--workers"],
    ["convert", "a", "b", "--workers"], ["bench", "x", "--folder"], ["convert", "mongodb://h/a.b", "x", "--key"],
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [HOSTILE, NOT_UTF8, f"--{HOSTILE}", f"mongodb://h/{HOSTILE}.x", f"mongodb://{HOSTILE}"]
)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_an_error_shows_arguments_without_the_commands_in_them(
    tmp_path: Path,
    arguments: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dbloader", *arguments, name])
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 0.1)
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    stdout, stderr = capfdbinary.readouterr()
    assert stdout == b""
    assert check(stderr).startswith("Error: ")


def test_a_mistake_in_dbloader_is_shown_in_full_and_without_commands(tmp_path: Path) -> None:
    script = (
        "import sys; from dbloader.cli import main\n"
        f"def broken(*_, **__): raise RuntimeError({HOSTILE!r} + 'mongodb://u:s3cret@h/a.b')\n"
        "import dbloader.cli.info; dbloader.cli.info.open_store = broken\n"
        "sys.argv = ['dbloader', 'info', 'mongodb://u:s3cret@h/a.b']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    text = done.stderr.decode()
    assert text.startswith("Traceback")
    assert "s3cret" not in text
    assert not {ascii(letter) for letter in text if letter != "\n" and is_a_command(letter)}


@pytest.mark.parametrize("closed", ["2>/dev/full", "2>&-", ">&- 2>&-", "2>&1 | true"])
def test_the_status_tells_of_an_error_where_standard_error_cannot(tmp_path: Path, closed: str) -> None:
    line = f"set -o pipefail; {shlex.join(map(str, command('info', 'nosuch')))} {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "2>/dev/full"])
def test_a_command_works_without_standard_streams(tmp_path: Path, closed: str) -> None:
    plant(tmp_path / "src", {"cat/0.jpg": photo()})
    for arguments in (
        ("convert", "src", "x.lmdb"), ("info", "x.lmdb", "--json"), ("verify", "x.lmdb"),
        ("bench", "x.lmdb", "--seconds", "0.01", "--rounds", "1", "--workers", "0"),
    ):  # fmt: skip
        line = f"{shlex.join(map(str, command(*arguments)))} {closed}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=WAIT_S, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), (arguments, done.stderr)


def test_every_command_character_is_spelled_out_and_no_letter_is() -> None:
    for number in range(sys.maxunicode + 1):
        letter = chr(number)
        category = unicodedata.category(letter)
        shown = printable(letter)
        if category in {"Cc", "Cs", "Zl", "Zp"} or number in (0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
            assert shown.isascii()
            assert shown.isprintable()
        elif category[0] in "LMNPS" or letter in "\u200c\u200d \u3000":
            assert shown == letter
    assert printable(ORDINARY) == ORDINARY


def test_only_one_place_prints() -> None:
    """All text goes through the function that makes it safe."""
    folder = Path(dbloader.cli.__file__).parent
    for path in folder.glob("*.py"):
        calls = {
            f"{getattr(node.func.value, 'id', '')}.{node.func.attr}"
            if isinstance(node.func, ast.Attribute)
            else getattr(node.func, "id", "")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        prints = {"click.echo", "click.secho", "print", "stdout.write", "stderr.write"} & calls
        expected = {"text.py": {"click.echo"}, "__init__.py": {"click.echo"}}  # the latter: its own help
        assert prints <= expected.get(path.name, set()), path
