"""What all commands share: errors, exit statuses, help, streams and names."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import dbloader
from dbloader._extensions import COMMANDS as ALL
from dbloader._extensions import has_extensions
from dbloader.checking.verify_store import verify_store
from dbloader.conversion.convert import convert
from dbloader.conversion.report import Report
from tests.support.children import descendants, run_program
from tests.support.images import (
    WAIT_S,
    Outcome,
    command,
    photo,
    plant,
    plant_photos,
    run,
    running,
    subcommands,
    wait_until,
)
from tests.support.shell import Shell, check_error

COMMANDS = {name: subcommands()[name] for name in ("convert", "info", "verify")}
BIN = Path(sys.executable).parent


# Errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, a store and a text file. No failing command may change them."""
    folder = tmp_path_factory.mktemp("here")
    convert(plant_photos(folder / "images", 3), folder / "old.lmdb")
    plant(folder, {"file.txt": b"text"})
    return folder


NEW = ["convert", "images", "new.lmdb"]
# click 8.4 and later suggest a command
SUGGESTION = r" Did you mean 'convert'\?" if hasattr(click, "NoSuchCommand") else ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert"], r"Missing argument 'SOURCE'. \(see dbloader convert --help\)"),
        (["convert", "images", "new.lmdb", "more"], r"unexpected extra argument \('?more'?\)"),
        (["convert", "images", "."], r"\. must be a file, not a folder: name a file, such as \./train\.lmdb"),
        (["convert", "images", "old.lmdb"], r"old.lmdb exists already; overwrite \(--overwrite\) replaces it"),
        (["convert", "images", "file.txt", "--overwrite"], "file.txt is not a dbloader store and will not be overwri"),
        (["convert", "images", "old.lmdb", "--resume"], "old.lmdb is already finished: there is nothing to resume"),
        (["convert", "images", ""], "a place must be the path of an LMDB file"),
        (["convert", "images", " \t"], r"a place must be the path of an LMDB file or .*, got ' \\t'"),
        (["convert", " ", "new.lmdb"], r"the source must be the path of a folder, got ' '"),
        (["convert", "images", "--", "--overwrite"], "'--overwrite', which looks like an option; for a file: ./--o"),
        (["info", "--", "--json"], "got '--json', which looks like an option"),
        (
            ["convert", "new.lmdb", "images"],
            "if source and destination are swapped, write dbloader convert images new.lmdb",
        ),
        (["convert", "old.lmdb", "images", "--overwrite"], "swapped, write dbloader convert images old.lmdb"),
        ([*NEW, "--raw", "--tile"], r"raw \(--raw\) stores pixels, and tile \(--tile\) stores"),
        ([*NEW, "--workers", "0"], "workers must be at least 1, got 0"),
        ([*NEW, "--workers", "two"], "Invalid value for '--workers': 'two' is not a valid"),
        ([*NEW, "--check", "all"], "'--check': 'all' is not one of 'decode', 'structure'"),
        ([*NEW, "--worker", "3"], r"No such option:? '?--worker'?.* \(see dbloader convert"),
        ([*NEW, "--on-bda", "fail"], "No such option:? '?--on-bda'?.*[' ]--on-bad[',]"),
        (["info", "none.lmdb"], "none.lmdb does not exist; dbloader convert makes a store"),
        (["info", "images/cat/0000.jpg"], "is not an LMDB file, .*; dbloader convert makes a store of images"),
        (["info", "old.lmdb", "--json", "--report"], "--json and --report cannot be combined: choose one"),
        (["info", "mongodb://localhost/images"], "has the form mongodb://host/database.collection, got another form"),
        (["convert", "images", "mongodb://u:s3c/ret@localhost/a.b"], "must be escaped"),
        (["convrt"], rf"No such command 'convrt'\.{SUGGESTION} \(see dbloader --help\)"),
        (["old.lmdb"], r"No such command 'old.lmdb'. \(see dbloader --help\)"),
        ([*NEW, "--shuffle-seed"], r"Option '--shuffle-seed' requires an argument"),
        (["--quiet"], "No such option:? '?--quiet'?"),
    ],
)
def test_invalid_input_prints_one_line_on_stderr_and_changes_no_file(
    shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    check_refusal(shell, folder, arguments, message)


def check_refusal(shell: Shell, folder: Path, arguments: list[str], message: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    check_error(shell(*arguments), message)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


NO_MEMORY = r"no memory is left \({}\): raise the limit of memory"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(24, "Too many open files", "images/cat/0.jpg"), "images/cat/0.jpg: Too many open files"),
        (OSError("no room\nat all"), "no room at all"),
        (UnicodeEncodeError("utf-8", "caf\udce9/x", 3, 4, "surrogates"), r"caf\\xe9/x: the path is not valid UTF-8; r"),
        (MemoryError(), NO_MEMORY.format("MemoryError")),
        *(
            (kind(said), NO_MEMORY.format(said))
            for kind, said in (
                (RuntimeError, "can't start new thread"),
                (ImportError, "libm.so.6: failed to map segment from shared object"),
                (ImportError, "libm.so.6: cannot allocate memory in static TLS block"),
            )
        ),
    ],
)
def test_system_error_or_lack_of_memory_prints_one_line(
    shell: Shell, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Report:
        raise error

    monkeypatch.setattr("dbloader.cli.convert.convert", fail)
    check_error(shell("convert", "images", "out.lmdb"), message)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_interruption_prints_one_line_and_gives_status_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.cli.convert.convert", interrupt)
    monkeypatch.setattr("dbloader.cli.verify.isolated", interrupt)
    message = "Interrupted: committed records are kept; --resume continues after them\n"
    assert shell("convert", "images", "out.lmdb") == Outcome(130, "", message)
    assert shell("verify", "out.lmdb") == Outcome(130, "", "Interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "megabytes",
    [pytest.param(most, marks=() if most in (140, 200) else pytest.mark.nightly) for most in range(140, 400, 20)],
)
@pytest.mark.parametrize("arguments", [["convert", "images", "new.lmdb", "-q"], ["verify", "out.lmdb", "-q"]])
def test_process_without_enough_memory_prints_one_line(store: Path, arguments: list[str], megabytes: int) -> None:
    outcome = run(
        *arguments,
        cwd=store.parent,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # with more threads, OpenBLAS ends the process itself
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes * 10**6,) * 2),
    )
    assert outcome.status in (0, 2), outcome
    assert len(outcome.stderr.splitlines()) == (outcome.status != 0), outcome.stderr


# Ctrl-C


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _has_numpy(pid: int) -> bool:
    try:
        return _is_worker(pid) and "numpy" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


at_each_start = pytest.mark.parametrize("began", [_is_worker, _has_numpy], ids=["at its start", "while it imports"])


@pytest.mark.slow
@at_each_start
def test_ctrl_c_at_the_start_prints_one_line(store: Path, began: Callable[[int], bool]) -> None:
    check_ctrl_c(store, ["verify", "out.lmdb"], began)


def check_ctrl_c(store: Path, arguments: list[str], began: Callable[[int], bool]) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command(*arguments), cwd=store.parent, start_new_session=True, **pipes) as process:
        assert wait_until(process, lambda: any(map(began, descendants(process.pid))))
        os.killpg(process.pid, signal.SIGINT)  # to the whole process group, as a terminal does
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, len(stderr.splitlines())) == (130, 1), stderr
    assert stderr.startswith("Interrupted")


# Help


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(shell: Shell, arguments: list[str]) -> None:
    outcome = shell(*arguments)
    assert (outcome.status, outcome.stderr) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\w", outcome.stdout, re.MULTILINE)


def test_command_line_has_no_command_that_is_not_installed(shell: Shell) -> None:
    there = {name for name, module in ALL.items() if has_extensions() or not module.startswith("ext.")}
    assert subcommands().keys() == there
    for name in ALL.keys() - there:
        check_error(shell(name), rf"No such command '{name}'\. \(see dbloader --help\)")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_describes_every_option_and_ends_with_examples(shell: Shell, name: str) -> None:
    check_help(shell, name, COMMANDS[name])


def check_help(shell: Shell, name: str, command: click.Command) -> None:
    outcome = shell(name, "--help")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.search(rf"\n\n  Examples?:\n(    dbloader {name} .*\n)+$", outcome.stdout)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            assert f"  {parameter.opts[-1]}" in outcome.stdout or f", {parameter.opts[0]}" in outcome.stdout
        else:
            assert parameter.human_readable_name in outcome.stdout


def test_installed_command_prints_its_version(shell: Shell) -> None:
    version = f"dbloader, version {dbloader.__version__}\n"
    assert shell("--version").stdout == version
    done = subprocess.run([BIN / "dbloader", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == version


@pytest.mark.parametrize(
    ("typed", "shown"), [("ver", "plain,verify\n"), ("convert --on-b", "plain,--on-bad\n"), ("info tr", "file,tr\n")]
)
def test_tab_completes_commands_options_and_places(typed: str, shown: str) -> None:
    words = {"COMP_WORDS": f"dbloader {typed}", "COMP_CWORD": f"{len(typed.split())}"}
    environment = {**os.environ, "_DBLOADER_COMPLETE": "bash_complete", **words}
    done = subprocess.run([BIN / "dbloader"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == shown


# Streams, and names in any alphabet or encoding


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["info", "out.lmdb"], 0),
        *((arguments, 0) for arguments in ([], ["--help"], ["convert", "--help"])),
        (["verify", "out.lmdb"], 2),  # whoever reads only the status must not take the store for intact
    ],
)
def test_closed_pipe_prints_nothing(store: Path, arguments: list[str], status: int) -> None:
    check_closed_pipe(store, arguments, status)


def check_closed_pipe(store: Path, arguments: list[str], status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(*arguments), cwd=store.parent, stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (status, b"")


def test_closed_pipe_is_not_an_error(tmp_path: Path, place: Path) -> None:
    names = {f"cat/{number}{'x' * 200}.jpg": b"text" for number in range(250)}  # more than a pipe holds, 64 KiB
    convert(plant(tmp_path / "images", {**names, "cat/a.jpg": photo()}), place)
    script = '"$@" | head -n 1; exit "${PIPESTATUS[0]}"'
    line = ["bash", "-c", script, "bash", *command("info", place, "--report")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


CLOSED = ["> /dev/full", "--json > /dev/full", "| true"]


@pytest.mark.slow
@pytest.mark.parametrize("closed", CLOSED)
def test_error_about_stdout_says_that_the_result_is_complete(tmp_path: Path, closed: str) -> None:
    plant(tmp_path / "src", {"cat/0.jpg": photo()})
    check_error_about_stdout(tmp_path, closed, ["convert", "src", "x.lmdb"])
    assert verify_store(tmp_path / "x.lmdb").problems == {}


def check_error_about_stdout(folder: Path, closed: str, arguments: list[str]) -> None:
    line = ["bash", "-c", f'set -o pipefail; "$@" {closed}', "bash", *command(*arguments)]
    _, stderr = run_program(*line, status=2, cwd=folder)
    reason = "Broken pipe" if "|" in closed else "No space left on device"
    assert stderr == f"Error: {reason}: {arguments[-1]} is complete, and only the report could not be printed\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>/dev/full", ">&- 2>&-", "2>&1 | true"])
def test_command_works_without_standard_streams(tmp_path: Path, closed: str) -> None:
    plant(tmp_path / "src", {"cat/0.jpg": photo()})
    for arguments, status in ((["info", "nosuch"], 2), (["convert", "src", "x.lmdb", "-q"], 0)):
        line = ["bash", "-c", f'set -o pipefail; "$@" {closed}', "bash", *command(*arguments)]
        assert run_program(*line, status=status, cwd=tmp_path) == ("", "")


@pytest.mark.slow
def test_names_beyond_ascii_are_printed_in_any_locale(tmp_path: Path) -> None:
    folder = tmp_path / "ümläut\n日本"
    plant(plant_photos(folder / "images", 2, ("ümläut 日本",)), {"ümläut 日本/x.jpg": b"text"})
    commands: tuple[tuple[list[str | Path], int], ...] = (
        (["convert", folder / "images", folder / "out.lmdb"], 1),
        (["info", folder / "out.lmdb"], 0),
        (["info", folder / "out.lmdb", "--report"], 0),
    )
    for arguments, status in commands:
        outcome = run(*arguments, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
        assert (outcome.status, outcome.stderr) == (status, "")


@pytest.mark.slow
def test_names_that_are_not_utf8_are_printed_escaped(tmp_path: Path, place: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    plant_photos(folder / "images", 2, (os.fsdecode(b"\xff"),))
    plant(folder, {os.fsdecode(b"images/\xff/x.jpg"): b"text"})
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}
    outcome = run("convert", folder / "images", place, env=environment)
    assert outcome.status == 1
    assert "rejected  \\xff/x.jpg: is in no known image format" in outcome.stdout
    assert outcome.stderr == "Warning: 1 name is not valid UTF-8: each invalid byte is written as in '\\xff'\n"
    outcome = run("convert", folder / "images", folder / "out.lmdb", env=environment)
    if outcome.status == 2:
        check_error(outcome, r"caf.{1,6}/out.lmdb.*: the path is not valid UTF-8; rename")


# --json


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_prints_only_valid_json(name: str, root: Path, store: Path, tmp_path: Path) -> None:
    arguments: dict[str, list[str | Path]] = {"convert": [root, tmp_path / "new"]}
    check_json(name, *arguments.get(name, [store]))


def check_json(name: str, *arguments: str | Path, lines: bool = False) -> None:
    """Check that a command prints JSON, or a line of JSON for each record."""
    outcome = run(name, *arguments, "--json")
    assert (outcome.stderr, outcome.stdout.isascii()) == ("", True)
    for text in outcome.stdout.splitlines() if lines else [outcome.stdout]:
        assert isinstance(json.loads(text, parse_constant=pytest.fail), (dict, list))
